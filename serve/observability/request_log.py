"""Request log: one line when a request is understood, one when it is over. Nothing in between.

In:    what was ordered, what came of it
Out:   log lines: words for people, the same as fields for machines (`logging_config: {encoding: JSON}`)
Owns:  the number of those refused for want of room in the present second
Never: text, audio, names of voices, keys, anything of a client's but its key's id and the request id it may choose
"""

import asyncio
import logging
from collections import Counter

from serve.observability.reply_stats import Outcome, ReplyStats
from serve.remote.stage_timing import Fields, StageTimings
from serve.speech.schemas.speech import SpeechJob

# Child of Ray's own logger by name alone: under Serve its handler writes these lines, elsewhere logging's root does.
LOG = logging.getLogger("ray.serve.chattts")

FIELDS = "ray_serve_extra_fields"  # Serve's JSON formatter puts what is in it beside the message


WANT_OF_ROOM = frozenset({"overloaded", "draining"})
"""codes of refusals that come in bursts: a line each would cost more than the refusal"""
SECOND = 1.0


def log_received(request_id: str, key: str, order: SpeechJob) -> None:
    """The request was understood and is on its way."""
    _say(logging.INFO, "received", {"request": request_id, "key": key, **_ordered(order)})


def log_finished(request_id: str, key: str, order: SpeechJob | None, stats: ReplyStats, stages: StageTimings) -> None:
    """It is over, however it ended; `order` is None when it was never understood."""
    ordered = {} if order is None else _ordered(order)
    became = traced(stats, stages)
    level = logging.WARNING if stats.code else logging.INFO
    _say(level, "finished", {"request": request_id, "key": key, **ordered, **became})


class RefusalTally:
    """Refusals for want of room, told as one line a second."""

    def __init__(self) -> None:
        self._untold: Counter[str] = Counter()

    def add(self, code: str) -> None:
        """Count one. Needs a running event loop."""
        if not self._untold:
            asyncio.get_running_loop().call_later(SECOND, self._tell)
        self._untold[code] += 1

    def _tell(self) -> None:
        for code, requests in self._untold.items():
            _say(logging.WARNING, "refused", {"code": code, "requests": requests})
        self._untold.clear()


def traced(stats: ReplyStats, stages: StageTimings) -> Fields:
    """What became of a request: the same in its line and in its trace."""
    spoken: Fields = {}
    if stats.code:
        spoken["code"] = stats.code
    if stats.first_audio_s is not None:
        spoken["ttfb_s"] = round(stats.first_audio_s, 4)
        spoken["stalled_s"] = round(stats.stalled_s, 4)
    if stats.warnings:
        spoken["warnings"] = ",".join(f"{code}:{count}" for code, count in sorted(stats.warnings.items()))
    if stats.audio_s > 0:
        spoken["rtf"] = round(stats.took_s / stats.audio_s, 4)
    passed = {} if stats.outcome is Outcome.REFUSED and not stages.segments else stages.figures()
    return {
        "outcome": stats.outcome.value,
        "audio_s": round(stats.audio_s, 3),
        "took_s": round(stats.took_s, 4),
        **spoken,
        **passed,
    }


def _ordered(order: SpeechJob) -> Fields:
    request = order.request
    return {
        "model": request.model,
        "lane": request.scheduling.lane.value,
        "characters": len(request.text),
        "container": order.audio.container,
        "streamed": order.streamed,
    }


def _say(level: int, event: str, fields: Fields) -> None:
    words = " ".join(f"{name}={value}" for name, value in fields.items())
    LOG.log(level, "speech %s %s", event, words, extra={FIELDS: {"event": event, **fields}})
