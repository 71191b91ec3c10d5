"""Stems writer: a dialogue as a zip, with a file for each speaker, the mix, a summary and subtitles.

In:    SpeechEvents of samples in 16 bits
Out:   status and headers with the first bytes of the zip, then the rest
Owns:  the samples of one reply
Never: a zip of a reply that has failed
"""

import asyncio
import json
from dataclasses import replace

import numpy as np

from pipeline.audio.formats import AudioFormat
from pipeline.books.stems import MIX, Spans, stem_names, stems
from pipeline.errors import SynthesisError
from pipeline.types import TimedItem
from serve.http.connection import Connection
from serve.http.speech_writers import coverage_header, reply_headers
from serve.speech.dialogue import DIGITS, dialogue_fields, turn_times
from serve.speech.events import Audio, Finished, SpeechEvent, Started, Timed
from serve.speech.subtitles import subtitles
from serve.speech.times import times_fields


class StemsWriter:
    """Collects the audio of a dialogue, and writes a zip at its end."""

    def __init__(self, connection: Connection, audio: AudioFormat) -> None:
        """
        Args:
            audio: the format of the files; the events bring samples at its rate.
        """
        self._connection = connection
        self._audio = audio
        self._headers: dict[str, str] = {}
        self._data = bytearray()
        self._items: list[TimedItem] = []

    async def write(self, event: SpeechEvent) -> None:
        """Collects audio and times; writes headers and body at the end."""
        match event:
            case Started():
                self._headers = reply_headers(event, "application/zip")
            case Timed():
                self._items += event.items
            case Audio():
                self._data += event.data
            case Finished():
                name = {"Content-Disposition": 'attachment; filename="dialogue.zip"'}
                await self._connection.begin(self._headers | coverage_header(event) | name)
                await self._write_zip(event)
                await self._connection.end()

    async def write_error(self, error: SynthesisError) -> bool:
        """Returns False: a zip cannot hold an error."""
        return False

    async def _write_zip(self, finished: Finished) -> None:
        mix = np.frombuffer(self._data, "<i2")
        job = replace(finished.job, audio=self._audio)
        beside = {"summary.json": self._summary(finished, len(mix))}
        if job.subtitles is not None:
            beside[f"subtitles.{job.subtitles}"] = subtitles(self._items, job).encode()
        pieces = stems(mix, self._spans(finished, len(mix)), self._audio, beside)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            await self._connection.write(piece)

    def _spans(self, finished: Finished, samples: int) -> Spans:
        """Returns where each speaker is heard: from the beginning of a turn to that of the next one."""
        turns = turn_times(self._items, finished.job.request)
        edges = [0, *(at.start for at in turns[1:]), samples]
        spans: dict[str, list[tuple[int, int]]] = {}
        for at, start, stop in zip(turns, edges, edges[1:], strict=False):
            spans.setdefault(at.turn.speaker, []).append((start, stop))
        return spans

    def _summary(self, finished: Finished, samples: int) -> bytes:
        job, rate = finished.job, self._audio.sample_rate
        fields = dialogue_fields(self._items, job)
        names = stem_names([speaker["speaker"] for speaker in fields["speakers"]], self._audio)
        for speaker, name in zip(fields["speakers"], names, strict=True):
            speaker["file"] = name
        if job.timestamps is not None:
            fields |= times_fields(self._items, job)
        about = {
            "mix": f"{MIX}.{self._audio.container}",
            "model": job.request.model,
            "seed": job.request.sampling.seed,
            "sample_rate": rate,
            "samples": samples,
            "duration_s": round(samples / rate, DIGITS),
            "warnings": finished.warnings,
        }
        return json.dumps({**about, **fields}, ensure_ascii=False, indent=1).encode()
