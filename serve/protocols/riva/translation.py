"""Riva translation: requests as fields of POST /v1/audio/speech, and what clients are told.

In:    SynthesizeSpeechRequests, TimedItems, VoiceInfos, errors
Out:   fields of SpeechBody, messages, status codes
Never: a field without effect that is not named; a client's text in an error
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import grpc
from pydantic import ConfigDict, Field

from pipeline.spec import SAMPLE_RATE
from pipeline.types import TimedItem
from pipeline.voices.catalogue import VoiceInfo
from serve.errors import ApiError, ErrorSpec, bad_request
from serve.http.bounded_fields import bounded
from serve.http.ignored_fields import ignored_fields
from serve.protocols.riva.protocol import RivaSynthesisConfigResponse, SynthesizeSpeechResponse
from serve.speech.job import SpeechJob
from serve.speech.model_selection import ModelSelector
from serve.speech.schemas.base import Body, read_values
from serve.speech.times import times_fields

FORMATS: Mapping[int, str] = {0: "pcm", 1: "pcm", 2: "flac", 3: "ulaw", 4: "opus", 20: "alaw"}
"""AudioEncoding -> response_format; samples have no header, as Riva's have none"""
STATUSES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
PINYIN = re.compile(r"[a-zü:]+[1-5](?: [a-zü:]+[1-5])*")
PHONEMES = re.compile(r"[\u0250-\u02ff/@{}\[\]]")
STYLED = re.compile(r"(.*Magpie.*?)[.-](?:Angry|Calm|Disgusted|Fearful|Happy|Neutral|Sad|PleasantSurprised)", re.IGNORECASE)
"""a name of a voice of Magpie's with a style, which no voice here has"""
MOST_DICTIONARY_CHARS = 20_000


class Configuration(Body):
    """`custom_configuration`: fields of this service that Riva has not. Unknown ones are kept, so that they can be named."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    speed: float | None = None
    seed: int | None = None
    priority: str | None = None
    latency: Literal["exact", "low"] | None = None
    deadline_ms: int | None = None
    consent: str | None = Field(None, description="what the speaker of a zero-shot prompt has agreed to")


def configuration_of(request: Any) -> Configuration:
    """Returns the checked `custom_configuration`.

    Raises:
        ApiError: 400
    """
    return read_values(Configuration, bounded(request.custom_configuration, Configuration))


def speech_fields(request: Any, *, stream: bool) -> dict[str, Any]:
    """Returns the fields of POST /v1/audio/speech that ask for the same.

    Raises:
        ApiError: 400
    """
    options = configuration_of(request)
    if request.encoding not in FORMATS:
        raise bad_request("unsupported_format", "encoding is none of AudioEncoding", param="encoding")
    unknown = dict(options.model_extra or {})
    if request.HasField("zero_shot_data") and request.zero_shot_data.quality:
        unknown["zero_shot_data.quality"] = True
    if styled := STYLED.fullmatch(request.voice_name):
        unknown["voice_name.style"] = True
    fields = {
        "input": request.text,
        "input_type": "ssml" if request.text.lstrip()[:6] == "<speak" else None,
        "voice": (styled[1] if styled else request.voice_name) or None,
        "language": request.language_code or None,
        "response_format": FORMATS[request.encoding],
        "sample_rate": request.sample_rate_hz or None,
        "lexicon": lexicon_of(request.custom_dictionary) or None,
        "timestamps": "word" if request.enable_word_time_offsets else None,
        "stream": stream,
        **options.model_dump(include=set(Configuration.model_fields) - {"consent"}),
        **ignored_fields(unknown, "custom_configuration"),
    }
    return {name: value for name, value in fields.items() if value is not None}


def lexicon_of(dictionary: str) -> dict[str, Any]:
    """Returns `custom_dictionary`, "word  sound,word  sound", as a lexicon: a sound is pinyin or other words.

    Raises:
        ApiError: 400
    """
    if len(dictionary) > MOST_DICTIONARY_CHARS:
        raise bad_request(
            "out_of_range", f"custom_dictionary has at most {MOST_DICTIONARY_CHARS} characters", param="custom_dictionary"
        )
    lexicon: dict[str, Any] = {}
    for entry in filter(str.strip, dictionary.split(",")):
        word, separator, sound = entry.strip().partition("  ")
        if not separator or not sound.strip():
            raise bad_request(
                "invalid_lexicon",
                "custom_dictionary is written word  sound,word  sound with two blanks",
                param="custom_dictionary",
            )
        if PHONEMES.search(sound):
            raise bad_request(
                "invalid_lexicon", "custom_dictionary has phonemes: write other words, or pinyin", param="custom_dictionary"
            )
        sound = sound.strip()
        lexicon[word.strip()] = {"pinyin": sound} if PINYIN.fullmatch(sound) else {"alias": sound}
    return lexicon


def reply(request: Any, job: SpeechJob, data: bytes, items: Sequence[TimedItem]) -> Any:
    """Returns a message with audio and the words that are heard in it or behind it; their times count from the beginning of
    the text's audio [ms]."""
    words = [
        {"word": word["text"], "start_time": round(1000 * word["start"]), "end_time": round(1000 * word["end"])}
        for word in times_fields(items, job).get("words", ())
    ]
    message = SynthesizeSpeechResponse(audio=data, meta={"text": request.text, "words": words})
    if request.HasField("id"):
        message.id.CopyFrom(request.id)
    return message


def configuration(voices: Sequence[VoiceInfo], models: ModelSelector, model: str) -> Any:
    """Returns the voices of a model, one entry each; of an empty name, those of the first.

    Raises:
        ApiError: 404, there is no such model.
    """
    if model and model not in models.ids:
        raise ApiError(
            "there is no such model", ErrorSpec(404, "not_found_error", "model_not_found", False), param="model_name"
        )
    name = model or models.ids[0]
    spoken = models.languages(name)
    return RivaSynthesisConfigResponse(
        model_config=[
            {
                "model_name": name,
                "parameters": {
                    "voice_name": voice.name,
                    "language_code": ",".join(language for language in voice.languages or spoken if language in spoken),
                    "sample_rate": str(SAMPLE_RATE),
                },
            }
            for voice in voices
        ]
    )


def status_of(refusal: ApiError) -> tuple[grpc.StatusCode, str]:
    """Returns the status code of an error and its details: the service's own code, then the sentence."""
    return STATUSES.get(refusal.spec.status, grpc.StatusCode.INTERNAL), f"{refusal.spec.code}: {refusal.message}"
