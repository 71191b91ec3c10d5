"""Wyoming messages: what clients say, checked, and what they are told.

In:    Events of the wyoming package, VoiceInfos, errors
Out:   fields of SpeechBody; Events
Never: a socket; a field without effect that audio-start does not name
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import ConfigDict
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Attribution, Info, TtsProgram, TtsVoice

from pipeline.voices.catalogue import VoiceInfo
from serve.errors import to_api_error
from serve.http.about import NAME, version
from serve.http.bounded_fields import bounded
from serve.http.ignored_fields import ignored_fields, named_fields
from serve.speech.model_selection import ModelSelector
from serve.speech.schemas.base import B, Body, read_values

PROGRAM = "chattts"
RATE, WIDTH, CHANNELS = 24_000, 2, 1
WITHOUT_MEANING = frozenset({"context"})
"""fields that ask for nothing: what the next interaction is about"""


class WyomingVoice(Body):
    """Who is to speak. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    name: str | None = None
    language: str | None = None


class SynthesizeStartData(Body):
    """The data of synthesize-start. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    voice: WyomingVoice | None = None
    text_format: Literal["text", "ssml"] | None = None


class SynthesizeData(SynthesizeStartData):
    """The data of synthesize."""

    text: str


class ChunkData(Body):
    """The data of synthesize-chunk."""

    model_config = ConfigDict(extra="allow")

    text: str


class PingData(Body):
    """The data of ping."""

    model_config = ConfigDict(extra="allow")

    text: str | None = None


class ProgramData(Body):
    """The data of select-program."""

    model_config = ConfigDict(extra="allow")

    name: str


def checked(kind: type[B], data: dict[str, Any]) -> B:
    """Returns the checked data of an event, with a few of its unknown fields.

    Raises:
        ApiError: 400
    """
    return read_values(kind, bounded(data, kind))


def speech_fields(data: dict[str, Any], kind: type[SynthesizeStartData]) -> dict[str, Any]:
    """Returns the fields of POST /v1/audio/speech that ask for the same.

    Raises:
        ApiError: 400
    """
    voice_fields = data.get("voice")
    if isinstance(voice_fields, dict):
        data = {**data, "voice": bounded(voice_fields, WyomingVoice)}
    options = checked(kind, data)
    voice = options.voice or WyomingVoice()
    unknown = {name: value for name, value in (options.model_extra or {}).items() if name not in WITHOUT_MEANING}
    fields = {
        "input": options.text if isinstance(options, SynthesizeData) else None,
        "input_type": options.text_format,
        "voice": voice.name,
        "language": voice.language,
        "response_format": "pcm",
        "sample_rate": RATE,
        **ignored_fields(unknown, "data"),
        **ignored_fields(voice.model_extra or {}, "voice"),
    }
    return {name: value for name, value in fields.items() if value is not None}


def info(voices: Sequence[VoiceInfo], models: ModelSelector) -> Event:
    """Returns what describes this service; a voice without languages has those of the checkpoint."""
    by = Attribution("2Noise", "https://github.com/2noise/ChatTTS")
    cards = [
        TtsVoice(
            name=voice.name,
            attribution=by,
            installed=True,
            description=voice.title or voice.name,
            version=None if voice.version is None else str(voice.version),
            languages=list(voice.languages or models.languages()),
        )
        for voice in voices
    ]
    program = TtsProgram(
        name=PROGRAM,
        attribution=by,
        installed=True,
        description=NAME,
        version=version(),
        voices=cards,
        supports_synthesize_streaming=True,
    )
    return Info(tts=[program]).event()


def audio_start(ignored: Sequence[str]) -> Event:
    """Returns the event before the audio; it names the fields without effect, if there are any."""
    named = {"ignored_fields": named_fields(ignored)} if ignored else {}
    return Event("audio-start", {"rate": RATE, "width": WIDTH, "channels": CHANNELS, "timestamp": 0, **named})


def error_event(error: BaseException) -> Event:
    """Returns the event about an error, with the service's own code."""
    refusal = to_api_error(error)
    return Error(text=refusal.message, code=refusal.spec.code).event()
