"""Conversation: the contexts of one socket, and the conversations of one ingress replica.

In:    what a client says about its contexts
Out:   ConversationEvents; refusals in words
Owns:  the contexts, the conversations that are open
Never: JSON, a protocol
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pipeline.errors import AtCapacity, Draining
from pipeline.types import SynthesisRequest
from serve.config.app_config import ConversationsConfig
from serve.errors import ApiError, ErrorSpec, bad_request
from serve.speech.conversation.context import Context, ContextSettings, Emit
from serve.speech.conversation.conversation_events import ContextCancelled
from serve.speech.job import RequestContext
from serve.speech.resolve import build_request, select_version
from serve.speech.schemas.text import check_ignored
from serve.speech.speech_services import SpeechServices

MAX_WAITING_CHARS = 16_384
"""of one context that were received and not spoken yet: more than a language model writes in one answer"""
MOST_PARTS = 2048
"""of a context that are complete and not begun, before it takes more text"""


class Conversation:
    """The contexts of one client, each with an id that the client chooses."""

    def __init__(self, services: SpeechServices, config: ConversationsConfig, request: RequestContext, emit: Emit) -> None:
        """
        Args:
            request: of the whole conversation; its idempotency key is not used.
            emit: writes an event to the client, one at a time.
        """
        self.leaving = asyncio.Event()
        """set when the replica is about to stop: what was flushed is still spoken"""
        self.changed = asyncio.Event()
        """set when there is text to speak, when it was spoken, and when a context or the service ends; who waits clears it"""
        self._services = services
        self._config = config
        self._request = replace(request, idempotency_key=None)
        self._emit = emit
        self._contexts: dict[str, Context] = {}
        self._opened = 0

    @property
    def is_busy(self) -> bool:
        """True while text that is complete has not been spoken to its end."""
        return any(context.is_busy for context in self._contexts.values())

    @property
    def broken(self) -> Exception | None:
        """Why nothing more can be written to the client; None: it can."""
        return next((context.broken for context in self._contexts.values() if context.broken is not None), None)

    def check(self, settings: ContextSettings) -> tuple[SynthesisRequest, tuple[str, ...]]:
        """Checks that a context can be opened with these settings. Returns what it would ask of the model for a full stop, and
        the fields without effect.

        Raises:
            InvalidRequest, ApiError: a field is wrong, a name is unknown, or the caller may not have it.
        """
        if settings.lead_s > self._config.max_lead_s:
            raise bad_request("out_of_range", f"lead_s is at most {self._config.max_lead_s:g}", param="lead_s")
        is_ssml = settings.speech.get("input_type") == "ssml"
        if is_ssml and settings.sentences:
            raise bad_request("conflicting_fields", "an SSML document cannot be cut into sentences", param="sentences")
        body = settings.part_body("<speak>.</speak>" if is_ssml else ".")
        if body.stream_format == "sse":
            raise bad_request("conflicting_fields", "stream_format has no meaning here", param="stream_format")
        if body.subtitles is not None:
            raise bad_request("conflicting_fields", "subtitles have no meaning here; timestamps do", param="subtitles")
        self._request.caller.lane(body.priority)
        selection = select_version(body, self._request, self._services)
        return build_request(selection, self._request, self._services), (*body.ignored, *selection.lost)

    def check_ignored(self, fields: Sequence[str], known: Sequence[str]) -> None:
        """Refuses fields without effect if the client asked for it.

        Args:
            known: those that the refusal may name.

        Raises:
            ApiError: 400
        """
        check_ignored(fields, known, strict=self._request.strict)

    def open(self, name: str, settings: ContextSettings) -> None:
        """Opens a context.

        Raises:
            Draining, InvalidRequest, ApiError
        """
        if self.leaving.is_set():
            raise Draining("this replica is about to stop and opens no context; connect again")
        if self.is_open(name):
            raise ApiError("a context of this id is open", ErrorSpec(409, "conflict_error", "context_exists", False))
        most = self._config.max_contexts
        if sum(map(self.is_open, self._contexts)) >= most:
            raise AtCapacity(
                f"{most} contexts are open, as many as one socket may have: close or cancel one", retry_after_s=1.0
            )
        self.check(settings)
        request = replace(self._request, request_id=f"{self._request.request_id}.{self._opened}")
        self._forget(name)
        self._contexts[name] = Context(name, settings, self._services, request, self._emit, self.changed.set)
        self._opened += 1

    async def add(self, name: str, text: str, voice: str | None = None) -> None:
        """Appends text to a context.

        Args:
            voice: who speaks it; None: the voice of the context.

        Raises:
            ApiError: there is no such context, or it is closed.
            AtCapacity: too much text waits in it; this text was not taken.
        """
        context = self._context(name)
        if not context.accepts_text:
            raise bad_request("context_closed", "the context is closed: it takes no more text", status=409)
        if context.waiting + len(text) > MAX_WAITING_CHARS:
            raise AtCapacity(
                f"{context.waiting} characters wait in this context, and {len(text)} more are above the limit of "
                f"{MAX_WAITING_CHARS}: they were not taken; send them when some were spoken",
                retry_after_s=1.0,
            )
        if context.parts_waiting >= MOST_PARTS:
            raise AtCapacity(f"{MOST_PARTS} parts of this context wait to be spoken: flush longer ones", retry_after_s=1.0)
        await context.add(text, voice)

    def flush(self, name: str) -> None:
        """Ends the present part of a context.

        Raises:
            ApiError: there is no such context.
        """
        self._context(name).flush()

    def parts(self, name: str) -> int:
        """Returns how many parts of a context are complete; events number them from 0.

        Raises:
            ApiError: there is no such context.
        """
        return self._context(name).parts

    def close(self, name: str, *, rest: bool = True) -> None:
        """Ends the text of a context; what there is of it is spoken, without `rest` only the parts that are complete.

        Raises:
            ApiError: there is no such context.
        """
        self._context(name).close(rest=rest)

    async def cancel(self, name: str, played_s: float | None) -> None:
        """Interrupts a context, and emits what was played; `played_s` as for Listener.played.

        A context that was spoken to its end can still be interrupted, since its audio may still be playing.

        Raises:
            ApiError: there is no such context.
        """
        if name not in self._contexts:
            raise _no_such_context()
        played = await self._contexts.pop(name).cancel(played_s)
        await self._emit(ContextCancelled(name, played))

    def leave(self) -> None:
        """Opens no more contexts, and speaks what is complete without waiting for the listener."""
        self.leaving.set()
        self.changed.set()
        for context in self._contexts.values():
            context.hurry()

    async def stop(self) -> None:
        """Ends all contexts at once."""
        await asyncio.gather(*(context.stop() for context in self._contexts.values()))

    def _forget(self, name: str) -> None:
        """Drops what was played of an earlier context of this name, and of those that ended first, if there are many."""
        over = [candidate for candidate in self._contexts if not self.is_open(candidate)]
        for old in {name, *over[: max(0, len(over) - self._config.max_contexts + 1)]} & set(over):
            del self._contexts[old]

    def is_open(self, name: str) -> bool:
        """True while a context of this id can still speak."""
        return name in self._contexts and not self._contexts[name].is_over

    def _context(self, name: str) -> Context:
        if not self.is_open(name):
            raise _no_such_context()
        return self._contexts[name]


def _no_such_context() -> ApiError:
    return bad_request("context_not_found", "no context of this id is open", param="context", status=404)


class Conversations:
    """The open conversations of one ingress replica."""

    def __init__(self, config: ConversationsConfig) -> None:
        self.config = config
        self._open: set[Conversation] = set()
        self.leaving = asyncio.Event()
        """set when the replica is about to stop"""

    @property
    def open_now(self) -> int:
        """How many there are."""
        return len(self._open)

    @property
    def busy(self) -> int:
        """How many of them have text that is complete and not spoken."""
        return sum(conversation.is_busy for conversation in self._open)

    @contextmanager
    def joined(self, conversation: Conversation) -> Iterator[None]:
        """Counts a conversation as open while the block runs.

        Raises:
            AtCapacity: there are too many.
            Draining: the replica is about to stop.
        """
        if self.leaving.is_set():
            raise Draining("this replica is about to stop and opens no conversation; connect again, another one may answer")
        if len(self._open) >= self.config.max_sockets:
            raise AtCapacity(f"{self.config.max_sockets} conversations are open (conversations.max_sockets)", retry_after_s=5.0)
        self._open.add(conversation)
        try:
            yield
        finally:
            self._open.discard(conversation)

    def leave(self) -> None:
        """Tells every conversation that the replica is about to stop."""
        self.leaving.set()
        for conversation in self._open:
            conversation.leave()
