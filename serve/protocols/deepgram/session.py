"""Deepgram session: text in messages, audio in binary frames, and an interruption that frees the model.

In:    frames, ConversationEvents, errors
Out:   calls of a Conversation; messages
Owns:  which flushes are to be confirmed
Never: a socket; a confirmation before the last byte of what it confirms; audio of what was cleared behind its confirmation
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import ConfigDict

from pipeline.errors import AtCapacity
from pipeline.voices.voice_names import display_name
from serve.config.app_config import ConversationsConfig
from serve.errors import ApiError, bad_request, to_api_error
from serve.http.bounded_fields import parse_object
from serve.http.close_codes import NORMAL
from serve.http.conversation_writer import audio_pieces
from serve.http.ignored_fields import named_fields
from serve.http.session import Message
from serve.protocols.deepgram.markup import TABLE
from serve.protocols.deepgram.protocol import PROTOCOL, message_of
from serve.protocols.deepgram.translation import model_uuid, socket_fields
from serve.protocols.openai.schemas.conversation import read_fields
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
from serve.speech.events import Audio, Finished
from serve.speech.schemas.base import Body

MOST_FLUSHES = 256
"""that are not confirmed"""
CONTEXT = "speak"
"""the one context of a socket; it begins anew after an interruption"""


class DeepgramMessage(Body):
    """What a client says. `text` belongs to Speak alone."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["Speak", "Flush", "Clear", "Close"]
    text: str | None = None


class SpeakSession(ABC):
    """What sessions of both versions have in common; see Session."""

    refuses_per_context = False

    def __init__(self, query: Mapping[str, str], config: ConversationsConfig, request_id: str) -> None:
        self.idle_s = config.idle_timeout_s
        self.idle_code = NORMAL
        self.over: tuple[int, str] | None = None
        self._query = query
        self._config = config
        self._request_id = request_id
        self._settings = ContextSettings({}, config.lead_s)
        self._has_begun = False
        self._done = 0  # parts of the context that were spoken or skipped

    def begin(self, conversation: Conversation) -> Message:
        """As Session says; the greeting names the voice, the version of the model, and what has no effect."""
        try:
            self._settings = ContextSettings(socket_fields(self._query), self._config.lead_s, sentences=True, markup=TABLE)
            request, ignored = conversation.check(self._settings)
        except Exception as error:
            self._leave_for(to_api_error(error))
            raise
        self._has_begun = True
        voice = display_name(request.voice)
        return {
            **self._greeting(model_uuid(voice, request.model)),
            "request_id": self._request_id,
            "model_name": voice,
            "model_version": request.model,
            **({"ignored_fields": named_fields(ignored)} if ignored else {}),
        }

    def refusal(self, error: Exception, frame: str | None) -> Message:
        """As Session says; a refused message is a warning, a refused socket an error."""
        return message_of(to_api_error(error), self._request_id, ends=not self._has_begun)

    def farewell(self) -> Message | None:
        """Returns None: the close code says it."""
        return None

    @abstractmethod
    def _greeting(self, uuid: str) -> Message:
        """Returns the fields of the first message that its version has alone."""

    def _failed(self, event: ContextFailed) -> Message:
        """Closes the socket; returns why."""
        refusal = to_api_error(event.error)
        self._leave_for(refusal)
        return message_of(refusal, self._request_id, ends=True)

    def _leave_for(self, refusal: ApiError) -> None:
        self.over = PROTOCOL.close_code(refusal), refusal.spec.code


class DeepgramSession(SpeakSession):
    """One client of version 1."""

    def __init__(self, query: Mapping[str, str], config: ConversationsConfig, request_id: str) -> None:
        super().__init__(query, config, request_id)
        self._flushes: deque[int] = deque()
        """for each flush that is not confirmed, how many parts were complete with it; at most MOST_FLUSHES"""
        self._confirmed = 0  # flushes and interruptions, which share their numbers
        self._is_closing = False  # whether the socket closes behind the last of these flushes

    def _greeting(self, uuid: str) -> Message:
        return {"type": "Metadata", "model_uuid": uuid}

    async def obey(self, frame: str, conversation: Conversation) -> Message | None:
        """As Session says; a flush of what is spoken already is confirmed at once, and a close behind what was flushed."""
        message = read_fields(DeepgramMessage, parse_object(frame))
        if self._is_closing and message.type in ("Speak", "Flush"):
            raise bad_request("socket_closing", "the socket is closing: it takes no more text")
        if (message.text is None) is (message.type == "Speak"):
            raise bad_request(
                "missing_field" if message.text is None else "unknown_field", "text belongs to Speak", param="text"
            )
        match message.type:
            case "Speak":
                if not conversation.is_open(CONTEXT):
                    self._done = 0
                    conversation.open(CONTEXT, self._settings)
                await conversation.add(CONTEXT, message.text or "")
            case "Flush":
                return self._flush(conversation)
            case "Close" if self._flushes and not self._is_closing:
                self._is_closing = True
            case "Clear" if not self._is_closing:
                self._flushes.clear()
                if not conversation.is_open(CONTEXT):
                    return self._confirmation("Cleared")
                await conversation.cancel(CONTEXT, None)
            case "Clear" | "Close":
                self.over = NORMAL, ""
        return None

    def messages(self, event: ConversationEvent) -> Iterator[Message | bytes]:
        """As Session says."""
        match event:
            case PartSpoken(event=Audio(data=data)):
                yield from audio_pieces(data)
            case PartSpoken(event=Finished()):
                yield from self._part_done()
            case PartSkipped():
                yield message_of(to_api_error(event.error), self._request_id, ends=False)
                yield from self._part_done()
            case ContextCancelled():
                yield self._confirmation("Cleared")
            case ContextFailed():
                yield self._failed(event)
            case PartSpoken() | ContextClosed():
                pass

    def _flush(self, conversation: Conversation) -> Message | None:
        if conversation.is_open(CONTEXT):
            conversation.flush(CONTEXT)
            complete = conversation.parts(CONTEXT)
            if complete > self._done:
                if len(self._flushes) >= MOST_FLUSHES:
                    raise AtCapacity(f"{MOST_FLUSHES} flushes wait to be confirmed: send the next one later", retry_after_s=1.0)
                self._flushes.append(complete)
                return None
        return self._confirmation("Flushed")

    def _part_done(self) -> Iterator[Message]:
        self._done += 1
        while self._flushes and self._flushes[0] <= self._done:
            self._flushes.popleft()
            yield self._confirmation("Flushed")
        if self._is_closing and not self._flushes:
            self.over = NORMAL, ""

    def _confirmation(self, kind: str) -> Message:
        self._confirmed += 1
        return {"type": kind, "sequence_id": self._confirmed - 1}
