"""Pace: learns how a step's duration grows with its rows, and how many rows leave every stream faster than speech.

In:    each round: its rows, the duration of its steps, the prefill before it
Out:   the most rows at which a stream keeps its pace; how long a step of so many rows takes
Owns:  running sums of the latest rounds
Never: torch, clocks, which sequences they are

A step of n rows takes a + b n seconds: the least squares of the latest rounds. Prefills stop all rows, and the more rows there
are the more of them end and begin, so a row's share of the time in prefills is added to b. Until rounds of different sizes have
been seen, three rows more are taken to double the step of one.
"""

import math

from pipeline.spec import STEPS_PER_SECOND

DECAY = 0.995  # of all sums, per round: the latest two hundred count
MOST_TIMES = 4.0  # times the mean is the most one round counts: a process that was stopped is not slow
LEAST_VARIANCE = 0.1  # of the number of rows, from which on its effect can be told
LONGER = 1.1  # rounds, as `sure_rows` assumes
ROWS_TO_DOUBLE = 3  # the step of one row, before anything is known


class Pace:
    """How fast the streams of one engine are."""

    def __init__(self, slowest: float | None, slots: int) -> None:
        """
        Args:
            slowest: the largest real-time factor of a stream; None: any.
            slots: rows of the engine.
        """
        self._slowest = slowest
        self._slots = slots
        self._weight = self._rows = self._squares = self._times = self._products = self._prefills = 0.0
        self._slope: float | None = None  # seconds per row
        self.rounds = 0
        """counted so far"""

    def add(self, rows: int, step_s: float, prefill_s: float) -> None:
        """Counts one round.

        Args:
            rows: sequences that decoded in it, at least one.
            step_s: duration of one of its steps [s].
            prefill_s: duration of the prefill call before it, per step of the round [s].
        """
        self.rounds += 1
        if self._weight:
            step_s = min(step_s, MOST_TIMES * self._times / self._weight)
        self._weight = DECAY * self._weight + 1
        self._rows = DECAY * self._rows + rows
        self._squares = DECAY * self._squares + rows * rows
        self._times = DECAY * self._times + step_s
        self._products = DECAY * self._products + rows * step_s
        self._prefills = DECAY * self._prefills + prefill_s
        mean = self._rows / self._weight
        variance = self._squares / self._weight - mean * mean
        if variance > LEAST_VARIANCE:
            covariance = self._products / self._weight - mean * self._times / self._weight
            self._slope = min(max(0.0, covariance / variance), self._times / self._rows)  # no step of 0 rows takes less than 0

    @property
    def fast_rows(self) -> int:
        """The most rows that leave every stream as fast as it must be; 0 where not even one alone would be."""
        return self._rows_within(1.0)

    @property
    def most_rows(self) -> int:
        """The most rows that listeners get: all where none would be fast enough, because nobody gains by waiting."""
        return self.fast_rows or self._slots

    @property
    def sure_rows(self) -> int:
        """As many of them as there will be if rounds become a little longer; two at least, where there are two."""
        return min(self.most_rows, max(2, self._rows_within(LONGER) or self._slots))

    def _rows_within(self, longer: float) -> int:
        """Returns the most rows if rounds were so many times as long."""
        if self._slowest is None or not self._times:
            return self._slots
        fixed, slope = self.line()
        per_row = slope + self._prefills / self._rows
        longest_s = self._slowest / STEPS_PER_SECOND  # of a step
        if fixed + per_row > longest_s:
            return 0
        if not per_row:
            return self._slots
        return min(self._slots, max(1, math.floor((longest_s / longer - fixed) / per_row)))

    def line(self) -> tuple[float, float]:
        """Returns a and b: a step of n rows takes a + b n; both 0 before the first round [s]."""
        if not self._times:
            return 0.0, 0.0
        mean_rows, mean_s = self._rows / self._weight, self._times / self._weight
        slope = mean_s / (mean_rows + ROWS_TO_DOUBLE) if self._slope is None else self._slope
        return mean_s - slope * mean_rows, slope
