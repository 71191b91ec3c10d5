"""Fade: lets a stream begin and end at zero, without a click.

In:    samples (m,) float32, in pieces of any size
Out:   as many samples
Owns:  the last `length` samples, which may be the end
Never: gain between the two fades
"""

import numpy as np
from numpy.typing import NDArray


class Fade:
    """Raises the first samples and lowers the last ones, half a cosine each."""

    def __init__(self, length: int) -> None:
        """
        Args:
            length: of each fade [samples]; a shorter stream gets what fits of both.
        """
        assert length > 0
        self._rise = (0.5 - 0.5 * np.cos(np.pi * (np.arange(length) + 0.5) / length)).astype(np.float32)  # (length,)
        self._risen = 0  # samples of the rise that have been used
        self._held = np.zeros(0, np.float32)

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes samples (m,), returns those that are not among the last `length`."""
        rise = self._rise[self._risen : self._risen + len(samples)]
        self._risen += len(rise)
        held = np.concatenate([self._held, samples[: len(rise)] * rise, samples[len(rise) :]])
        final = max(0, len(held) - len(self._rise))
        self._held = held[final:]
        return held[:final]

    def finish(self) -> NDArray[np.float32]:
        """Returns the last samples, lowered."""
        fall = self._rise[::-1]
        return self._held * fall[len(fall) - len(self._held) :]
