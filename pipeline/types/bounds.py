"""Bounds: the smallest and the largest value of each number that a request may choose.

Out:   one Bounds per number
Owns:  the values
Never: defaults, which are in request.py
"""

from typing import NamedTuple

MAX_SEED = 2**32 - 1


class Bounds(NamedTuple):
    """Both values are allowed."""

    least: float
    most: float

    def clamp(self, value: float) -> float:
        """Returns the allowed value nearest to `value`."""
        return min(self.most, max(self.least, value))


SPEED = Bounds(0.25, 4.0)
SEED = Bounds(0, MAX_SEED)
TEMPERATURE = Bounds(0.01, 2.0)
TOP_P = Bounds(0.05, 1.0)
TOP_K = Bounds(1, 626)  # the codes of a codebook and the end of the sequence
REPETITION_PENALTY = Bounds(0.5, 2.0)

ORAL = Bounds(0, 9)
LAUGH = Bounds(0, 2)
PAUSE = Bounds(0, 7)

GAIN_DB = Bounds(-24.0, 24.0)
LOUDNESS_LUFS = Bounds(-40.0, -10.0)
FADE_MS = Bounds(0.0, 1000.0)
