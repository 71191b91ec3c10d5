"""Voice bodies: the bodies of requests about voices.

In:    JSON objects, the fields of a form
Out:   frozen models; VoiceMetadata, the expression of a blend
Never: a client's words in an error
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.errors import InvalidRequest
from pipeline.voices.records import MAX_LANGUAGES, MAX_NOTE_CHARS, MAX_TITLE_CHARS
from pipeline.voices.voice_names import MAX_NAME_CHARS
from serve.access.caller import Caller
from serve.config.bounded import GainDb, Seed
from serve.http.openapi import takes
from serve.speech.schemas.base import Body
from serve.voices.voice_maker import VoiceMetadata

MAX_RANDOM = 50

Text = Annotated[str, Field(max_length=MAX_NOTE_CHARS)]
Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})?$")]
Languages = Annotated[tuple[Language, ...], Field(max_length=MAX_LANGUAGES)]
Title = Annotated[str, Field(min_length=1, max_length=MAX_TITLE_CHARS)]


class BlendPart(Body):
    """One voice of a mixture."""

    voice: str = Field(min_length=1, max_length=80)
    weight: float = Field(gt=0, lt=1000)


class MetadataBody(Body):
    """The public metadata of a voice."""

    name: Title
    id: str | None = Field(None, description="A-Z a-z 0-9 . _ -; null: the name if it can be an id, else a random one")
    languages: Languages = ()
    description: Text = ""
    licence: Text = ""
    gain_db: GainDb | None = Field(None, description="null: the gain that brings the voice to the loudness of the others")

    def metadata(self, caller: Caller) -> VoiceMetadata:
        """Returns the metadata in its domain form, of a voice that belongs to its caller, who pays the preview."""
        fields = self.name, self.id, self.languages, self.description, self.licence, self.gain_db
        return VoiceMetadata(*fields, caller.writer, caller)


class BlendBody(MetadataBody):
    """POST /v1/audio/voices/blend."""

    blend: str | tuple[BlendPart, ...] = Field(description="blend:a(0.7)+b(0.3), or a list of voices and weights")

    @property
    def expression(self) -> str:
        """The blend written as the name of a voice."""
        return blend_expression(self.blend)


class NewVoiceBody(MetadataBody):
    """POST /v1/audio/voices as JSON: exactly one of seed, embedding and blend."""

    seed: Seed | None = None
    embedding: str | None = Field(None, max_length=MAX_NAME_CHARS, description="a speaker string of ChatTTS")
    blend: str | tuple[BlendPart, ...] | None = None


class EditBody(Body):
    """PATCH /v1/audio/voices/{id}: the fields to change, in a new version."""

    name: Title | None = None
    languages: Languages | None = None
    description: Text | None = None
    licence: Text | None = None
    gain_db: GainDb | None = None


class Wish(Body):
    """Which speakers to return."""

    like: str | None = Field(None, min_length=1, max_length=200)
    unlike: str | None = Field(None, min_length=1, max_length=200)


class RandomBody(Body):
    """POST /v1/audio/voices/random."""

    count: int = Field(1, ge=1, le=MAX_RANDOM)
    seed: Seed | None = Field(None, description="the first candidate; null: drawn")
    filter: Wish = Wish()


class FormBody(MetadataBody):
    """POST /v1/audio/voices as a form: a recording."""

    ref_text: str = Field(min_length=1, max_length=MAX_NOTE_CHARS, description="exact transcript of the recording")
    type: Literal["audio_sample"] = Field("audio_sample", description="as OpenAI's clients say what the form brings")


def takes_form() -> dict[str, Any]:
    """Returns the description of the two bodies of POST /v1/audio/voices."""
    described = takes(NewVoiceBody)
    form = FormBody.model_json_schema()
    form["properties"] |= {
        "audio_sample": {"type": "string", "format": "binary", "description": "WAV, FLAC, OGG or MP3, 3 to 30 s"},
        "consent": {"type": "string", "description": "true, or a statement of what the speaker has agreed to"},
        "languages": {"type": "string", "description": "separated by commas"},
    }
    form["required"] = [*form["required"], "audio_sample", "consent"]
    described["requestBody"]["content"]["multipart/form-data"] = {"schema": form}
    return described


def blend_expression(blend: str | tuple[BlendPart, ...]) -> str:
    if isinstance(blend, str):
        if not blend.startswith("blend:"):
            raise InvalidRequest("a blend is written blend:a(0.7)+b(0.3), or as a list of {voice, weight}", param="blend")
        return blend
    return "blend:" + "+".join(f"{part.voice}({part.weight:.6f})" for part in blend)
