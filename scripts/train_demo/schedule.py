"""Schedule: how long a training goes on, by the clock, and the rate on the way.

In:    seconds
Out:   the progress, the share of the highest rate
Owns:  the shape of the rate
Never: optimisers
"""

import time


class Schedule:
    """A training of a number of seconds."""

    def __init__(self, seconds: float, trained_s: float = 0.0, *, warm_up: int = 100, last_part: float = 0.4) -> None:
        """
        Args:
            trained_s: what earlier runs have used of it.
            warm_up: steps until the highest rate.
            last_part: of the training, in which the rate falls to zero.
        """
        self._began, self._seconds, self._warm_up, self._last_part = time.monotonic() - trained_s, seconds, warm_up, last_part

    @property
    def trained_s(self) -> float:
        """The duration until now, earlier runs included [s]."""
        return time.monotonic() - self._began

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return min(1.0, self.trained_s / self._seconds)

    def share(self, step: int) -> float:
        """Returns the share of the highest rate: a warm-up, a plateau, a fall to zero."""
        return min(1.0, (step + 1) / self._warm_up, (1 - self.progress) / self._last_part)
