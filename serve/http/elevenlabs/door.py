"""ElevenLabs door: stream-input, one context per socket, and multi-stream-input, any number.

In:    frames, ConversationEvents, errors
Out:   calls of a Conversation; messages
Owns:  which contexts have sent audio, and the times of their characters
Never: a socket; an end without audio, which clients take for a failure
"""

import base64
from collections.abc import Iterator, Mapping

import numpy as np

from pipeline.audio.encode import encode_whole
from pipeline.audio.formats import named_format
from serve.config.app_config import ConversationsConfig
from serve.errors import bad_request, to_api_error
from serve.http.conversation_writer import MOST_AUDIO_BYTES
from serve.http.door import Message
from serve.http.elevenlabs.aligned_context import AlignedContext
from serve.http.elevenlabs.errors import close_code_of, message_of
from serve.http.elevenlabs.frames import Frame, context_in, read_frame
from serve.http.elevenlabs.translation import SocketQuery, common_fields, ignored_fields, settings_fields
from serve.speech.conversation.context import ContextSettings
from serve.speech.conversation.conversation import Conversation
from serve.speech.conversation.events import (
    ContextClosed,
    ContextFailed,
    ConversationEvent,
    PartSkipped,
    PartSpoken,
)
from serve.speech.events import Audio, Finished, Started, Timed
from serve.speech.schemas.base import read_values

NORMAL = 1000  # RFC 6455
CONTAINERS = ("mp3", "opus", "pcm", "ulaw", "alaw")
"""what may be sent part after part; other containers have a header that says how long they are"""
SILENCE_S = 0.1  # of a context that has nothing to say
UNNAMED = ""
"""context of messages that name none"""


class ElevenLabsDoor:
    """One client of the protocol; see Door."""

    def __init__(
        self, voice: str, query: Mapping[str, str], config: ConversationsConfig, request_id: str, *, has_contexts: bool
    ) -> None:
        """
        Args:
            has_contexts: multi-stream-input; else stream-input, which has one context and ends with it.
        """
        self.idle_s = config.idle_timeout_s
        self.over: tuple[int, str] | None = None
        self._voice = voice
        self._raw_query = query
        self._query = SocketQuery()
        self._config = config
        self._request_id = request_id
        self._has_contexts = has_contexts
        self._is_closing = False
        self._first: dict[str, Message] = {}
        """context that is open -> the fields of its first message that cannot change"""
        self._voiced: set[str] = set()
        self._aligned: dict[str, AlignedContext] = {}
        self._ignored: dict[str, list[str]] = {}
        """context -> fields without effect that its next message names"""

    @property
    def tells_contexts(self) -> bool:
        """As Door says."""
        return self._has_contexts

    def begin(self, conversation: Conversation) -> None:
        """As Door says: refuses a socket whose address is wrong."""
        try:
            self._query = read_values(SocketQuery, dict(self._raw_query))
            if self._query.enable_ssml_parsing:
                raise bad_request(
                    "ssml_not_supported",
                    "a text that is still being written is no SSML document: leave enable_ssml_parsing out",
                )
            conversation.check(self._settings(Frame()))
            if named_format(self._query.output_format).container not in CONTAINERS:
                raise bad_request("unsupported_format", f"over a WebSocket the formats are {', '.join(CONTAINERS)}")
        except Exception as error:
            self.over = close_code_of(to_api_error(error)), to_api_error(error).spec.code
            raise
        self.idle_s = min(self.idle_s, self._query.inactivity_timeout)

    async def obey(self, frame: str, conversation: Conversation) -> Message | None:
        """As Door says; nothing is confirmed in this protocol."""
        said = read_frame(frame)
        name = (said.context_id or UNNAMED) if self._has_contexts else UNNAMED
        if self._is_closing:
            raise bad_request("socket_closing", "the text of this socket has ended: it takes no more")
        if not self._has_contexts and said.text == "" and not said.flush:
            self._end(conversation)
            return None
        closes = self._has_contexts and (said.close_socket or said.close_context)
        if said.has_words or said.flush or not closes:
            self._speak(name, said, conversation)
        if closes and said.close_socket:
            self._close_all(conversation)
        elif closes and conversation.is_open(name):
            conversation.close(name, rest=False)
        return None

    def messages(self, event: ConversationEvent) -> Iterator[Message]:
        """As Door says."""
        match event:
            case PartSpoken(event=Started() as started):
                self._ignored[event.context] = list(started.job.ignored)
                self._aligned_in(event.context).begin(event.part, event.from_s, started.job.audio.sample_rate)
            case PartSpoken(event=Timed(items=items)):
                self._aligned_in(event.context).add(items)
            case PartSpoken(event=Audio(data=data)):
                self._voiced.add(event.context)
                for place in range(0, len(data), MOST_AUDIO_BYTES):
                    yield self._audio(event.context, data[place : place + MOST_AUDIO_BYTES])
            case PartSpoken(event=Finished(audio_s=audio_s)):
                if self._aligned_in(event.context).finish(audio_s):
                    yield self._audio(event.context, b"")
            case PartSkipped():
                self._aligned_in(event.context).skip(event.part)
            case ContextClosed():
                if event.context not in self._voiced:
                    yield self._audio(event.context, self._silence())
                yield self._final(event.context)
                self._forget(event.context)
            case ContextFailed():
                refusal = to_api_error(event.error)
                yield message_of(refusal, self._request_id, self._id(event.context))
                self._forget(event.context)
                if not self._has_contexts:
                    self.over = close_code_of(refusal), refusal.spec.code

    def refusal(self, error: Exception, frame: str | None) -> Message:
        """As Door says; it ends a socket of one context."""
        refusal = to_api_error(error)
        if not self._has_contexts and not self._is_closing:
            self.over = self.over or (close_code_of(refusal), refusal.spec.code)
        return message_of(refusal, self._request_id, context_in(frame) if self._has_contexts else None)

    def farewell(self) -> Message | None:
        """Returns None: the close code says it."""
        return None

    def _speak(self, name: str, said: Frame, conversation: Conversation) -> None:
        """Opens a context if need be, and adds to it."""
        opens = not conversation.is_open(name)
        if said.text is None and not said.flush:
            raise bad_request("missing_field", "text is required", param="text")
        if opens and not said.text:
            return  # a flush or a keep-alive of what is over
        if opens:
            conversation.open(name, self._settings(said))
            self._first[name] = _lasting(said)
        elif any(self._first[name].get(field) != value for field, value in _lasting(said).items()):
            raise bad_request("settings_changed", "a context keeps the settings and dictionaries of its first message")
        if said.text and (said.has_words or not opens):
            conversation.add(name, said.text)
        if said.flush or (self._query.auto_mode and said.has_words):
            conversation.flush(name)

    def _end(self, conversation: Conversation) -> None:
        """Ends the one context of a socket, and with it the socket."""
        if conversation.is_open(UNNAMED):
            conversation.close(UNNAMED)
            self._is_closing = True
        else:
            self.over = NORMAL, ""

    def _close_all(self, conversation: Conversation) -> None:
        """Speaks what there is, then closes the socket."""
        self._is_closing = True
        for name in self._first:
            if conversation.is_open(name):
                conversation.close(name)
        if not self._first:
            self.over = NORMAL, ""

    def _forget(self, name: str) -> None:
        self._first.pop(name, None)
        self._voiced.discard(name)
        self._aligned.pop(name, None)
        self._ignored.pop(name, None)
        if self._is_closing and not self._first:
            self.over = NORMAL, ""

    def _settings(self, said: Frame) -> ContextSettings:
        query = self._query
        without_effect = {
            **(query.model_extra or {}),
            "context_id": None if self._has_contexts else said.context_id,
            "generation_config": said.generation_config,
            "try_trigger_generation": said.try_trigger_generation,
            **(said.model_extra or {}),
        }
        speech = {
            "voice": self._voice,
            "timestamps": "word",
            **common_fields(query, query.output_format),
            **settings_fields(said.voice_settings, said.pronunciation_dictionary_locators),
            **ignored_fields(without_effect),
        }
        return ContextSettings(speech, self._config.lead_s, sentences=not query.auto_mode)

    def _audio(self, context: str, data: bytes) -> Message:
        ignored = self._ignored.pop(context, [])
        return {
            "audio": base64.b64encode(data).decode(),
            "isFinal": None,
            **self._aligned_in(context).take(),
            **self._named(context),
            **({"ignored_fields": ignored} if ignored else {}),
        }

    def _aligned_in(self, context: str) -> AlignedContext:
        return self._aligned.setdefault(context, AlignedContext(from_start=self._query.sync_alignment))

    def _final(self, context: str) -> Message:
        return {"audio": None, "isFinal": True, "normalizedAlignment": None, "alignment": None, **self._named(context)}

    def _silence(self) -> bytes:
        audio = named_format(self._query.output_format)
        return encode_whole(np.zeros(round(SILENCE_S * audio.sample_rate), np.float32), audio)

    def _named(self, context: str) -> Message:
        return {"contextId": self._id(context), "context_id": self._id(context)} if self._has_contexts else {}

    def _id(self, context: str) -> str | None:
        return context if self._has_contexts and context != UNNAMED else None


def _lasting(said: Frame) -> Message:
    """Returns the fields that a context keeps from its first message, as far as a message has them."""
    kept = {
        "voice_settings": said.voice_settings and said.voice_settings.model_dump(exclude_none=True),
        "pronunciation_dictionary_locators": said.pronunciation_dictionary_locators,
    }
    return {name: value for name, value in kept.items() if value}
