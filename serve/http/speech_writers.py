"""Speech writers: the ways in which audio is written to an HTTP connection.

In:    SpeechEvents
Out:   status and headers with the first audio, then the body: in chunks, as a whole, or as server-sent events
Owns:  the digest and the sequence number of one reply
Never: a status before there is audio
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pipeline.errors import SynthesisError
from pipeline.types import TimedItem
from pipeline.voices.voice_names import display_name
from serve.access.resume_tokens import HEADER as RESUME
from serve.errors import to_api_error
from serve.http.connection import Connection
from serve.http.ignored_fields import ignored_header
from serve.http.resume_request import content_range, event_id
from serve.speech.events import Audio, Digest, Finished, Resumed, SpeechEvent, Started, Timed
from serve.speech.job import SpeechJob
from serve.speech.subtitles import subtitles
from serve.speech.times import coverage_fields, times_fields, turns_fields

GENERATED = {"X-AI-Generated": "true"}
"""on every reply that contains synthetic speech"""
MOST_LINE_AUDIO_BYTES = 72 * 1024
"""of audio in one line of JSON: 96 KiB of base64; aiohttp's older readers refuse lines of 128 KiB"""


class SpeechWriter(Protocol):
    """Writes the events of one reply."""

    async def write(self, event: SpeechEvent) -> None:
        """Writes what an event adds to the reply.

        Raises:
            ReaderStalled, DeadlineExceeded: its client takes too long to read it.
        """
        ...

    async def write_error(self, error: SynthesisError) -> bool:
        """Ends the reply with an error. Returns False if the reply can only be cut."""
        ...


class ChunkedWriter:
    """Writes the audio in pieces as it is generated."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def write(self, event: SpeechEvent) -> None:
        """Writes the headers, a piece, or the end."""
        match event:
            case Started():
                headers = resumable_headers(event, event.job.audio.content_type)
                if event.resumed is None:
                    await self._connection.begin(headers)
                else:
                    await self._connection.begin(headers | content_range(event.resumed), 206)
            case Audio():
                await self._connection.write(event.data)
            case Finished():
                await self._connection.end()

    async def write_error(self, error: SynthesisError) -> bool:
        """Returns False: a body of audio cannot hold an error."""
        return False


class WholeWriter:
    """Writes the audio in one piece, with sizes and digest in the headers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._headers: dict[str, str] = {}
        self._data = b""
        self._resumed: Resumed | None = None

    async def write(self, event: SpeechEvent) -> None:
        """Collects the audio; writes headers and body at the end."""
        match event:
            case Started():
                self._headers = resumable_headers(event, event.job.audio.content_type)
                self._resumed = event.resumed
            case Audio():
                self._data += event.data
            case Finished():
                part = {} if self._resumed is None else content_range(self._resumed, len(self._data))
                await self._connection.begin(self._headers | self._exact(event) | part, 206 if part else 200)
                await self._connection.write(self._data)
                await self._connection.end()

    async def write_error(self, error: SynthesisError) -> bool:
        """Returns False: a body of audio cannot hold an error."""
        return False

    def _exact(self, finished: Finished) -> dict[str, str]:
        report, job = finished.report, finished.job
        digest = hashlib.sha256() if self._resumed is None else self._resumed.digest.copy()
        digest.update(self._data)  # of the whole, as the RFC says
        trimmed = {"X-Audio-Trimmed-Ms": ",".join(map(str, report.trimmed_ms))} if job.request.audio.trim else {}
        return {
            "Content-Length": str(len(self._data)),
            "Digest": f"SHA-256={base64.b64encode(digest.digest()).decode()}",
            "X-Audio-Duration-Ms": str(round(1000 * finished.audio_s)),
            "X-Usage-Characters": str(job.characters),
            "X-Usage-Audio-Tokens": str(report.steps),
            **trimmed,
            **coverage_header(finished),
        }


class JsonWriter:
    """Writes the audio as JSON, with its times."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._headers: dict[str, str] = {}
        self._data = b""
        self._items: list[TimedItem] = []

    async def write(self, event: SpeechEvent) -> None:
        """Collects audio and times; writes headers and body at the end."""
        match event:
            case Started():
                self._headers = reply_headers(event, "application/json")
            case Timed():
                self._items += event.items
            case Audio():
                self._data += event.data
            case Finished():
                body = json.dumps(self.body(event)).encode()
                headers = self._headers | coverage_header(event) | {"Content-Length": str(len(body))}
                await self._connection.begin(headers)
                await self._connection.write(body)
                await self._connection.end()

    async def write_error(self, error: SynthesisError) -> bool:
        """Returns False: nothing was written."""
        return False

    def body(self, finished: Finished) -> dict[str, Any]:
        """Returns the object of a whole reply."""
        job = finished.job
        done = done_event(finished, hashlib.sha256(self._data).hexdigest())
        about: Mapping[str, object] = done.pop("audio")
        del done["type"]
        fields = {"audio": base64.b64encode(self._data).decode(), **about, **done}
        if job.timestamps is not None:
            fields |= {"segments": [], "breaks": [], **times_fields(self._items, job)}
        return fields | whole_fields(self._items, job)


class SseWriter:
    """Writes the audio as server-sent events, which can carry an error too."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._digest: Digest = hashlib.sha256()
        self._sent_bytes = self._seq = 0
        self._request_id = ""
        self._items: list[TimedItem] = []

    async def write(self, event: SpeechEvent) -> None:
        """Writes the headers, a delta event, or the done event."""
        match event:
            case Started():
                self._request_id = event.job.request.request_id
                if event.resumed is not None:
                    self._digest, self._sent_bytes, self._seq = (
                        event.resumed.digest.copy(),
                        event.resumed.first,
                        event.resumed.seq,
                    )
                await self._connection.begin(resumable_headers(event, "text/event-stream"))
            case Audio():
                self._digest.update(event.data)
                self._sent_bytes += len(event.data)
                delta = {
                    "type": "speech.audio.delta",
                    "audio": base64.b64encode(event.data).decode(),
                    "seq": self._seq,
                }
                self._seq += 1
                await self._write_event(delta, event_id(self._seq, self._sent_bytes, self._digest))
            case Timed():
                self._items += event.items
                if event.job.timestamps is not None and (times := times_fields(event.items, event.job)):
                    await self._write_event({"type": "speech.audio.timestamps", **times})
            case Finished():
                await self._write_event(done_event(event, self._digest.hexdigest()) | whole_fields(self._items, event.job))
                await self._connection.end()

    async def write_error(self, error: SynthesisError) -> bool:
        """Writes an error event; without a done event the audio counts as incomplete."""
        if not self._connection.has_begun or self._connection.is_broken:
            return False
        await self._write_event({"type": "speech.audio.error", **to_api_error(error).body(self._request_id)})
        await self._connection.end()
        return True

    async def _write_event(self, event: Mapping[str, object], name: str = "") -> None:
        named = f"id: {name}\n" if name else ""
        await self._connection.write(f"{named}event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())


def done_event(finished: Finished, sha256: str) -> dict[str, Any]:
    """Returns the last event of a reply. It counts input characters and decoded steps, before the audio stages."""
    job, report = finished.job, finished.report
    return {
        "type": "speech.audio.done",
        "usage": {
            "input_tokens": job.characters,
            "output_tokens": report.steps,
            "total_tokens": job.characters + report.steps,
        },
        "audio": {
            "duration_ms": round(1000 * finished.audio_s),
            "sample_rate": job.audio.sample_rate,
            "content_type": job.audio.content_type,
            "seed": job.request.sampling.seed,
            "sha256": sha256,
            **({"trimmed_ms": report.trimmed_ms} if job.request.audio.trim else {}),
        },
        "warnings": finished.warnings,
        **({} if report.coverage is None else {"coverage": coverage_fields(report.coverage)}),
    }


def whole_fields(items: Sequence[TimedItem], job: SpeechJob) -> dict[str, Any]:
    """Returns what the times of a whole reply tell: the turns of a dialogue, and subtitles, as far as the job asks for them."""
    turns = {} if job.timestamps is None else turns_fields(items, job)
    return turns if job.subtitles is None else {**turns, "subtitles": subtitles(items, job)}


def reply_headers(started: Started, media_type: str) -> dict[str, str]:
    """Returns the headers of a reply with audio."""
    job = started.job
    headers = {
        "Content-Type": media_type,
        "X-Audio-Seed": str(job.request.sampling.seed),
        "X-Voice-Id": display_name(job.request.voice),
        "X-Cache": started.cache.value,
        "X-Model-Version": job.request.model,
        "X-Latency": job.request.scheduling.latency.value,
        **GENERATED,
        "Server-Timing": ", ".join(f"{name};dur={took_ms:.1f}" for name, took_ms in started.timings_ms.items()),
        "X-Accel-Buffering": "no",
    }
    if started.replayed is not None:
        headers["Idempotency-Replayed"] = str(started.replayed).lower()
    if started.warnings:
        headers["X-Text-Warnings"] = warnings_header(started.warnings)
    if job.degraded:
        headers["X-Degraded"] = ", ".join(job.degraded)
    if job.ignored:
        headers["X-Ignored-Fields"] = ignored_header(job.ignored)
    return headers


def resumable_headers(started: Started, media_type: str) -> dict[str, str]:
    """Returns the headers of a reply that can be resumed."""
    headers = reply_headers(started, media_type)
    return headers if started.token is None else {**headers, RESUME: started.token}


def coverage_header(finished: Finished) -> dict[str, str]:
    """Returns how much of the text was spoken, if it was followed: `0.9500; words=20, swallowed=1, repeated=0`."""
    coverage = finished.report.coverage
    if coverage is None:
        return {}
    counts = f"words={coverage.words}, swallowed={coverage.swallowed}, repeated={coverage.repeated}"
    return {"X-Coverage": f"{coverage.share:.4f}; {counts}"}


def warnings_header(warnings: Mapping[str, int]) -> str:
    """Returns the number of warnings and their codes: `3; emoji=2, unknown_style=1`."""
    counted = ", ".join(f"{code}={count}" for code, count in sorted(warnings.items()))
    return f"{sum(warnings.values())}; {counted}"
