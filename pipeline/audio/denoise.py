"""Denoise: takes constant noise, hiss and hum, out of one voice's speech.

In:    the samples of a segment, float32 at 24 kHz, in pieces of any size
Out:   as many samples, in the same places
Owns:  the measured noise of this voice, the unfinished frames of the segment
Never: noise that changes; by default the noise that ChatTTS's authors trained into it to limit misuse

    frames of 21 ms, four deep -> spectrum -> power, averaged over 5 frames x 3 bins -> gain 1 - 2 noise / power -> back

The noise is measured once, in the first second: in each band the tenth of it that is quietest. White noise's power is
exponentially distributed, so that quantile is a known fraction of the mean.
"""

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from pipeline.audio.framing import Blocks
from pipeline.spec import SAMPLE_RATE
from pipeline.types import Denoise

AUTO_BELOW_DB = 20.0
"""signal to noise below which `auto` works"""

_WINDOW = 512  # samples: 21 ms
_HOP = _WINDOW // 4
_BLOCK = 4 * _HOP
_AROUND = 2  # frames on each side that are averaged with a frame's own power
_HEAD = SAMPLE_RATE  # samples: one second
_DELAY = _WINDOW - _HOP + _AROUND * _HOP  # samples by which the output is behind the input
_QUANTILE = 0.1
_OF_MEAN = -math.log(1 - _QUANTILE)  # the quantile of an exponential distribution of mean 1
_OVERSUBTRACT = 2.0
_LEAST_GAIN = 10 ** (-18 / 20)  # some noise remains: gaps of digital silence sound like faults
_NOTHING = 1e-12

_HANN = np.sqrt(np.hanning(_WINDOW + 1)[:-1]).astype(np.float32)
_OVERLAP = np.float32(2.0)  # four squared windows at once, everywhere


class Denoiser:
    """Denoises one voice. Feed a segment, finish it, feed the next one: the noise is measured once."""

    def __init__(self, mode: Denoise) -> None:
        """
        Args:
            mode: ON, or AUTO: only where the first second has less than 20 dB of signal over noise.
        """
        assert mode is not Denoise.OFF
        self._mode = mode
        self._noise: NDArray[np.float32] | None = None  # (bins,) power
        self._head = np.zeros(0, np.float32)
        self._gate: _Gate | None = None  # of the present segment
        self.works: bool | None = None
        """True if samples are changed; None: the noise is not known yet, and no sample is returned"""

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes samples (m,) of the segment, returns those that are final."""
        if self.works is not None:
            return self._treat(samples)
        self._head = np.concatenate([self._head, samples])
        return np.zeros(0, np.float32) if len(self._head) < _HEAD else self._decide()

    def finish(self) -> NDArray[np.float32]:
        """Ends the segment; returns the rest, so that it has as many samples as went in."""
        # A first segment of less than a second is measured as it is.
        rest = self._decide() if self.works is None and len(self._head) else np.zeros(0, np.float32)
        gate, self._gate = self._gate, None
        return rest if gate is None else np.concatenate([rest, gate.finish()])

    def _decide(self) -> NDArray[np.float32]:
        # Exactly the head: the measurement must not depend on how the input was cut.
        self._noise, snr_db = measure_noise(self._head[:_HEAD])
        self.works = self._mode is Denoise.ON or snr_db < AUTO_BELOW_DB
        head, self._head = self._head, self._head[:0]
        return self._treat(head)

    def _treat(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self.works:
            return samples
        assert self._noise is not None
        self._gate = self._gate or _Gate(self._noise)
        return self._gate.feed(samples)


def measure_noise(samples: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
    """Returns the noise under speech (m,): its power in each of 257 bands, and the speech's level above it [dB].

    Less than one frame of samples has no noise.
    """
    if len(samples) < _WINDOW:
        return np.zeros(_WINDOW // 2 + 1, np.float32), math.inf
    power = _power(_spectra(samples))
    noise = np.quantile(power, _QUANTILE, axis=0).astype(np.float32) / np.float32(_OF_MEAN)
    noise = _averaged_over_bins(noise[None])[0]
    speech = max(float(power.mean(axis=0).sum() - noise.sum()), _NOTHING)
    return noise, 10 * math.log10(speech / max(float(noise.sum()), _NOTHING))


class _Gate:
    """One segment through the spectral gate.

    Frame i covers samples [i x HOP - 384, i x HOP + 128): each sample is in four frames, the first one too, because
    silence precedes it.
    """

    def __init__(self, noise: NDArray[np.float32]) -> None:
        self._noise = np.float32(_OVERSUBTRACT) * noise
        self._blocks = Blocks(_BLOCK, np.float32)
        self._samples = np.zeros(_WINDOW - _HOP, np.float32)
        self._spectra = np.zeros((2 * _AROUND, _WINDOW // 2 + 1), np.complex64)
        self._sum = np.zeros(_WINDOW - _HOP, np.float32)  # of the frames so far, where more are to come
        self._early = _DELAY  # samples still to be returned that precede the segment
        self._samples_in = 0
        self._samples_out = 0

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        self._samples_in += len(samples)
        ready = np.concatenate([np.zeros(0, np.float32), *map(self._advance, self._blocks.feed(samples))])
        early = min(self._early, len(ready))
        self._early -= early
        self._samples_out += len(ready) - early
        return ready[early:]

    def finish(self) -> NDArray[np.float32]:
        remainder = self._samples_in - self._samples_out
        return self.feed(np.zeros(_DELAY + _BLOCK, np.float32))[:remainder]

    def _advance(self, block: NDArray[np.float32]) -> NDArray[np.float32]:
        """Processes four more frames; returns one block of samples that no later frame touches."""
        samples = np.concatenate([self._samples, block])
        self._samples = samples[-(_WINDOW - _HOP) :]
        spectra = np.concatenate([self._spectra, _spectra(samples)])
        self._spectra = spectra[-2 * _AROUND :]
        power = _averaged_over_bins(sliding_window_view(_power(spectra), 2 * _AROUND + 1, axis=0).mean(axis=-1))
        gain = np.maximum(1 - self._noise / np.maximum(power, _NOTHING), np.float32(_LEAST_GAIN))
        frames = np.fft.irfft(spectra[_AROUND:-_AROUND] * gain, _WINDOW) * (_HANN / _OVERLAP)
        total = np.concatenate([self._sum, np.zeros(_BLOCK, np.float32)])
        for index, frame in enumerate(frames):
            total[index * _HOP : index * _HOP + _WINDOW] += frame
        self._sum = total[_BLOCK:]
        return total[:_BLOCK]


def _spectra(samples: NDArray[np.float32]) -> NDArray[np.complex64]:
    """Returns the spectra of all whole frames: (n, bins)."""
    return np.fft.rfft(sliding_window_view(samples, _WINDOW)[::_HOP] * _HANN).astype(np.complex64, copy=False)


def _power(spectra: NDArray[np.complex64]) -> NDArray[np.float32]:
    return np.square(spectra.real) + np.square(spectra.imag)


def _averaged_over_bins(power: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the mean of each bin and its two neighbours; (n, bins) both."""
    padded = np.pad(power, ((0, 0), (1, 1)), mode="edge")
    return (padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / np.float32(3)
