"""Recent replies: how the last minutes went, for an operator who looks at the page.

In:    what every ReplyObserver is told
Out:   the same to the next observer; a summary of the last WINDOW_S
Owns:  a few numbers of each recent reply
Never: Ray, a client's text, ids or keys
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from math import ceil
from statistics import median
from typing import Any

from serve.observability.reply_stats import CONTINUOUS_S, Outcome, ReplyObserver, ReplyStats

WINDOW_S = 300.0
MOST_KEPT = 10_000
"""replies and refusals; under more load than that, the summary is of a shorter time"""
LATE = 0.95
"""share of the replies whose first audio came sooner than the late one"""


class RecentReplies:
    """A ReplyObserver that remembers the last minutes and passes everything on."""

    def __init__(self, to: ReplyObserver, clock: Callable[[], float] = time.monotonic) -> None:
        self._to = to
        self._clock = clock
        self._replies: deque[tuple[float, ReplyStats]] = deque(maxlen=MOST_KEPT)

    def finished(self, stats: ReplyStats) -> None:
        """Remembers a reply."""
        self._replies.append((self._clock(), stats))
        self._to.finished(stats)

    def in_flight_changed(self, in_flight: int) -> None:
        """Passed on."""
        self._to.in_flight_changed(in_flight)

    def rejected(self, code: str) -> None:
        """Remembers a refusal."""
        self._replies.append((self._clock(), ReplyStats(Outcome.REFUSED, code=code)))
        self._to.rejected(code)

    def interrupted(self, unheard_steps: int) -> None:
        """Passed on."""
        self._to.interrupted(unheard_steps)

    def summary(self) -> dict[str, Any]:
        """Returns counts by outcome and by error code, the times to the first audio [s], and replies that stalled."""
        while self._replies and self._clock() - self._replies[0][0] > WINDOW_S:
            self._replies.popleft()
        replies = [stats for _, stats in self._replies]
        firsts = sorted(stats.first_audio_s for stats in replies if stats.first_audio_s is not None)
        return {
            "window_s": WINDOW_S,
            "replies": len(replies),
            "outcomes": dict(Counter(stats.outcome.value for stats in replies)),
            "errors": dict(Counter(stats.code for stats in replies if stats.code)),
            "first_audio_s": round(median(firsts), 3) if firsts else None,
            "late_first_audio_s": round(firsts[ceil(LATE * len(firsts)) - 1], 3) if firsts else None,
            "stalled": sum(stats.stalled_s >= CONTINUOUS_S for stats in replies),
            "audio_s": round(sum(stats.audio_s for stats in replies), 1),
        }
