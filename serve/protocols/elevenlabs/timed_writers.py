"""Timed writers: audio with the times of its characters, over HTTP, as ElevenLabs' clients read it.

In:    SpeechEvents
Out:   one JSON object, or one a line as the audio is generated
Owns:  the characters of one reply
Never: a line that is too long for the clients' readers
"""

import base64
import json
from collections.abc import Sequence
from typing import Any

from pipeline.errors import SynthesisError
from pipeline.types import TimedItem
from serve.http.connection import Connection
from serve.http.speech_writers import MOST_LINE_AUDIO_BYTES, JsonWriter, reply_headers
from serve.protocols.elevenlabs.alignment import Characters, in_seconds
from serve.protocols.elevenlabs.turns import Turns
from serve.speech.events import Audio, Finished, SpeechEvent, Started, Timed
from serve.speech.job import SpeechJob


class TimedReply:
    """What was told of one reply."""

    def __init__(self, job: SpeechJob, *, has_turns: bool) -> None:
        self._rate = job.audio.sample_rate
        self._characters = Characters(job.request.text)
        self._turns = Turns(job.request.text) if has_turns else None

    def add(self, items: Sequence[TimedItem]) -> None:
        """More is known about the audio."""
        self._characters.add(items)
        if self._turns is not None:
            self._turns.add(items)

    def finish(self, audio_s: float) -> None:
        """The audio has ended."""
        stop = round(audio_s * self._rate)
        self._characters.finish(stop)
        if self._turns is not None:
            self._turns.finish(stop)

    def object(self, data: bytes) -> dict[str, Any]:
        """Returns audio, and what was told since the last object."""
        written, spoken = self._characters.take()
        return {
            "audio_base64": base64.b64encode(data).decode(),
            "alignment": in_seconds(written, self._rate),
            "normalized_alignment": in_seconds(spoken, self._rate),
            **({} if self._turns is None else {"voice_segments": self._turns.take(self._rate)}),
        }


class WholeTimedWriter(JsonWriter):
    """Writes one object: audio and times of the whole reply."""

    def __init__(self, connection: Connection, *, has_turns: bool = False) -> None:
        """
        Args:
            has_turns: the reply is a dialogue.
        """
        super().__init__(connection)
        self._has_turns = has_turns

    def body(self, finished: Finished) -> dict[str, Any]:
        """As JsonWriter's."""
        reply = TimedReply(finished.job, has_turns=self._has_turns)
        reply.add(self._items)
        reply.finish(finished.audio_s)
        return reply.object(self._data)


class LinesWriter:
    """Writes an object a line; its times count from the beginning of the reply, and belong to its audio or to what follows."""

    def __init__(self, connection: Connection, *, has_turns: bool = False) -> None:
        """
        Args:
            has_turns: the reply is a dialogue.
        """
        self._connection = connection
        self._has_turns = has_turns
        self._reply: TimedReply | None = None

    async def write(self, event: SpeechEvent) -> None:
        """Writes the headers, a line, or the end."""
        match event:
            case Started():
                self._reply = TimedReply(event.job, has_turns=self._has_turns)
                await self._connection.begin(reply_headers(event, "application/json"))
            case Timed():
                assert self._reply is not None, "Started comes first"
                self._reply.add(event.items)
            case Audio():
                for place in range(0, len(event.data), MOST_LINE_AUDIO_BYTES):
                    await self._line(event.data[place : place + MOST_LINE_AUDIO_BYTES])
            case Finished():
                assert self._reply is not None
                self._reply.finish(event.audio_s)
                await self._line(b"")
                await self._connection.end()

    async def write_error(self, error: SynthesisError) -> bool:
        """Returns False: a line cannot hold an error."""
        return False

    async def _line(self, data: bytes) -> None:
        assert self._reply is not None
        fields = self._reply.object(data)
        if any(fields.values()):
            await self._connection.write(json.dumps(fields).encode() + b"\n")
