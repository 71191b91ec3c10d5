"""Resample: converts a stream to another sample rate.

In:    samples (m,) float32, mono, in pieces of any size
Out:   samples float32, the same ones however the input was cut; n samples become round(n x out / in), halves up
Owns:  one stream's filter memory
Never: pitch, tempo, formats, threads
"""

import numpy as np
import soxr
from numpy.typing import NDArray

from pipeline.spec import SAMPLE_RATE

# libsoxr's 20 bits: no error a 16-bit sample could show, at half the delay of its next better filter (39 ms, not 79).
_QUALITY = "HQ"


def resampled_length(samples: int, rate: int, from_rate: int = SAMPLE_RATE) -> int:
    """Returns the length at `rate` of `samples` at `from_rate` [samples]."""
    return (2 * samples * rate + from_rate) // (2 * from_rate)


class Resample:
    """Resamples one stream."""

    def __init__(self, rate: int, from_rate: int = SAMPLE_RATE) -> None:
        """
        Args:
            rate: of the output [Hz].
            from_rate: of the input [Hz].
        """
        self._rate = rate
        self._from_rate = from_rate
        self._stream = soxr.ResampleStream(from_rate, rate, 1, dtype="float32", quality=_QUALITY)
        self._taken = 0
        self._given = 0

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes samples (m,), returns those that are final."""
        self._taken += len(samples)
        return self._give(self._stream.resample_chunk(samples))

    def finish(self) -> NDArray[np.float32]:
        """Returns the samples that were still in the filter."""
        rest = self._give(self._stream.resample_chunk(np.zeros(0, np.float32), last=True))
        # soxr rounds the length in its own way: off by one sample at most.
        missing = resampled_length(self._taken, self._rate, self._from_rate) - self._given
        return np.concatenate([rest, np.zeros(missing, np.float32)])

    def _give(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        due = resampled_length(self._taken, self._rate, self._from_rate) - self._given
        given = samples[:due]
        self._given += len(given)
        return given
