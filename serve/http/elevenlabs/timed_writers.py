"""Timed writers: audio with the times of its characters, over HTTP, as ElevenLabs' clients read it.

In:    SpeechEvents
Out:   one JSON object, or one a line as the audio is generated
Owns:  the characters of one reply
Never: a line that is too long for the clients' readers
"""

import base64
import json

from pipeline.errors import SynthesisError
from serve.http.elevenlabs.alignment import Characters, in_seconds
from serve.http.speech_writers import Connection, coverage_header, reply_headers
from serve.speech.events import Audio, Finished, SpeechEvent, Started, Timed
from serve.speech.job import SpeechJob

MOST_AUDIO_BYTES = 72 * 1024
"""of one line: 96 KiB of base64; aiohttp's older readers refuse lines of 128 KiB"""


class WholeTimedWriter:
    """Writes one object: audio and times of the whole reply."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._headers: dict[str, str] = {}
        self._characters = Characters("")
        self._data = b""

    async def write(self, event: SpeechEvent) -> None:
        """Collects audio and times; writes headers and body at the end."""
        match event:
            case Started():
                self._headers = reply_headers(event, "application/json")
                self._characters = Characters(event.job.request.text)
            case Timed():
                self._characters.add(event.items)
            case Audio():
                self._data += event.data
            case Finished():
                rate = event.job.audio.sample_rate
                self._characters.finish(round(event.audio_s * rate))
                body = json.dumps(_object(self._data, self._characters, rate)).encode()
                await self._connection.begin(self._headers | coverage_header(event) | {"Content-Length": str(len(body))})
                await self._connection.write(body)
                await self._connection.end()

    async def write_error(self, error: SynthesisError) -> bool:
        """Returns False: nothing was written."""
        return False


class LinesWriter:
    """Writes an object a line; its times count from the beginning of the reply, and belong to its audio or to what follows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._characters = Characters("")
        self._job: SpeechJob | None = None

    async def write(self, event: SpeechEvent) -> None:
        """Writes the headers, a line, or the end."""
        match event:
            case Started():
                self._job = event.job
                self._characters = Characters(event.job.request.text)
                await self._connection.begin(reply_headers(event, "application/json"))
            case Timed():
                self._characters.add(event.items)
            case Audio():
                for place in range(0, len(event.data), MOST_AUDIO_BYTES):
                    await self._line(event.data[place : place + MOST_AUDIO_BYTES])
            case Finished():
                self._characters.finish(round(event.audio_s * event.job.audio.sample_rate))
                await self._line(b"")
                await self._connection.end()

    async def write_error(self, error: SynthesisError) -> bool:
        """Returns False: a line cannot hold an error."""
        return False

    async def _line(self, data: bytes) -> None:
        assert self._job is not None
        fields = _object(data, self._characters, self._job.audio.sample_rate)
        if data or fields["alignment"] or fields["normalized_alignment"]:
            await self._connection.write(json.dumps(fields).encode() + b"\n")


def _object(data: bytes, characters: Characters, rate: int) -> dict[str, object]:
    written, spoken = characters.take()
    return {
        "audio_base64": base64.b64encode(data).decode(),
        "alignment": in_seconds(written, rate),
        "normalized_alignment": in_seconds(spoken, rate),
    }
