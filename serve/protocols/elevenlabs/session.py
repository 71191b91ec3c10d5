"""ElevenLabs session: stream-input, one context per socket, and multi-stream-input, any number.

In:    frames
Out:   calls of a Conversation; messages
Never: a socket
"""

import base64
from collections.abc import Mapping

from serve.config.app_config import ConversationsConfig
from serve.errors import ApiError, bad_request
from serve.http.close_codes import NORMAL, POLICY_VIOLATION
from serve.http.ignored_fields import ignored_fields
from serve.http.session import Message
from serve.protocols.elevenlabs.contexts_session import ContextsSession
from serve.protocols.elevenlabs.frames import Frame, read_frame
from serve.protocols.elevenlabs.markup import table_of
from serve.protocols.elevenlabs.protocol import message_of
from serve.protocols.elevenlabs.translation import TextSocketQuery, common_fields, settings_fields
from serve.speech.conversation.context import ContextSettings
from serve.speech.conversation.conversation import Conversation

UNNAMED = ""
"""context of messages that name none"""
WITHOUT_EFFECT = ("generation_config", "try_trigger_generation")


class ElevenLabsSession(ContextsSession[TextSocketQuery, Message]):
    """One client of the protocol for texts; see Session. A context keeps the fields of its first message that cannot change."""

    def __init__(
        self, voice: str, query: Mapping[str, str], config: ConversationsConfig, request_id: str, *, has_contexts: bool
    ) -> None:
        """
        Args:
            has_contexts: multi-stream-input; else stream-input, which has one context and ends with it.
        """
        super().__init__(TextSocketQuery, query, config, request_id, error_ends=not has_contexts)
        self._voice = voice
        self._has_contexts = has_contexts

    @property
    def refuses_per_context(self) -> bool:
        """As Session says."""
        return self._has_contexts

    def begin(self, conversation: Conversation) -> None:
        """As Session says: refuses a socket whose address is wrong."""
        super().begin(conversation)
        self.idle_s = min(self.idle_s, self._query.inactivity_timeout)
        self.idle_code = NORMAL if self._has_contexts else POLICY_VIOLATION  # its one text has not ended
        self._from_start = self._query.sync_alignment

    async def obey(self, frame: str, conversation: Conversation) -> Message | None:
        """As Session says; nothing is confirmed in this protocol."""
        message = read_frame(Frame, frame)
        name = (message.context_id or UNNAMED) if self._has_contexts else UNNAMED
        self._check_open()
        if conversation.is_open(name):  # the first message is looked at where it opens the context
            unused = ignored_fields(self._without_effect(message))
            conversation.check_ignored(list(unused), WITHOUT_EFFECT)
            self._note_ignored(name, unused)
        if not self._has_contexts and message.text == "" and not message.flush:
            self._end(conversation)
            return None
        closes = self._has_contexts and (message.close_socket or message.close_context)
        if message.has_words or message.flush or not closes:
            await self._speak(name, message, conversation)
        if closes and message.close_socket:
            self._close_all(conversation)
        elif closes and conversation.is_open(name):
            conversation.close(name, rest=False)
        return None

    async def _speak(self, name: str, message: Frame, conversation: Conversation) -> None:
        """Opens a context if need be, and adds to it."""
        opens = not conversation.is_open(name)
        if message.text is None and not message.flush:
            raise bad_request("missing_field", "text is required", param="text")
        if opens and not message.text:
            return  # a flush or a keep-alive of what is over
        if opens:
            own = settings_fields(message.voice_settings, message.pronunciation_dictionary_locators)
            conversation.open(name, self._settings(own | ignored_fields(self._without_effect(message))))
            self._beginnings[name] = _lasting(message)
        elif any(self._beginnings[name].get(field) != value for field, value in _lasting(message).items()):
            raise bad_request("settings_changed", "a context keeps the settings and dictionaries of its first message")
        if message.text and (message.has_words or not opens):
            await conversation.add(name, message.text)
        if message.flush or (self._query.auto_mode and message.has_words):
            conversation.flush(name)

    def _end(self, conversation: Conversation) -> None:
        """Ends the one context of a socket, and with it the socket."""
        if conversation.is_open(UNNAMED):
            conversation.close(UNNAMED)
            self._is_closing = True
        else:
            self.over = NORMAL, ""

    def _address_settings(self) -> ContextSettings:
        query = self._query
        speech = {
            "voice": self._voice,
            "timestamps": "word",
            **common_fields(query, query.output_format),
            **ignored_fields(query.model_extra or {}),
        }
        markup = table_of(query.model_id)
        return ContextSettings(speech, self._config.lead_s, sentences=not query.auto_mode, joins_parts=True, markup=markup)

    def _without_effect(self, message: Frame) -> Message:
        """Returns the fields of a message that have no effect, set or not."""
        return {
            "context_id": None if self._has_contexts else message.context_id,
            **{name: getattr(message, name) for name in WITHOUT_EFFECT},
            **(message.model_extra or {}),
        }

    def _audio(self, name: str, data: bytes) -> Message:
        return {
            "audio": base64.b64encode(data).decode(),
            "isFinal": None,
            **self._aligned_in(name).take(),
            **self._named(name),
            **self._ignored_in(name),
        }

    def _final(self, name: str) -> Message:
        return {
            "audio": None,
            "isFinal": True,
            "normalizedAlignment": None,
            "alignment": None,
            **self._named(name),
            **self._ignored_in(name),
        }

    def _error(self, refusal: ApiError, name: str | None) -> Message:
        return message_of(refusal, self._request_id, (name or None) if self._has_contexts else None)

    def _named(self, name: str) -> Message:
        context = None if name == UNNAMED else name
        return {"contextId": context, "context_id": context} if self._has_contexts else {}


def _lasting(message: Frame) -> Message:
    """Returns the fields that a context keeps from its first message, as far as a message has them."""
    fields = {
        "voice_settings": message.voice_settings and message.voice_settings.model_dump(exclude_none=True),
        "pronunciation_dictionary_locators": message.pronunciation_dictionary_locators,
    }
    return {name: value for name, value in fields.items() if value}
