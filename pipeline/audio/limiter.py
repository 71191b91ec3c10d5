"""Limiter: no peak above -1 dBTP, without distortion and without a shift.

In:    samples (m,) float32, any level, in pieces of any size
Out:   as many samples, in the same places; those far enough from every peak unchanged to the bit
Owns:  one stream's look-ahead
Never: raises a level

For each sample: `tp`, the peak of the curve through the samples between it and the next one, and so the reduction it
needs. The reduction applied is the greatest one needed nearby, smoothed:

    needed        ......|...................    1 - ceiling / tp
    greatest      ..[=================].....    from R before to R + HOLD after
    smoothed      ./====================\\..    Hann, R each side: still all that is needed at the peak, and no corner

Everything is a finite sum around the sample, so a peak has no effect soon after it. HOLD is longer than a period of the
deepest voice: within a vowel the gain is constant.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from pipeline.audio.framing import Blocks

CEILING_DBTP = -1.0

_SMOOTH_S = 0.010
_HOLD_S = 0.060
_PHASES = 8  # points of the curve per sample; between two of them the curve is at most 0.17 dB higher
_HALF = 24  # samples on each side from which a point of the curve is computed
# Below the ceiling by those 0.17 dB and by what the changing gain adds to the curve.
_TARGET = np.float32(10 ** ((CEILING_DBTP - 0.25) / 20))
_BLOCK = 512  # samples


class Limiter:
    """Limits one stream."""

    def __init__(self, sample_rate: int) -> None:
        """
        Args:
            sample_rate: of the samples [Hz].
        """
        self._radius = round(_SMOOTH_S * sample_rate)
        self._hold = round(_HOLD_S * sample_rate)
        hann = np.hanning(2 * self._radius + 3)[1:-1]
        self._smooth = (hann / hann.sum()).astype(np.float32)  # (2 radius + 1,)
        self._curve = _curve_taps()
        self._blocks = Blocks(_BLOCK, np.float32)
        # Absolute places: `samples` ends with what was fed, `reductions` where the curve is known.
        self._samples = np.zeros(_HALF - 1, np.float32)
        self._reductions = np.zeros(2 * self._radius + self._hold, np.float32)
        self._samples_in = 0
        self._samples_out = 0

    @property
    def look_ahead(self) -> int:
        """Samples that are held back. The output is not shifted: the first samples come later, the last with `finish`."""
        return 2 * self._radius + _HALF

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes samples (m,), returns those that are final."""
        self._samples_in += len(samples)
        return self._advance(samples)

    def finish(self) -> NDArray[np.float32]:
        """Returns the samples that were still inside."""
        remainder = self._samples_in - self._samples_out
        return self._advance(np.zeros(self.look_ahead + _BLOCK, np.float32))[:remainder]

    def _advance(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        limited = [np.zeros(0, np.float32)]
        limited += [self._limit(block) for block in self._blocks.feed(samples)]
        output = np.concatenate(limited)
        self._samples_out += len(output)
        return output

    def _limit(self, block: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes one more block; returns a block of final samples, fewer at the beginning."""
        self._samples = np.concatenate([self._samples, block])
        windows = sliding_window_view(self._samples[-(len(block) + 2 * _HALF - 1) :], 2 * _HALF)
        peaks = np.maximum(np.abs(windows[:, _HALF - 1]), np.abs(windows @ self._curve).max(axis=1))
        self._reductions = np.concatenate([self._reductions, 1 - _TARGET / np.maximum(peaks, _TARGET)])

        before = 2 * self._radius + self._hold  # reductions before the first sample to be given
        count = len(self._reductions) - before - 2 * self._radius  # samples whose surroundings are known
        if count <= 0:
            return np.zeros(0, np.float32)
        # `samples` also has the _HALF newest ones, whose curve is not known yet.
        first = len(self._samples) - _HALF - 2 * self._radius - count
        output = self._samples[first : first + count]
        if self._reductions.any():
            greatest = _sliding_max(self._reductions, 2 * self._radius + self._hold + 1)
            output = output * (1 - np.convolve(greatest, self._smooth, "valid"))
        self._reductions = self._reductions[count:]
        self._samples = self._samples[-(2 * self._radius + 2 * _HALF) :]
        return output


def _curve_taps() -> NDArray[np.float32]:
    """Returns weights of 2 _HALF samples for the points between the middle two: (2 _HALF, _PHASES - 1)."""
    places = np.arange(-_HALF + 1, _HALF + 1)[:, None] - np.arange(1, _PHASES) / _PHASES
    taps = np.sinc(places) * np.i0(4 * np.sqrt(1 - (places / _HALF) ** 2)) / np.i0(4)  # Kaiser window
    weights: NDArray[np.float32] = (taps / taps.sum(axis=0)).astype(np.float32)
    return weights


def _sliding_max(values: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Returns the greatest of each `width` neighbours, (len - width + 1,): windows of 2, 4, 8 ... out of two each."""
    reach = 1
    while 2 * reach <= width:
        values = np.maximum(values[:-reach], values[reach:])
        reach *= 2
    rest = width - reach
    return np.maximum(values[: len(values) - rest], values[rest:]) if rest else values
