"""Timeline: what one client received and when, and the figures that follow from it.

In:    arrivals of audio
Out:   first audio, first audible audio, gaps, underruns, percentiles, rates
Never: clocks, networks
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.spec import SAMPLE_RATE

REFUSALS = (429, 503)
AUDIBLE = 33
"""of 32 768: -60 dB below full scale"""
CONTINUOUS_S = 0.1
"""a pause shorter than this counts as continuous"""


@dataclass(slots=True)
class Timeline:
    """One request. Times in seconds of the load's own clock; 0 is the load's start."""

    index: int
    audio_s: float = 0.0
    """length of the requested audio; 0: unknown"""
    due_s: float = 0.0
    """when it should have been sent"""
    sent_s: float = 0.0
    """when its last byte was sent"""
    status: int = 0
    """that of the answer; 0: there was none"""
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """(time, samples) of each piece of audio"""
    audible_s: float | None = None
    """when the first piece with a sample above AUDIBLE arrived"""
    ended_s: float = 0.0
    complete: bool = False
    """the answer ended by itself, cleanly"""
    disconnected: bool = False
    """the client disconnected"""
    md5: str = ""
    retry_after_s: float | None = None
    error: str = ""

    @property
    def ttfb_s(self) -> float:
        """Returns the time from sending to the first audio, or to the refusal."""
        return (self.arrivals[0][0] if self.arrivals else self.ended_s) - self.sent_s

    @property
    def taken_s(self) -> float:
        """Returns the time from sending to the end."""
        return self.ended_s - self.sent_s

    @property
    def received_s(self) -> float:
        """Returns the seconds of audio that arrived."""
        return sum(samples for _, samples in self.arrivals) / SAMPLE_RATE

    @property
    def rtf(self) -> float:
        """Returns the real-time factor of the whole request."""
        return self.taken_s / (self.audio_s or self.received_s)

    @property
    def gaps_s(self) -> list[float]:
        """Returns the times between consecutive pieces."""
        return [later - earlier for (earlier, _), (later, _) in zip(self.arrivals, self.arrivals[1:], strict=False)]

    def stalls_s(self) -> list[float]:
        """Returns how long, each time, a player that starts with the first piece has nothing to play."""
        return self._playback()[0]

    @property
    def played_s(self) -> float:
        """Returns when such a player has played everything; when the answer ended if there is nothing to play."""
        return self._playback()[1]

    def _playback(self) -> tuple[list[float], float]:
        stalls = []
        plays_until: float | None = None
        for when, samples in self.arrivals:
            if plays_until is None:
                plays_until = when
            elif when > plays_until:
                stalls.append(when - plays_until)
                plays_until = when
            plays_until += samples / SAMPLE_RATE
        return stalls, self.ended_s if plays_until is None else plays_until

    @property
    def is_continuous(self) -> bool:
        """True if the answer is complete and has no audible pause; False if it has no audio."""
        return self.complete and bool(self.arrivals) and max(self.stalls_s(), default=0.0) < CONTINUOUS_S


def percentile(values: Iterable[float], percent: float) -> float:
    """Returns the value at the nearest rank: one that was measured, never one between two."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values: an empty list has no percentile")
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """Returns median, smallest and largest of the rounds, and their number."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def audio_rate(timelines: Sequence[Timeline], completions: int) -> float:
    """Returns the seconds of audio per second from the load's start to the `completions`-th complete answer.

    A complete answer counts with its requested length, one under way with what had arrived by then.

    Raises:
        ValueError: fewer answers are complete.
    """
    ends = sorted(line.ended_s for line in timelines if line.complete)
    if len(ends) < completions:
        raise ValueError(f"{len(ends)} answers are complete, not {completions}")
    until = ends[completions - 1]
    audio_s = 0.0
    for line in timelines:
        if line.complete and line.ended_s <= until:
            audio_s += line.audio_s or line.received_s
        else:
            audio_s += sum(samples for when, samples in line.arrivals if when <= until) / SAMPLE_RATE
    return audio_s / until


def request_rate(timelines: Sequence[Timeline], completions: int) -> float:
    """Returns the requests per second of a load that was always saturated, from its audio per second."""
    received_s = [line.audio_s or line.received_s for line in timelines if line.complete]
    return audio_rate(timelines, completions) / statistics.mean(received_s)


def failures(timelines: Iterable[Timeline]) -> list[str]:
    """Returns the errors of the requests that were neither answered, nor refused, nor abandoned by their client."""
    return [
        line.error or f"incomplete answer, status {line.status}"
        for line in timelines
        if not line.complete and not line.disconnected and line.status not in REFUSALS
    ]


def spreads(rounds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float | int]]:
    """Returns the spread of every figure over the rounds that have it."""
    names = dict.fromkeys(name for figures in rounds for name in figures)
    return {name: spread([figures[name] for figures in rounds if name in figures]) for name in names}


def shown(values: dict[str, float | int]) -> str:
    """Returns a spread as text: the median, and the range when there was more than one round."""
    middle = f"{values['median']:.2f}"
    return middle if values["n"] == 1 else f"{middle} ({values['min']:.2f} - {values['max']:.2f})"


def latency(timelines: Sequence[Timeline]) -> dict[str, float]:
    """Returns the figures that a listener notices, over complete answers."""
    complete = [line for line in timelines if line.complete]
    ttfb = [line.ttfb_s for line in complete]
    gaps = [gap for line in complete for gap in line.gaps_s]
    stalls = [line.stalls_s() for line in complete]
    audible = [line.audible_s - line.sent_s for line in complete if line.audible_s is not None]
    return {
        "answers": len(complete),
        "ttfb_p50_s": percentile(ttfb, 50),
        "ttfb_p95_s": percentile(ttfb, 95),
        "ttfb_p99_s": percentile(ttfb, 99),
        "audible_p50_s": percentile(audible, 50) if audible else math.nan,
        "gap_p50_s": percentile(gaps, 50) if gaps else 0.0,
        "gap_p95_s": percentile(gaps, 95) if gaps else 0.0,
        "gap_max_s": max(gaps, default=0.0),
        "underruns": sum(map(len, stalls)),
        "stalled_s": sum(map(sum, stalls)),
        "continuous": sum(line.is_continuous for line in complete) / len(complete),
        "rtf_p50": percentile([line.rtf for line in complete], 50),
        "taken_p95_s": percentile([line.taken_s for line in complete], 95),
    }
