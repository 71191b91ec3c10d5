"""Ewma: a running mean in which the latest measurements count most.

In:    measurements
Out:   their exponentially weighted mean
Owns:  that number
Never: clocks, locks
"""


class Ewma:
    """The running mean of one quantity, in its unit."""

    def __init__(self, weight: float, value: float, *, is_guess: bool = False) -> None:
        """
        Args:
            weight: of the latest measurement, 0 to 1.
            value: the mean before the first measurement.
            is_guess: the first measurement replaces it.
        """
        self.value = value
        self._weight = weight
        self._is_guess = is_guess

    def add(self, measured: float) -> None:
        """Counts one more measurement."""
        self.value = measured if self._is_guess else self.value + self._weight * (measured - self.value)
        self._is_guess = False


class ClippedEwma(Ewma):
    """A mean of times with limited outliers: a process that was stopped for a minute is not slow."""

    def __init__(self, weight: float, value: float, *, most_times: float) -> None:
        """
        Args:
            weight: of the latest measurement, 0 to 1.
            value: the mean before the first measurement; 0: there is none yet, and the first measurement is the mean.
            most_times: a measurement counts as this many times the mean at most.
        """
        super().__init__(weight, value)
        self._most_times = most_times

    def add(self, measured: float) -> None:
        """Counts one more measurement."""
        if self.value:
            super().add(min(measured, self._most_times * self.value))
        else:
            self.value = measured
