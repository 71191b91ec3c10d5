"""Timeline: what one client heard and when, and the figures that follow from it.

In:    arrivals of audio
Out:   first audio, first audible audio, gaps, underruns, percentiles, rates
Owns:  nothing
Never: clocks, networks
"""

import math
import statistics
from collections.abc import Iterable, Sequence
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
    audio_s: float
    """what was asked for; 0 where nobody could say"""
    due_s: float
    """when it should have been sent"""
    sent_s: float = 0.0
    """when its last byte was sent"""
    status: int = 0
    """200, the status of a refusal, or 0: no answer at all"""
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """(when, samples) of each piece of audio"""
    audible_s: float | None = None
    """when the first piece with a sample above AUDIBLE came"""
    ended_s: float = 0.0
    complete: bool = False
    """the answer ended by itself, cleanly"""
    left: bool = False
    """the client hung up"""
    md5: str = ""
    retry_after_s: float | None = None
    error: str = ""

    @property
    def ttfb_s(self) -> float:
        """From sending to the first audio, or to the refusal."""
        return (self.arrivals[0][0] if self.arrivals else self.ended_s) - self.sent_s

    @property
    def taken_s(self) -> float:
        """From sending to the end."""
        return self.ended_s - self.sent_s

    @property
    def heard_s(self) -> float:
        """Seconds of audio that came."""
        return sum(samples for _, samples in self.arrivals) / SAMPLE_RATE

    @property
    def rtf(self) -> float:
        """Real-time factor of the whole request."""
        return self.taken_s / (self.audio_s or self.heard_s)

    @property
    def gaps_s(self) -> list[float]:
        """Between consecutive pieces."""
        return [later - earlier for (earlier, _), (later, _) in zip(self.arrivals, self.arrivals[1:], strict=False)]

    def stalls_s(self) -> list[float]:
        """How long a player that starts with the first piece has nothing to play, each time."""
        stalls = []
        plays_until: float | None = None
        for when, samples in self.arrivals:
            if plays_until is None:
                plays_until = when
            elif when > plays_until:
                stalls.append(when - plays_until)
                plays_until = when
            plays_until += samples / SAMPLE_RATE
        return stalls

    @property
    def is_continuous(self) -> bool:
        """Complete, and without a pause that is heard. An answer nobody measured is not."""
        return self.complete and bool(self.arrivals) and max(self.stalls_s(), default=0.0) < CONTINUOUS_S


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest rank: a value that was measured, never one between two."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values: there is no percentile of nothing")
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """Median, least, greatest of the repeats."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def audio_rate(timelines: Sequence[Timeline], completions: int) -> float:
    """Audio seconds a second from the load's start to the `completions`-th complete answer, what came by then counted.

    A complete answer counts what was asked for, one under way what has arrived.
    """
    ends = sorted(line.ended_s for line in timelines if line.complete)
    if len(ends) < completions:
        raise ValueError(f"{len(ends)} answers are complete; {completions} were to be")
    until = ends[completions - 1]
    audio_s = 0.0
    for line in timelines:
        if line.complete and line.ended_s <= until:
            audio_s += line.audio_s or line.heard_s
        else:
            audio_s += sum(samples for when, samples in line.arrivals if when <= until) / SAMPLE_RATE
    return audio_s / until


def failures(timelines: Iterable[Timeline]) -> list[str]:
    """What went wrong and was neither a refusal nor the client's own leaving."""
    return [
        line.error or f"incomplete answer, status {line.status}"
        for line in timelines
        if not line.complete and not line.left and line.status not in REFUSALS
    ]


def latency(timelines: Sequence[Timeline]) -> dict[str, float]:
    """The figures a listener notices, over complete answers."""
    done = [line for line in timelines if line.complete]
    ttfb = [line.ttfb_s for line in done]
    gaps = [gap for line in done for gap in line.gaps_s]
    stalls = [line.stalls_s() for line in done]
    audible = [line.audible_s - line.sent_s for line in done if line.audible_s is not None]
    return {
        "answers": len(done),
        "ttfb_p50_s": percentile(ttfb, 50),
        "ttfb_p95_s": percentile(ttfb, 95),
        "ttfb_p99_s": percentile(ttfb, 99),
        "audible_p50_s": percentile(audible, 50) if audible else math.nan,
        "gap_p50_s": percentile(gaps, 50) if gaps else 0.0,
        "gap_p95_s": percentile(gaps, 95) if gaps else 0.0,
        "gap_max_s": max(gaps, default=0.0),
        "underruns": sum(map(len, stalls)),
        "stalled_s": sum(map(sum, stalls)),
        "continuous": sum(line.is_continuous for line in done) / len(done),
        "rtf_p50": percentile([line.rtf for line in done], 50),
        "taken_p95_s": percentile([line.taken_s for line in done], 95),
    }
