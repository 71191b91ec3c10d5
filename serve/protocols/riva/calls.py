"""Riva calls: what each method of the protocol does, from the metadata of a call to its last message.

In:    messages, the context that Serve gives a call
Out:   messages; RivaRefusal with a status code and details
Never: an endless wait for a client that reads or says nothing; a voice of a prompt that is kept
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import unquote

import grpc
from starlette.datastructures import Headers

from pipeline.errors import DeadlineExceeded, Draining, ReaderStalled
from pipeline.types import TimedItem
from pipeline.voices.voice_names import MAX_NAME_CHARS
from serve.access.api_keys import Scope
from serve.access.caller import Caller
from serve.access.idempotency import HEADER as IDEMPOTENCY_KEY
from serve.errors import ApiError, bad_request, to_api_error
from serve.http.ignored_fields import ignored_header
from serve.http.sender import safe_request_id
from serve.http.services import Services
from serve.protocols.openai.routes.voices import NO_CONSENT, check_cloning
from serve.protocols.riva.protocol import RivaSynthesisConfigRequest, SynthesizeSpeechRequest, health, parsed
from serve.protocols.riva.translation import configuration, configuration_of, reply, speech_fields, status_of
from serve.speech.conversation.context import ContextSettings
from serve.speech.events import Audio, Timed
from serve.speech.job import RequestContext
from serve.speech.speak import open_speech
from serve.speech.speech_services import SpeechServices

MOST_AUDIO_BYTES = 1 << 18
"""of one message of a stream; clients refuse messages of 4 MiB"""
WAITING_MESSAGES = 2
"""that a client has not taken, before the speech waits"""
ARRIVED_S = 0.1
"""in which a text that has arrived is read, once the replica is about to stop"""


class CallContext(Protocol):
    """What is used of Serve's context of a call."""

    def invocation_metadata(self) -> Any: ...
    def peer(self) -> str: ...
    def set_code(self, code: grpc.StatusCode) -> None: ...
    def set_details(self, details: str) -> None: ...
    def set_trailing_metadata(self, trailing_metadata: Any) -> None: ...


class RivaRefusal(Exception):
    """Ends a call with the status that its context has been given."""


class RivaService:
    """The methods of the protocol in one ingress replica."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def synthesize(self, requests: AsyncIterator[bytes], context: CallContext) -> Any:
        """Speaks the text of the first request; returns the whole audio in one message.

        Raises:
            RivaRefusal
        """
        async with self._call(context) as request_context:
            request = self._checked(await self._first(requests), context)
            async with aclosing(self._speak(request, request_context, context, stream=False)) as pieces:
                replies = [piece async for piece in pieces]
            items = [item for _, _, times in replies for item in times]
            return reply(request, replies[0][0], b"".join(data for _, data, _ in replies), items)

    async def synthesize_online(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncGenerator[Any, None]:
        """Speaks texts one after the other; yields their audio as it is generated.

        Raises:
            RivaRefusal
        """
        waiting: asyncio.Queue[Any] = asyncio.Queue(WAITING_MESSAGES)
        speaking = asyncio.create_task(self._speak_all(requests, context, waiting), name="speech of Riva")
        try:
            while True:
                taking = asyncio.create_task(waiting.get())
                await asyncio.wait((taking, speaking), return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    taking.cancel()
                    await speaking  # raises why it ended, if there is a reason
                    return
                yield taking.result()
                while not waiting.empty():
                    yield waiting.get_nowait()
        finally:
            speaking.cancel()
            await asyncio.wait((speaking,))

    async def config(self, requests: AsyncIterator[bytes], context: CallContext) -> Any:
        """Returns the voices of the model that the first request names.

        Raises:
            RivaRefusal
        """
        async with self._call(context, frozenset(Scope), stream=False):
            request = parsed(RivaSynthesisConfigRequest, await self._first(requests))
            library, models = self._services.voices.library, self._services.speech.models
            return configuration(library.list(), models, request.model_name)

    async def health(self) -> Any:
        """Returns whether this replica would speak now, which needs no key."""
        return health(is_ready=await self._services.status.why_not_ready() is None)

    async def _speak_all(self, requests: AsyncIterator[bytes], context: CallContext, waiting: "asyncio.Queue[Any]") -> None:
        limit_s = self._services.speech.limits.stall_timeout_s
        async with self._call(context) as request_context:
            number = 0
            async with aclosing(self._arriving(requests, request_context.caller)) as texts:
                async for data in texts:
                    text_context, request = numbered(request_context, number), self._checked(data, context)
                    async with aclosing(self._speak(request, text_context, context, stream=True)) as pieces:
                        async for job, piece, times in pieces:
                            try:
                                async with asyncio.timeout(limit_s):
                                    await waiting.put(reply(request, job, piece, times))
                            except TimeoutError:
                                message = f"the client read nothing for {limit_s:g} s (limits.stall_timeout_s)"
                                raise ReaderStalled(message) from None
                    number += 1
            if not number:
                raise bad_request("missing_field", "the stream of requests is empty: send one with a text", param="text")

    async def _first(self, requests: AsyncIterator[bytes]) -> bytes:
        """Returns the first request; empty if there is none.

        Raises:
            DeadlineExceeded: it does not come in time.
        """
        limit_s = self._services.speech.limits.body_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await anext(aiter(requests), b"")
        except TimeoutError:
            raise DeadlineExceeded(f"no message within {limit_s:g} s (limits.body_timeout_s)") from None

    def _checked(self, data: bytes, context: CallContext) -> Any:
        """Returns a request for speech. Only one with a recording is longer than a body of HTTP may be.

        Raises:
            ApiError: 400, 413; 401 or 403, its client may not clone.
        """
        most, voices = self._services.speech.limits.max_body_bytes, self._services.voices.maker.config
        if len(data) > most + (voices.max_upload_bytes if voices.clone else 0):
            raise bad_request("body_too_large", f"the message is larger than {most} bytes (limits.max_body_bytes)", status=413)
        if len(data) > most:
            self._check_scope(context)
        return parsed(SynthesizeSpeechRequest, data)

    def _check_scope(self, context: CallContext) -> None:
        """Checks that a client may clone.

        Raises:
            ApiError: 401, 403
        """
        self._services.authenticator.key_of(headers_of(context), address_of(context.peer()), frozenset({Scope.VOICES}))

    async def _arriving(self, requests: AsyncIterator[bytes], caller: Caller) -> AsyncGenerator[bytes, None]:
        """Yields requests as they arrive; the time in which one is spoken does not count.

        Raises:
            Draining: the replica is about to stop, and all that has arrived is spoken.
            DeadlineExceeded: none has come for too long.
            ApiError: 401, the key was revoked.
        """
        conversations, coming, is_revoked = self._services.conversations, aiter(requests), asyncio.Event()
        idle_s = conversations.config.idle_timeout_s
        leaving = asyncio.create_task(conversations.leaving.wait())
        revoked = asyncio.create_task(is_revoked.wait())
        request: asyncio.Task[bytes | None] | None = None
        try:
            while True:
                request = asyncio.create_task(_next(coming))
                with caller.wakes(is_revoked):
                    await asyncio.wait((request, leaving, revoked), timeout=idle_s, return_when=asyncio.FIRST_COMPLETED)
                caller.check_key()
                if leaving.done():
                    await asyncio.wait((request,), timeout=ARRIVED_S)
                if not request.done():
                    if leaving.done():
                        raise Draining("this replica is about to stop and takes no further text; call again")
                    raise DeadlineExceeded(f"no further text for {idle_s:g} s (conversations.idle_timeout_s)")
                if (data := request.result()) is None:
                    return
                yield data
        finally:
            leaving.cancel()
            revoked.cancel()
            if request is not None:
                request.cancel()

    async def _speak(
        self, request: Any, request_context: RequestContext, context: CallContext, *, stream: bool
    ) -> AsyncGenerator[tuple[Any, bytes, list[TimedItem]], None]:
        """Yields the job, a piece of its audio, and the times told before it."""
        async with self._voiced(request, context) as speech_services:
            with open_speech(speech_services, request_context) as speech:
                fields = speech_fields(request, stream=stream)
                content = (
                    b"" if request_context.idempotency_key is None else await asyncio.to_thread(content_of, request, fields)
                )
                job = await speech.accept(ContextSettings(fields, 0.0).body(request.text), content)
                if job.ignored:
                    context.set_trailing_metadata([("x-ignored-fields", ignored_header(job.ignored))])
                items: list[TimedItem] = []
                async with aclosing(speech.speak(job)) as events:
                    async for event in events:
                        match event:
                            case Timed():
                                items += event.items
                            case Audio():
                                step = MOST_AUDIO_BYTES if stream else max(1, len(event.data))
                                for place in range(0, max(1, len(event.data)), step):
                                    yield job, event.data[place : place + step], items
                                    items = []
                            case _:
                                pass
                if items:
                    yield job, b"", items

    @asynccontextmanager
    async def _voiced(self, request: Any, context: CallContext) -> AsyncIterator[SpeechServices]:
        """Yields what speaking needs, with the voice of a zero-shot prompt in place of one without a name.

        Raises:
            ApiError, SynthesisError: the prompt is refused.
        """
        services = self._services
        if not request.HasField("zero_shot_data") or not request.zero_shot_data.audio_prompt:
            yield services.speech
            return
        check_cloning(services)
        self._check_scope(context)
        prompt, maker = request.zero_shot_data, services.voices.maker
        if request.voice_name:
            raise bad_request("conflicting_fields", "a zero-shot prompt is the voice: leave voice_name out", param="voice_name")
        if (configuration_of(request).consent or "").strip().lower() in NO_CONSENT:
            message = "consent is required in custom_configuration: true, or what the speaker of the prompt has agreed to"
            raise bad_request("missing_field", message, param="consent")
        if len(prompt.audio_prompt) > maker.config.max_upload_bytes:
            message = f"the prompt is larger than {maker.config.max_upload_bytes} bytes (voices.max_upload_bytes)"
            raise bad_request("body_too_large", message, status=413)
        with services.speech.admission.acquire():
            voice, _ = await maker.voice_of(prompt.audio_prompt, prompt.transcript[:MAX_NAME_CHARS])
        with services.voices.library.temporary(voice) as name:
            yield replace(services.speech, voice_id=lambda requested: name)

    @asynccontextmanager
    async def _call(
        self, context: CallContext, scopes: frozenset[Scope] = frozenset({Scope.SPEECH}), *, stream: bool = True
    ) -> AsyncIterator[RequestContext]:
        """Yields the context of a call, which counts against its key meanwhile; an error becomes the call's status.

        Raises:
            RivaRefusal
        """
        headers, peer = headers_of(context), address_of(context.peer())
        authenticator, observer = self._services.authenticator, self._services.speech.observer
        try:
            async with AsyncExitStack() as stack:
                caller = authenticator.anonymous_caller
                try:
                    key = authenticator.key_of(headers, peer, scopes)
                    if key is not None:
                        caller, _ = await stack.enter_async_context(authenticator.admitted(key, stream=stream))
                except ApiError as refusal:
                    observer.rejected(refusal.spec.code)
                    raise
                yield RequestContext(
                    request_id=safe_request_id(headers.get("x-request-id")),
                    caller=caller,
                    client_host=peer,
                    traceparent=headers.get("traceparent"),
                    strict=headers.get("strict") in ("1", "true"),
                    cache_control=headers.get("cache-control", ""),
                    idempotency_key=headers.get(IDEMPOTENCY_KEY),
                )
        except Exception as error:
            code, details = status_of(to_api_error(error))
            context.set_code(code)
            context.set_details(details)
            raise RivaRefusal(details) from None


async def _next(requests: AsyncIterator[bytes]) -> bytes | None:
    """Returns the next request; None at the end."""
    return await anext(requests, None)


def numbered(context: RequestContext, number: int) -> RequestContext:
    """Returns the context of one text of a stream. Each has an idempotency key of its own; the first one has the stream's."""
    key = context.idempotency_key
    if key is not None and number:
        key = hashlib.sha256(f"{number} {key}".encode()).hexdigest()
    return replace(context, request_id=f"{context.request_id}.{number}", continues=number > 0, idempotency_key=key)


def content_of(request: Any, fields: Mapping[str, Any]) -> bytes:
    """Returns what an idempotency key stands for: the fields, and the recording that is their voice."""
    prompt = request.zero_shot_data.SerializeToString(deterministic=True) if request.HasField("zero_shot_data") else b""
    return json.dumps({**fields, "zero_shot_data": hashlib.sha256(prompt).hexdigest()}).encode()


def headers_of(context: CallContext) -> Headers:
    """Returns the metadata of a call that is text."""
    return Headers({name: value for name, value in context.invocation_metadata() if isinstance(value, str)})


def address_of(peer: str) -> str:
    """Returns the address in gRPC's name of a peer: ipv4:127.0.0.1:50051, ipv6:%5B::1%5D:50051."""
    family, _, rest = unquote(peer).partition(":")
    host = rest.rpartition(":")[0]
    return host.strip("[]") if family in ("ipv4", "ipv6") else ""
