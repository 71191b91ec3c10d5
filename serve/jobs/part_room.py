"""Part room: how many parts of jobs an ingress replica speaks at once.

In:    load reports of the engines; beginnings and ends of parts
Out:   a number of parts
Owns:  what refusals have taught
Never: jobs, clocks

`auto` fills the engines as far as that makes them faster, less a reserve for newcomers. Reports are as old as an engine's last
answer, and other ingress replicas read the same ones: the number grows with every part that was spoken and halves when one is
refused for want of room, as the window of a TCP connection does (RFC 5681).
"""

import math
from collections.abc import Callable, Iterable
from typing import Literal

from pipeline.types import LoadReport

AUTO: Literal["auto"] = "auto"
FIRST = 2  # parts at once, before anything is known
RESERVE = 0.25  # of an engine's slots, for those who listen
FILLED = 0.9  # of an engine's highest rate: more rows make its steps longer, and hardly more of them
PLACES = 0.5  # of an ingress replica's places, that its parts may take


def rows_to_fill(report: LoadReport) -> float:
    """Returns how many rows make FILLED of the highest rate of an engine, or what its reserve leaves if that is less.

    n rows make n / (fixed_s + n row_s) steps a second.
    """
    slots = report.usable
    shortest_s = report.fixed_s + (1 - FILLED) * slots * report.row_s
    filled = FILLED * slots * report.fixed_s / shortest_s if shortest_s else slots
    return min(filled, (1 - RESERVE) * slots)


class PartRoom:
    """The parts of one ingress replica."""

    def __init__(self, parallel: int | Literal["auto"], reports: Callable[[], Iterable[LoadReport]], places: int) -> None:
        """
        Args:
            parallel: parts at once, or AUTO.
            reports: returns the latest report of each engine.
            places: requests that the replica takes at once.
        """
        self._is_auto = parallel == AUTO
        self._most = float(FIRST if parallel == AUTO else parallel)
        self._ceiling = max(1, math.floor(PLACES * places))
        self._reports = reports
        self._doubles = True  # until the first refusal
        self._window = 0  # counts refusals that were heeded
        self.speaking = 0
        """parts in progress"""

    @property
    def most(self) -> int:
        """How many parts may be in progress now."""
        if not self._is_auto:
            return int(self._most)
        reports = list(self._reports())
        others = max(0, sum(report.sequences for report in reports) - self.speaking)
        free = int(sum(map(rows_to_fill, reports))) - others if reports else FIRST
        return max(1, min(free, int(self._most), self._ceiling))

    @property
    def has_place(self) -> bool:
        """True if another part may begin."""
        return self.speaking < self.most

    def begin(self) -> int:
        """Counts a part as in progress; returns what `end` is told."""
        self.speaking += 1
        return self._window

    def end(self, window: int, *, is_refused: bool = False) -> None:
        """A part has ended.

        Args:
            window: what `begin` has returned: parts that began before a refusal say nothing about what followed it.
            is_refused: for want of room.
        """
        self.speaking -= 1
        if not self._is_auto:
            return
        if not is_refused:
            self._most = min(self._ceiling, self._most + (1.0 if self._doubles else 1.0 / self._most))
        elif window == self._window:
            self._most, self._doubles, self._window = max(1.0, self._most / 2), False, self._window + 1
