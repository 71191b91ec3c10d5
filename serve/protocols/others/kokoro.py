"""Kokoro: the captioned speech of Kokoro-FastAPI, audio with the times of its words.

In:    bodies, SpeechEvents, ApiErrors
Out:   fields of POST /v1/audio/speech; one JSON object, or one a line as the audio is generated; error bodies
Owns:  the words of one reply that are not written yet
Never: a field without effect that the reply does not name; a line that is too long for the clients' readers
"""

import base64
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field

from pipeline.errors import SynthesisError
from pipeline.text.markup.marked_text import DROPPED, Table, marked, pause, words
from serve.errors import bad_request
from serve.http.connection import Connection
from serve.http.ignored_fields import ignored_fields
from serve.http.speech_writers import MOST_LINE_AUDIO_BYTES, coverage_header, reply_headers
from serve.speech.events import Audio, Finished, SpeechEvent, Started, Timed
from serve.speech.job import SpeechJob
from serve.speech.schemas.base import Body, read_body
from serve.speech.schemas.speech import OTHER_MODELS
from serve.speech.times import times_fields

MARKUP: Table = {
    "[": (
        (re.compile(r"\[pause:([0-9.]{1,9}s?)\]", re.IGNORECASE), lambda mark: pause(mark[1])),
        (re.compile(r"\[([^\[\]]{1,100})\]\((?:/[^()/]{0,100}/|[+-][0-9.]{1,5})\)"), lambda mark: DROPPED + words(mark[1])),
    )
}
"""[pause:1.5s]; [word](/phonemes/) and [word](+2): the word is spoken"""
LANGUAGES: Mapping[str, str] = {"a": "en-US", "b": "en-GB", "z": "zh-CN"}
"""their letters -> tags; other letters are no languages here, and the reply names the field"""


class NormalizationOptions(Body):
    """What they rewrite in a text. Others are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    normalize: bool = True


class CaptionedBody(Body):
    """POST /dev/captioned_speech. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    input: str = Field(min_length=1)
    model: str = OTHER_MODELS[0]
    voice: str | None = Field(None, description="a voice or a mixture; null: the operator's default")
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    speed: float = 1.0
    stream: bool = Field(True, description="an object a line as the audio is generated; false: one object")
    return_timestamps: bool = True
    return_download_link: bool = Field(False, description="true is refused: no file is kept")
    lang_code: str | None = Field(None, description=f"{', '.join(LANGUAGES)}, or a tag as language of POST /v1/audio/speech")
    volume_multiplier: float | None = Field(None, gt=0)
    normalization_options: NormalizationOptions | None = None
    seed: int | None = Field(None, description="as of POST /v1/audio/speech; theirs has none")


def speech_values(raw: bytes) -> dict[str, Any]:
    """Returns the fields of POST /v1/audio/speech that asks for the same, with the times of words.

    Raises:
        ApiError: 400
    """
    body = read_body(CaptionedBody, raw)
    if body.return_download_link:
        message = "no file is kept: leave return_download_link out"
        raise bad_request("download_link_not_supported", message, param="return_download_link")
    volume, options = body.volume_multiplier or 1.0, body.normalization_options or NormalizationOptions()
    fields = {
        **marked(body.input, MARKUP),
        "model": body.model,
        "voice": body.voice,
        "response_format": body.response_format,
        "speed": body.speed,
        "stream": body.stream,
        "timestamps": "word" if body.return_timestamps else None,
        "language": None if body.lang_code is None else LANGUAGES.get(body.lang_code, body.lang_code),
        "post": None if volume == 1.0 else {"gain_db": 20 * math.log10(volume)},
        "normalize": options.normalize,
        "seed": body.seed,
    }
    lost = {f"normalization_options.{name}": value for name, value in (options.model_extra or {}).items()}
    fields |= ignored_fields(lost) | ignored_fields(body.model_extra or {})
    return {name: value for name, value in fields.items() if value is not None}


class CaptionedWriter:
    """Writes audio with the words that are heard in it or behind it; their times count from the beginning of the reply."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._headers: dict[str, str] = {}
        self._words: list[dict[str, Any]] = []
        self._data = b""
        self._job: SpeechJob | None = None

    async def write(self, event: SpeechEvent) -> None:
        """Writes the headers, a line, or the end; collects what is to be one object."""
        match event:
            case Started():
                self._headers, self._job = reply_headers(event, "application/json"), event.job
                if event.job.streamed:
                    await self._connection.begin(self._headers)
            case Timed():
                words = times_fields(event.items, event.job).get("words", [])
                self._words += [{"word": word["text"], "start_time": word["start"], "end_time": word["end"]} for word in words]
            case Audio():
                assert self._job is not None, "Started comes first"
                if not self._job.streamed:
                    self._data += event.data
                    return
                for place in range(0, len(event.data), MOST_LINE_AUDIO_BYTES):
                    line = self._object(self._job, event.data[place : place + MOST_LINE_AUDIO_BYTES])
                    await self._connection.write(line + b"\n")
            case Finished():
                if not event.job.streamed:
                    body = self._object(event.job, self._data)
                    sized = {"Content-Length": str(len(body))}
                    await self._connection.begin(self._headers | coverage_header(event) | sized)
                    await self._connection.write(body)
                elif self._words:
                    await self._connection.write(self._object(event.job, b"") + b"\n")
                await self._connection.end()

    async def write_error(self, error: SynthesisError) -> bool:
        """Returns False: neither an object nor a line can hold an error."""
        return False

    def _object(self, job: SpeechJob, data: bytes) -> bytes:
        words, self._words = self._words, []
        return json.dumps(
            {
                "audio": base64.b64encode(data).decode(),
                "audio_format": job.audio.content_type.partition(";")[0],
                "timestamps": None if job.timestamps is None else words,
            }
        ).encode()
