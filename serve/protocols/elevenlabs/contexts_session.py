"""Contexts session: what sessions of texts and of dialogues have in common: the contexts of a socket, and their messages.

In:    ConversationEvents
Out:   messages, in the words of one protocol
Owns:  which contexts there are, which of them have sent audio, and the times of their characters
Never: a socket; an end without audio, which clients take for a failure
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from pipeline.audio.encode import encode_whole
from pipeline.audio.formats import named_format
from pipeline.text.incremental import Part
from pipeline.types import TimedItem
from serve.config.app_config import ConversationsConfig
from serve.errors import ApiError, bad_request, to_api_error
from serve.http.bounded_fields import bounded
from serve.http.close_codes import NORMAL
from serve.http.conversation_writer import audio_pieces
from serve.http.session import Message
from serve.protocols.elevenlabs.alignment import Characters, end_ms, in_milliseconds
from serve.protocols.elevenlabs.frames import context_in
from serve.protocols.elevenlabs.protocol import PROTOCOL
from serve.protocols.elevenlabs.translation import SocketQuery
from serve.speech.conversation.context import ContextSettings
from serve.speech.conversation.conversation import Conversation
from serve.speech.conversation.conversation_events import (
    ContextCancelled,
    ContextClosed,
    ContextFailed,
    ConversationEvent,
    PartSkipped,
    PartSpoken,
)
from serve.speech.events import Audio, Finished, Started, Timed
from serve.speech.job import SpeechJob
from serve.speech.schemas.base import read_values

MOST_IGNORED = 64
"""names of fields that wait for the next message of a context"""
SILENCE_S = 0.1  # of a context that has nothing to say

Query = TypeVar("Query", bound=SocketQuery)
Beginning = TypeVar("Beginning")
NAMES = ("alignment", "normalizedAlignment")


class AlignedContext:
    """The times of one context."""

    def __init__(self, *, from_start: bool) -> None:
        """
        Args:
            from_start: times count from the beginning of the context. Else those of a message count from the end of the last
                character of the messages before it: readers without sync_alignment add up these ends.
        """
        self._from_start = from_start
        self._reached_ms = dict.fromkeys(NAMES, 0)
        self._characters = Characters("")
        self._rate, self._from_s, self._sent_samples = 1, 0.0, 0
        self._place = 0  # characters of the context's text before the next part
        self._skipped = ""  # characters that were not told

    def begin(self, part: Part, job: SpeechJob, from_s: float) -> None:
        """A part is spoken from now on.

        Args:
            job: that speaks it, whose text has no marks.
            from_s: where it begins in the audio of the context [s].
        """
        self.skip(part)
        before = self._skipped.removesuffix(part.text)
        self._characters, self._skipped = Characters(job.request.text, before=before), ""
        self._rate, self._from_s, self._sent_samples = job.audio.sample_rate, from_s, 0

    def skip(self, part: Part) -> None:
        """A part has nothing to say: its characters are told with those of the next one. Only white space is between parts."""
        self._skipped += " " * (part.start - self._place) + part.text
        self._place = part.start + len(part.text)

    def add(self, items: Iterable[TimedItem]) -> None:
        """More is known about the audio of the part."""
        self._characters.add(items)

    def finish(self, audio_s: float) -> bool:
        """The part has been spoken. Returns True if there are characters that no message has told."""
        self._characters.finish(round(audio_s * self._rate))
        return self._characters.waits

    def take(self, samples: int = 0) -> Message:
        """Returns the alignments of the next message; null without characters.

        Args:
            samples: of the message's audio. Its last character lasts to their end, so that times that count from the end of a
                message's last character count from the end of its audio too; 0: it lasts as long as it is heard.
        """
        alignments: Message = {}
        self._sent_samples += samples
        for name, timings in zip(NAMES, self._characters.take(), strict=True):
            if samples and timings:
                character, start, stop = timings[-1]
                timings[-1] = character, start, max(stop, self._sent_samples)
            base_ms = 0 if self._from_start else self._reached_ms[name]
            alignments[name] = alignment = in_milliseconds(timings, self._rate, self._from_s, base_ms)
            if alignment is not None:
                self._reached_ms[name] = base_ms + end_ms(alignment)
        return alignments


class ContextsSession(ABC, Generic[Query, Beginning]):
    """One client of either protocol; see Session."""

    def __init__(
        self, kind: type[Query], query: Mapping[str, str], config: ConversationsConfig, request_id: str, *, error_ends: bool
    ) -> None:
        """
        Args:
            kind: of the query.
            error_ends: whether an error about one context closes the socket.
        """
        self.idle_s = config.idle_timeout_s
        self.idle_code = NORMAL
        self.over: tuple[int, str] | None = None
        self._raw_query = query
        self._query = kind()
        self._of_address = ContextSettings({}, config.lead_s)
        """settings of every context, which are checked once"""
        self._config = config
        self._request_id = request_id
        self._error_ends = error_ends
        self._from_start = False  # whether times count from the beginning of their context
        self._is_closing = False
        self._beginnings: dict[str, Beginning] = {}
        """context -> what it keeps from its first message"""
        self._voiced: set[str] = set()
        self._aligned: dict[str, AlignedContext] = {}
        self._ignored: dict[str, dict[str, None]] = {}
        """context -> fields without effect that its next message names, at most MOST_IGNORED"""

    def begin(self, conversation: Conversation) -> None:
        """As Session says: refuses a socket whose address is wrong."""
        try:
            kind = type(self._query)
            self._query = read_values(kind, bounded(self._raw_query, kind))
            self._of_address = self._address_settings()
            conversation.check(self._of_address)
        except Exception as error:
            self._leave_for(to_api_error(error))
            raise

    def messages(self, event: ConversationEvent) -> Iterator[Message]:
        """As Session says."""
        name = event.context
        match event:
            case PartSpoken(event=Started() as started):
                self._note_ignored(name, started.job.ignored)
                self._aligned_in(name).begin(event.part, started.job, event.from_s)
            case PartSpoken(event=Timed(items=items)):
                self._aligned_in(name).add(items)
            case PartSpoken(event=Audio(data=data)):
                yield from self._pieces(name, data)
            case PartSpoken(event=Finished(audio_s=audio_s)):
                if self._aligned_in(name).finish(audio_s):
                    yield self._audio(name, b"")
                yield from self._part_ended(name)
            case PartSkipped():
                self._aligned_in(name).skip(event.part)
            case ContextClosed(rest=rest):
                yield from self._pieces(name, rest)
                if name not in self._voiced:
                    yield self._audio(name, self._silence())
                yield self._final(name)
                self._forget(name)
            case ContextFailed():
                refusal = to_api_error(event.error)
                yield self._error(refusal, name)
                if self._error_ends:
                    self._leave_for(refusal)
                self._forget(name)
            case ContextCancelled():
                pass  # neither protocol has an interruption

    def refusal(self, error: Exception, frame: str | None) -> Message:
        """As Session says; behind the end of the text nothing ends a socket that still speaks."""
        refusal = to_api_error(error)
        if self._error_ends and not self._is_closing:
            self._leave_for(refusal)
        return self._error(refusal, context_in(frame))

    def farewell(self) -> Message | None:
        """Returns None: the close code says it."""
        return None

    @abstractmethod
    def _address_settings(self) -> ContextSettings:
        """Returns the settings that the path and the query give every context, after a look at them."""

    @abstractmethod
    def _audio(self, name: str, data: bytes) -> Message:
        """Returns a message with audio, and with the times of the characters that were told."""

    @abstractmethod
    def _final(self, name: str) -> Message:
        """Returns the last message of a context."""

    @abstractmethod
    def _error(self, refusal: ApiError, name: str | None) -> Message:
        """Returns the message about an error; `name` is the context that it concerns, None: no context."""

    def _pieces(self, name: str, data: bytes) -> Iterator[Message]:
        """Yields messages with audio, of a size that client libraries take."""
        for piece in audio_pieces(data):
            self._voiced.add(name)
            yield self._audio(name, piece)

    def _part_ended(self, name: str) -> Iterator[Message]:
        """Yields what is said behind a part."""
        yield from ()

    def _settings(self, own: Mapping[str, Any]) -> ContextSettings:
        """Returns the settings of a context.

        Args:
            own: fields of SpeechBody that its first message gives.
        """
        settings = self._of_address
        return replace(settings, speech={**settings.speech, **own}) if own else settings

    def _note_ignored(self, name: str, fields: Iterable[str]) -> None:
        """Has the next message of a context name fields without effect."""
        waiting = self._ignored.setdefault(name, {})
        waiting.update(dict.fromkeys(islice(fields, MOST_IGNORED - len(waiting))))

    def _ignored_in(self, name: str) -> Message:
        """Returns the field that names what had no effect, once; none if there is nothing to name."""
        ignored = self._ignored.pop(name, None)
        return {"ignored_fields": list(ignored)} if ignored else {}

    def _check_open(self) -> None:
        """Checks that the text of the socket has not ended.

        Raises:
            ApiError
        """
        if self._is_closing:
            raise bad_request("socket_closing", "the text of this socket has ended: it takes no more")

    def _close_all(self, conversation: Conversation) -> None:
        """Speaks what there is, then closes the socket."""
        self._is_closing = True
        for name in list(self._beginnings):
            if conversation.is_open(name):
                conversation.close(name)
            else:
                self._forget(name)
        if not self._beginnings:
            self.over = NORMAL, ""

    def _forget(self, name: str) -> None:
        self._beginnings.pop(name, None)
        self._voiced.discard(name)
        self._aligned.pop(name, None)
        self._ignored.pop(name, None)
        if self._is_closing and not self._beginnings:
            self.over = self.over or (NORMAL, "")

    def _leave_for(self, refusal: ApiError) -> None:
        """Closes the socket for the first reason there is."""
        self.over = self.over or (PROTOCOL.close_code(refusal), refusal.spec.code)

    def _aligned_in(self, name: str) -> AlignedContext:
        return self._aligned.setdefault(name, AlignedContext(from_start=self._from_start))

    def _silence(self) -> bytes:
        audio = named_format(self._query.output_format)
        return encode_whole(np.zeros(round(SILENCE_S * audio.sample_rate), np.float32), audio)
