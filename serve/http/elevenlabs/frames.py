"""Frames: what ElevenLabs' clients say over a WebSocket.

In:    the text of a frame
Out:   Frame; ApiError
Owns:  nothing
Never: a client's text in an error message
"""

import json
from typing import Any

from pydantic import AliasChoices, ConfigDict, Field

from serve.errors import bad_request
from serve.http.elevenlabs.translation import Dictionaries, VoiceSettings
from serve.http.schemas.conversation import parse_frame, read_fields
from serve.speech.schemas.base import Body


class Frame(Body):
    """One message. All kinds of messages have the same fields, which say what kind it is."""

    model_config = ConfigDict(extra="allow")

    text: str | None = None
    flush: bool | None = None
    context_id: str | None = Field(None, max_length=128, validation_alias=AliasChoices("context_id", "contextId"))
    close_context: bool | None = None
    close_socket: bool | None = None
    voice_settings: VoiceSettings | None = None
    pronunciation_dictionary_locators: Dictionaries | None = None
    generation_config: dict[str, Any] | None = None
    try_trigger_generation: bool | None = None

    @property
    def has_words(self) -> bool:
        """True if its text is more than the blank of an opening or a keep-alive."""
        return self.text is not None and self.text.strip() != ""


def read_frame(frame: str) -> Frame:
    """Parses and checks a message.

    Raises:
        ApiError: 400
    """
    fields = parse_frame(frame)
    if not isinstance(fields, dict):
        raise bad_request("invalid_type", "a message is a JSON object")
    return read_fields(Frame, fields)


def context_in(frame: str | None) -> str | None:
    """Returns the context that a refused message names, if it can be read."""
    try:
        fields = json.loads(frame or "")
    except (ValueError, RecursionError):
        return None
    named = (fields.get("context_id") or fields.get("contextId")) if isinstance(fields, dict) else None
    return named if isinstance(named, str) and len(named) <= 128 else None
