"""Translation: what ElevenLabs' clients ask for, as fields of POST /v1/audio/speech.

In:    bodies, queries and voice settings
Out:   fields of SpeechBody; ApiError
Never: a field without effect that the reply does not name; a client's text in an error message
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import ConfigDict, Field

from pipeline.text.markup.marked_text import marked
from serve.http.ignored_fields import ignored_fields
from serve.protocols.elevenlabs.markup import table_of
from serve.speech.schemas.base import Body, read_body, read_values

THEIR_MODELS = "eleven_"
"""what the ids of their models begin with; every one of them means the first model here"""
DEFAULT_FORMAT = "mp3_44100_128"


class VoiceSettings(Body):
    """How a voice speaks; the model here has nothing to set but the speed."""

    model_config = ConfigDict(extra="allow")

    speed: float | None = None


class Dictionary(Body):
    """A stored lexicon. It has no versions here."""

    pronunciation_dictionary_id: str
    version_id: str | None = None


Dictionaries = Annotated[list[Dictionary], Field(max_length=3)]


class TextToSpeechBody(Body):
    """POST /v1/text-to-speech/{voice_id}. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    text: str = Field(min_length=1)
    model_id: str | None = Field(None, description="one of GET /v1/models; ids that begin with eleven_ mean the first")
    language_code: str | None = Field(None, description="as language of POST /v1/audio/speech")
    voice_settings: VoiceSettings | None = Field(None, description="speed has an effect, the others are named as ignored")
    pronunciation_dictionary_locators: Dictionaries | None = Field(None, description="ids of stored lexicons")
    seed: int | None = None
    apply_text_normalization: Literal["auto", "on", "off"] | None = None


class HttpQuery(Body):
    """The query of the HTTP routes. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    output_format: str = DEFAULT_FORMAT
    enable_logging: bool = True  # texts are never logged, whatever it says
    strict: str | None = None  # read with the headers


class SocketQuery(Body):
    """What the queries of all WebSockets have. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    output_format: str = DEFAULT_FORMAT
    model_id: str | None = None
    language_code: str | None = None
    seed: int | None = None
    apply_text_normalization: Literal["auto", "on", "off"] | None = None
    enable_logging: bool = True
    strict: str | None = None
    sync_alignment: bool = False


class TextSocketQuery(SocketQuery):
    """The query of stream-input and of multi-stream-input for texts."""

    enable_ssml_parsing: bool = False  # single tags are read whatever it says
    auto_mode: bool = False
    inactivity_timeout: float = Field(20.0, gt=0, le=180)


def speech_values(raw: bytes, voice: str, query: Mapping[str, str], *, stream: bool, timed: bool = False) -> dict[str, Any]:
    """Returns the fields of POST /v1/audio/speech that asks for the same, with the times of words if it is `timed`.

    Raises:
        ApiError: 400
    """
    body, options = read_body(TextToSpeechBody, raw), read_values(HttpQuery, dict(query))
    return {
        **marked(body.text, table_of(body.model_id)),
        "voice": voice,
        "stream": stream,
        **({"timestamps": "word"} if timed else {}),
        **common_fields(body, options.output_format),
        **settings_fields(body.voice_settings, body.pronunciation_dictionary_locators),
        **ignored_fields(body.model_extra or {}),
        **ignored_fields(options.model_extra or {}),
    }


class CommonOptions(Protocol):
    """The fields that bodies and sockets have in common."""

    @property
    def model_id(self) -> str | None: ...
    @property
    def language_code(self) -> str | None: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def apply_text_normalization(self) -> str | None: ...


def common_fields(options: CommonOptions, output_format: str) -> dict[str, Any]:
    """Returns the fields that bodies and sockets say in the same words."""
    model = options.model_id or THEIR_MODELS
    fields = {
        "output_format": output_format,
        "model": None if model.startswith(THEIR_MODELS) else model,
        "language": options.language_code or None,
        "seed": options.seed,
        "apply_text_normalization": options.apply_text_normalization,
    }
    return {name: value for name, value in fields.items() if value is not None}


def settings_fields(settings: VoiceSettings | None, dictionaries: list[Dictionary] | None) -> dict[str, Any]:
    """Returns the fields of voice settings and pronunciation dictionaries."""
    fields: dict[str, Any] = {}
    if settings is not None:
        fields |= ignored_fields({f"voice_settings.{name}": value for name, value in (settings.model_extra or {}).items()})
        if settings.speed is not None:
            fields["speed"] = settings.speed
    if dictionaries:
        fields["lexicon"] = [dictionary.pronunciation_dictionary_id for dictionary in dictionaries]
    return fields
