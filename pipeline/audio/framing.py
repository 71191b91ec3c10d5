"""Framing: cuts a stream into blocks of one size, whatever the size of its pieces.

In:    samples (m,), in pieces of any size
Out:   whole blocks, then what is left
Owns:  the samples of the block that is not whole yet

A stage that works on whole blocks gets the same calls however its input was cut, so it returns the same bits: no rounding,
no filter state and no SIMD remainder can depend on the cuts.
"""

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Sample = TypeVar("Sample", np.float32, np.int16)


class Blocks(Generic[Sample]):
    """Cuts one stream into blocks."""

    def __init__(self, size: int, dtype: type[Sample]) -> None:
        self._size = size
        self._pending: NDArray[Sample] = np.zeros(0, dtype)

    def feed(self, samples: NDArray[Sample]) -> NDArray[Sample]:
        """Takes samples (m,), returns the whole blocks: (n, size), n may be 0."""
        pending = np.concatenate([self._pending, samples])
        whole = len(pending) - len(pending) % self._size
        self._pending = pending[whole:].copy()  # not a view: it would keep all that was fed
        return pending[:whole].reshape(-1, self._size)

    def rest(self) -> NDArray[Sample]:
        """Returns the remainder, fewer than `size` samples; nothing is held afterwards."""
        rest, self._pending = self._pending, self._pending[:0]
        return rest
