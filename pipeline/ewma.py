"""Ewma: a running mean in which the latest measurements count most.

In:    measurements
Out:   their exponentially weighted mean
Owns:  that number
Never: clocks, locks
"""


class Ewma:
    """Of one quantity, in its unit."""

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
        """Count one more."""
        self.value = measured if self._is_guess else self.value + self._weight * (measured - self.value)
        self._is_guess = False
