"""Recorder: the measurements of one reply, from the arrival of its request to its last byte.

In:    the job, each chunk of audio, how the reply ended
Out:   ReplyStats for metrics, log and trace; the timings that precede the audio
Owns:  the stopwatch, the play cursor, the outcome of one reply
Never: a client's text
"""

import logging
import time

from pipeline.errors import SynthesisError
from pipeline.types import AudioChunk, AudioReport, CacheResult
from serve.errors import ApiError, to_api_error
from serve.observability.reply_stats import Outcome, PlayCursor, ReplyStats
from serve.observability.stage_timings import StageTimings
from serve.speech.job import SpeechJob

# Child of Ray's own logger by name alone: under Serve its handler writes these lines, elsewhere logging's root does.
LOG = logging.getLogger("ray.serve.chattts")


class ReplyRecorder:
    """Measures one reply; begins with the arrival of its request."""

    def __init__(self, request_id: str) -> None:
        self.job: SpeechJob | None = None
        """None: its body was not accepted"""
        self.timings = StageTimings()
        self.audio_s = 0.0
        self.report = AudioReport(steps=0)
        self.cache = CacheResult.BYPASS
        self.warnings: dict[str, int] = {}
        self.has_started = False
        """whether the reply has begun: from then on a failure cuts it"""
        self.is_resumed = False
        """whether it has begun where a client had lost an earlier one"""
        self._request_id = request_id
        self._arrived_at = time.perf_counter()
        self._first_audio_s: float | None = None
        self._cursor = PlayCursor()
        self._outcome = Outcome.LEFT
        self._code = ""
        self._error: Exception | None = None

    def add(self, chunk: AudioChunk, sample_rate: int) -> float:
        """Records a chunk that has just arrived; returns its duration [s]."""
        self.warnings.update(chunk.warnings)
        self.report = chunk.report or self.report
        if not len(chunk.samples):
            return 0.0
        now, duration_s = time.perf_counter(), len(chunk.samples) / sample_rate
        if self._first_audio_s is None:
            self.cache = chunk.cache
            self.timings.cache = chunk.cache.value
            self._first_audio_s = now - self._arrived_at
        self._cursor.arrived(now, duration_s)
        self.audio_s += duration_s
        return duration_s

    def finished(self) -> None:
        """Records that the last piece has been written."""
        self._outcome = Outcome.DONE

    def failed(self, error: Exception) -> None:
        """Records a failure; the same error again counts once."""
        if error is self._error:
            return
        self._error = error
        self._outcome = Outcome.CUT if self.has_started else Outcome.REFUSED
        self._code = to_api_error(error).spec.code
        if not isinstance(error, ApiError | SynthesisError):
            LOG.error("speech failed request=%s", self._request_id, exc_info=error)

    def timings_ms(self) -> dict[str, float]:
        """Returns the time until now: per stage, to the first audio, for encoding after it, in total [ms]."""
        now_s = time.perf_counter() - self._arrived_at
        first_s = now_s if self._first_audio_s is None else self._first_audio_s
        whole = {"audio": 1000 * first_s, "encode": 1000 * (now_s - first_s), "total": 1000 * now_s}
        return self.timings.milliseconds() | whole

    def stats(self) -> ReplyStats:
        """Returns the measurements so far."""
        job = self.job
        return ReplyStats(
            outcome=self._outcome,
            code=self._code,
            streamed=job is not None and job.streamed,
            first_audio_s=self._first_audio_s,
            took_s=time.perf_counter() - self._arrived_at,
            audio_s=self.audio_s,
            stalled_s=self._cursor.stalled_s,
            is_resumed=self.is_resumed,
            fail_overs=self.timings.fail_overs,
            repeated_steps=self.timings.repeated_steps,
            interrupted_s=self.timings.interrupted_s,
            characters=0 if job is None else job.characters,
            warnings=self.warnings,
        )
