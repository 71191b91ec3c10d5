"""Request log: one line when a request is understood, one when it is over, none in between.

In:    the fields of a job, the statistics of its reply
Out:   log lines: words for people, the same as fields for machines (`logging_config: {encoding: JSON}`)
Owns:  the number of requests refused for lack of room in the present second
Never: text, audio, names of voices, keys; of a client only its key's id and its request id
"""

import asyncio
import logging
from collections import Counter

from serve.observability.reply_stats import Outcome, ReplyStats
from serve.observability.stage_timings import Fields, StageTimings

# Child of Ray's own logger by name alone: under Serve its handler writes these lines, elsewhere logging's root does.
LOG = logging.getLogger("ray.serve.chattts")

FIELDS = "ray_serve_extra_fields"  # Serve's JSON formatter puts what is in it beside the message
WANT_OF_ROOM = frozenset({"overloaded", "draining"})
"""codes of refusals that come in bursts: a line for each would cost more than the refusal"""
SECOND = 1.0


def log_received(request_id: str, key: str, job: Fields) -> None:
    """Log that a request was understood and is on its way.

    Args:
        key: id of the caller's key.
        job: what the request is, as fields.
    """
    _write(logging.INFO, "received", {"request": request_id, "key": key, **job})


def log_finished(request_id: str, key: str, job: Fields, stats: ReplyStats, stages: StageTimings) -> None:
    """Log how a request ended; `job` is empty when it was never understood."""
    level = logging.WARNING if stats.code else logging.INFO
    _write(level, "finished", {"request": request_id, "key": key, **job, **reply_fields(stats, stages)})


class RefusalTally:
    """Refusals for lack of room, logged as one line per second and code."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, code: str) -> None:
        """Count a refusal. Needs a running event loop."""
        if not self._counts:
            asyncio.get_running_loop().call_later(SECOND, self._log)
        self._counts[code] += 1

    def _log(self) -> None:
        for code, requests in self._counts.items():
            _write(logging.WARNING, "refused", {"code": code, "requests": requests})
        self._counts.clear()


def reply_fields(stats: ReplyStats, stages: StageTimings) -> Fields:
    """How a reply went: the same fields in its log line and in its trace."""
    measured: Fields = {}
    if stats.code:
        measured["code"] = stats.code
    if stats.first_audio_s is not None:
        measured["ttfb_s"] = round(stats.first_audio_s, 4)
        measured["stalled_s"] = round(stats.stalled_s, 4)
    if stats.warnings:
        measured["warnings"] = ",".join(f"{code}:{count}" for code, count in sorted(stats.warnings.items()))
    if stats.audio_s > 0:
        measured["rtf"] = round(stats.took_s / stats.audio_s, 4)
    passed = {} if stats.outcome is Outcome.REFUSED and not stages.segments else stages.summary()
    return {
        "outcome": stats.outcome.value,
        "audio_s": round(stats.audio_s, 3),
        "took_s": round(stats.took_s, 4),
        **measured,
        **passed,
    }


def _write(level: int, event: str, fields: Fields) -> None:
    words = " ".join(f"{name}={value}" for name, value in fields.items())
    LOG.log(level, "speech %s %s", event, words, extra={FIELDS: {"event": event, **fields}})
