"""Dialogue session: text-to-dialogue over a WebSocket, any number of contexts, each with up to ten voices.

In:    frames
Out:   calls of a Conversation; messages
Owns:  the voices of each context
Never: a socket; a context of the conversation for one that has no text: clients keep one to keep the socket open
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.audio.formats import named_format
from pipeline.errors import AtCapacity
from serve.config.app_config import ConversationsConfig
from serve.errors import ApiError, bad_request
from serve.http.ignored_fields import ignored_fields
from serve.http.session import Message
from serve.protocols.elevenlabs.contexts_session import ContextsSession
from serve.protocols.elevenlabs.frames import DialogueFrame, read_frame
from serve.protocols.elevenlabs.markup import EXPRESSIVE
from serve.protocols.elevenlabs.protocol import message_of
from serve.protocols.elevenlabs.translation import SocketQuery, common_fields, settings_fields
from serve.speech.conversation.context import ContextSettings
from serve.speech.conversation.conversation import Conversation

_BYTES_PER_SAMPLE = {"pcm": 2, "ulaw": 1, "alaw": 1}
"""of the containers in which audio can be counted"""
LASTING = ("voices", "voice_settings", "pronunciation_dictionary_locators")
"""fields that a context keeps from its first message"""
_SNAKE = {"chars": "chars", "charStartTimesMs": "char_start_times_ms", "charDurationsMs": "char_durations_ms"}


@dataclass(frozen=True, slots=True)
class _Cast:
    """What a context keeps from its first message."""

    settings: ContextSettings
    first: DialogueFrame


class DialogueSession(ContextsSession[SocketQuery, _Cast]):
    """One client of the protocol for dialogues; see Session. Every error closes the socket."""

    refuses_per_context = True

    def __init__(self, query: Mapping[str, str], config: ConversationsConfig, request_id: str) -> None:
        super().__init__(SocketQuery, query, config, request_id, error_ends=True)

    async def obey(self, frame: str, conversation: Conversation) -> Message | None:
        """As Session says; nothing is confirmed in this protocol."""
        message = read_frame(DialogueFrame, frame)
        self._check_open()
        if message.context_id is not None:
            await self._act(message.context_id, message, conversation)
        elif not message.close_socket:
            raise bad_request("missing_field", "every message names its context", param="context_id")
        if message.close_socket:
            self._close_all(conversation)
        return None

    async def _act(self, name: str, message: DialogueFrame, conversation: Conversation) -> None:
        """Registers a context, or does what a later message of it says."""
        if name not in self._beginnings:
            self._register(name, message, conversation)
        elif any(getattr(message, kind) not in (None, getattr(self._beginnings[name].first, kind)) for kind in LASTING):
            raise bad_request("settings_changed", "a context keeps the voices, settings and dictionaries of its first message")
        else:
            unused = ignored_fields(_unused(message))
            conversation.check_ignored(list(unused), ())
            self._note_ignored(name, unused)
        for line in message.inputs or ():
            if line.voice_id not in (self._beginnings[name].first.voices or ()):
                raise bad_request("voice_not_registered", "voice_id is one of the voices of the context", param="inputs")
            if line.new_turn and conversation.is_open(name):
                conversation.flush(name)
            if line.text:
                self._open(name, conversation)
                await conversation.add(name, line.text, line.voice_id)
        if message.flush and conversation.is_open(name):
            conversation.flush(name)
        if message.close_context:
            self._open(name, conversation)
            conversation.close(name)

    def _register(self, name: str, message: DialogueFrame, conversation: Conversation) -> None:
        if not message.voices:
            raise bad_request("missing_field", "the first message of a context names its voices", param="voices")
        most = self._config.max_contexts
        if sum(not conversation.is_open(silent) for silent in self._beginnings) >= most:
            raise AtCapacity(f"{most} contexts without text are open", retry_after_s=1.0)
        ignored = {f"voice_settings.{name}": value for name, value in (message.voice_settings or {}).items()} | _unused(message)
        settings = self._settings(settings_fields(None, message.pronunciation_dictionary_locators) | ignored_fields(ignored))
        for voice in set(message.voices):
            conversation.check(settings.spoken_by(voice))
        self._beginnings[name] = _Cast(settings, message)

    def _open(self, name: str, conversation: Conversation) -> None:
        if not conversation.is_open(name):
            conversation.open(name, self._beginnings[name].settings)

    def _address_settings(self) -> ContextSettings:
        query = self._query
        speech = {
            **({"timestamps": "word"} if query.sync_alignment else {}),
            **common_fields(query, query.output_format),
            **ignored_fields(query.model_extra or {}),
        }
        return ContextSettings(speech, self._config.lead_s, sentences=True, joins_parts=True, markup=EXPRESSIVE)

    def _audio(self, name: str, data: bytes) -> Message:
        width = _BYTES_PER_SAMPLE.get(named_format(self._query.output_format).container)
        alignment = self._aligned_in(name).take(len(data) // width if width else 0)["alignment"]
        return {
            "audio": base64.b64encode(data).decode(),
            "alignment": alignment and {_SNAKE[field]: values for field, values in alignment.items()},
            "context_id": name,
            **self._ignored_in(name),
        }

    def _part_ended(self, name: str) -> Iterator[Message]:
        yield {"is_final_audio_for_turn": True, "context_id": name}

    def _final(self, name: str) -> Message:
        return {"is_final": True, "context_id": name, **self._ignored_in(name)}

    def _error(self, refusal: ApiError, name: str | None) -> Message:
        named = {} if name is None else {"context_id": name}
        return {**message_of(refusal, self._request_id), "param": refusal.param, **named}


def _unused(message: DialogueFrame) -> dict[str, bool]:
    """Returns the fields of a message, and of its lines, that no message has."""
    return dict.fromkeys(
        [*(f"inputs.{name}" for line in message.inputs or () for name in line.model_extra or {}), *(message.model_extra or {})],
        True,
    )
