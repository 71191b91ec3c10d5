"""Frames: what ElevenLabs' clients say over a WebSocket.

In:    the text of a frame
Out:   Frame, DialogueFrame; ApiError
Never: a client's text in an error message
"""

from typing import Annotated, Any

from pydantic import AliasChoices, ConfigDict, Field

from pipeline.text.markup.ssml_reader import MAX_TURNS
from serve.http.anteroom import KEY_FIELDS
from serve.http.bounded_fields import bounded, object_in, parse_object
from serve.protocols.elevenlabs.dialogue import MOST_VOICES
from serve.protocols.elevenlabs.protocol import context_of
from serve.protocols.elevenlabs.translation import Dictionaries, VoiceSettings
from serve.protocols.openai.schemas.conversation import read_fields
from serve.speech.schemas.base import B, Body


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


class Line(Body):
    """What one voice says next in a dialogue."""

    model_config = ConfigDict(extra="allow")

    text: str
    voice_id: str
    new_turn: bool | None = None


class DialogueFrame(Body):
    """One message of a dialogue. The first one of a context names its voices."""

    model_config = ConfigDict(extra="allow")

    context_id: str | None = Field(None, min_length=1, max_length=128)
    voices: Annotated[list[str], Field(min_length=1, max_length=MOST_VOICES)] | None = None
    voice_settings: dict[str, Any] | None = None
    pronunciation_dictionary_locators: Dictionaries | None = None
    inputs: Annotated[list[Line], Field(max_length=MAX_TURNS)] | None = None
    flush: bool | None = None
    keep_alive: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None


def read_frame(kind: type[B], frame: str) -> B:
    """Parses and checks a message.

    Raises:
        ApiError: 400
    """
    fields = parse_object(frame)
    for name in KEY_FIELDS:
        fields.pop(name, None)  # a key is no field: where one is needed, it has been read
    if kind is DialogueFrame and isinstance(lines := fields.get("inputs"), list):
        fields["inputs"] = [bounded(line, Line) if isinstance(line, dict) else line for line in lines[: MAX_TURNS + 1]]
    return read_fields(kind, fields)


def context_in(frame: str | None) -> str | None:
    """Returns the context that a refused message names, if it can be read."""
    return context_of(object_in(frame))
