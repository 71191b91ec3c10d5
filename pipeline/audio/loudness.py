"""Loudness: measures how loud speech is to a listener, and brings it to a target by one constant gain.

In:    samples (m,) float32, mono
Out:   LUFS; the same samples times one number
Owns:  the head of one voice's speech, until it is measured
Never: a gain that changes within a stream

Source: ITU-R BS.1770-5: K-weighting, blocks of 400 ms, gates at -70 LUFS and 10 LU under the mean.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.spec import SAMPLE_RATE

SILENCE_LUFS = -70.0
"""the standard's absolute gate; quieter than any speech"""
BLOCK_S = 0.4
"""the standard's block: what is shorter has no integrated loudness [s]"""
MAX_CORRECTION_DB = 24.0

_HEAD = 2 * SAMPLE_RATE  # samples: two seconds
_STEP_S = 0.1
_RELATIVE_GATE_LU = 10.0


def integrated_loudness(samples: NDArray[np.float32], sample_rate: int = SAMPLE_RATE) -> float:
    """Returns the integrated loudness [LUFS] of samples (m,); minus infinity for silence. Less than one block counts as one."""
    step = round(_STEP_S * sample_rate)
    steps_per_block = round(BLOCK_S / _STEP_S)
    if not len(samples):
        return -np.inf
    power = _k_weighted(samples, sample_rate) ** 2
    if len(power) < steps_per_block * step:
        blocks = np.array([power.mean()])
    else:
        steps = power[: len(power) - len(power) % step].reshape(-1, step).mean(axis=1)
        blocks = np.lib.stride_tricks.sliding_window_view(steps, steps_per_block).mean(axis=1)
    loud = blocks[blocks > _power(SILENCE_LUFS)]
    if not len(loud):
        return -np.inf
    return _lufs(loud[loud > loud.mean() * 10 ** (-_RELATIVE_GATE_LU / 10)].mean())


class Level:
    """Brings one voice to a loudness by a constant gain."""

    def __init__(self, target_lufs: float | None, *, gain_db: float = 0.0, measured_lufs: float | None = None) -> None:
        """
        Args:
            target_lufs: None: no target.
            gain_db: on top of the target's gain [dB].
            measured_lufs: of the voice; None: the first two seconds are held back and measured.
        """
        self._target_lufs = target_lufs
        self._gain_db = gain_db
        self._gain = None if target_lufs is not None and measured_lufs is None else self._gain_from(measured_lufs)
        self._head = np.zeros(0, np.float32)

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes samples (m,), returns those whose gain is known."""
        if self._gain is not None:
            return samples if self._gain == 1 else samples * self._gain
        self._head = np.concatenate([self._head, samples])
        return np.zeros(0, np.float32) if len(self._head) < _HEAD else self._decide()

    def finish(self) -> NDArray[np.float32]:
        """Ends a segment: a head that is shorter is measured as it is."""
        return self._decide() if self._gain is None and len(self._head) else np.zeros(0, np.float32)

    def _decide(self) -> NDArray[np.float32]:
        # Exactly the head: the measurement must not depend on how the input was cut.
        self._gain = self._gain_from(integrated_loudness(self._head[:_HEAD]))
        levelled = self._head * self._gain
        self._head = self._head[:0]
        return levelled

    def _gain_from(self, measured_lufs: float | None) -> np.float32:
        correction_db = 0.0
        if self._target_lufs is not None and measured_lufs is not None and measured_lufs > SILENCE_LUFS:
            correction_db = float(np.clip(self._target_lufs - measured_lufs, -MAX_CORRECTION_DB, MAX_CORRECTION_DB))
        return np.float32(10 ** ((correction_db + self._gain_db) / 20))


def _k_weighted(samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float64]:
    """Returns samples (m,) after the standard's two filters, applied by their frequency responses."""
    padded = len(samples) + sample_rate // 2  # the filters ring for less than half a second
    z = np.exp(-2j * np.pi * np.fft.rfftfreq(padded))
    response = np.ones(len(z), np.complex128)
    for numerator, denominator in _k_filters(sample_rate):
        response *= np.polyval(numerator[::-1], z) / np.polyval(denominator[::-1], z)
    return np.fft.irfft(np.fft.rfft(samples.astype(np.float64), padded) * response, padded)[: len(samples)]


def _k_filters(sample_rate: int) -> tuple[tuple[list[float], list[float]], ...]:
    """Returns (b, a) of the high shelf and the high pass. The standard lists them for 48 kHz only; their analogue forms, from
    which the coefficients of any rate follow, are those of libebur128 (ebur128.c, init_filter)."""
    k, q, high = np.tan(np.pi * 1681.974450955533 / sample_rate), 0.7071752369554196, 10 ** (3.999843853973347 / 20)
    band, a0 = high**0.4996667741545416, 1 + k / q + k * k
    shelf = (
        [(high + band * k / q + k * k) / a0, 2 * (k * k - high) / a0, (high - band * k / q + k * k) / a0],
        [1.0, 2 * (k * k - 1) / a0, (1 - k / q + k * k) / a0],
    )
    k, q = np.tan(np.pi * 38.13547087602444 / sample_rate), 0.5003270373238773
    a0 = 1 + k / q + k * k
    return shelf, ([1.0, -2.0, 1.0], [1.0, 2 * (k * k - 1) / a0, (1 - k / q + k * k) / a0])


def _lufs(power: float) -> float:
    return float(10 * np.log10(power) - 0.691)


def _power(lufs: float) -> float:
    return float(10 ** ((lufs + 0.691) / 10))
