"""Measure: the loudness of a voice, and its stability over several recordings.

In:    samples (m,) float32, 24 kHz
Out:   LUFS, decibels, a score
Never: streams; a voice is measured once, before its first request
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeline.audio.loudness import BLOCK_S, integrated_loudness
from pipeline.spec import SAMPLE_RATE

MAX_GAIN_DB = 12.0  # a voice further away has a problem that gain cannot solve

FRAME = 1024  # samples, 43 ms
STEP = 512
MIN_PITCH_HZ, MAX_PITCH_HZ = 60.0, 500.0
NEARLY = 0.9
VOICED = 0.5  # autocorrelation from which a frame has a pitch
BANDS = 40
PITCH_SPREAD_SEMITONES = 12.0  # standard deviation for which the score of the pitch is 0


def loudness_lufs(samples: NDArray[np.float32], rate: int = SAMPLE_RATE) -> float | None:
    """Returns the integrated loudness [LUFS] to two places; None for silence and for less than one block of the measure.

    Args:
        samples: (m,), mono.
        rate: of the samples [Hz].
    """
    if len(samples) < BLOCK_S * rate:
        return None
    lufs = integrated_loudness(samples, rate)
    return round(lufs, 2) if np.isfinite(lufs) else None


def static_gain_db(lufs: float | None, target_lufs: float | None) -> float:
    """Returns the gain that brings a voice to the target [dB]; 0 if it could not be measured, or without a target."""
    if lufs is None or target_lufs is None:
        return 0.0
    return round(float(np.clip(target_lufs - lufs, -MAX_GAIN_DB, MAX_GAIN_DB)), 2)


def stability(takes: list[NDArray[np.float32]]) -> dict[str, float]:
    """Returns how alike several recordings of a voice are, 0 .. 1.

    Returns:
        stability: timbre x pitch.
        timbre: mean over all pairs of the cosine between their mean log spectra, each without its own mean; 0 .. 1.
        pitch_spread_semitones: standard deviation of the takes' median pitch, 12 of them are a pitch of 0.
    """
    assert len(takes) > 1
    timbres = [_timbre(take) for take in takes]
    cosines = [float(a @ b) for index, a in enumerate(timbres) for b in timbres[index + 1 :]]
    timbre = float(np.clip(np.mean(cosines), 0, 1))
    pitches = [pitch for take in takes if (pitch := median_pitch_hz(take)) is not None]
    spread = float(np.std(12 * np.log2(pitches))) if len(pitches) > 1 else 0.0
    pitch = max(0.0, 1 - spread / PITCH_SPREAD_SEMITONES)
    return {"stability": round(timbre * pitch, 3), "timbre": round(timbre, 3), "pitch_spread_semitones": round(spread, 2)}


def median_pitch_hz(samples: NDArray[np.float32]) -> float | None:
    """Returns the median fundamental of the voiced frames [Hz]; None if hardly a frame is voiced."""
    pitches = pitches_hz(samples)
    return float(np.nanmedian(pitches)) if np.isfinite(pitches).sum() >= 3 else None


def pitches_hz(samples: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the fundamental [Hz] of each frame in the louder half of (m,) samples, by autocorrelation; NaN if unvoiced."""
    frames = _frames(samples)
    frames = frames - frames.mean(axis=1, keepdims=True)
    spectra = np.fft.rfft(frames, 2 * FRAME, axis=1)
    correlation = np.fft.irfft(np.abs(spectra) ** 2, axis=1)[:, :FRAME]
    shortest, longest = int(SAMPLE_RATE / MAX_PITCH_HZ), int(SAMPLE_RATE / MIN_PITCH_HZ)
    # A longer lag compares fewer samples.
    normal = correlation / (correlation[:, :1] * (1 - np.arange(FRAME) / FRAME) + 1e-9)
    within = normal[:, shortest:longest]
    best = within.max(axis=1)
    # Multiples of the period correlate as well as the period: take the first peak that is nearly as high as the highest.
    peak = (within >= normal[:, shortest - 1 : longest - 1]) & (within >= normal[:, shortest + 1 : longest + 1])
    lags = shortest + (peak & (within >= NEARLY * best[:, None])).argmax(axis=1)
    pitches: NDArray[np.float64] = np.where(best >= VOICED, SAMPLE_RATE / lags, np.nan)
    return pitches


def brightness_hz(samples: NDArray[np.float32]) -> float:
    """Returns the centroid of the mean spectrum of the speech [Hz]: the higher, the brighter."""
    power = (np.abs(np.fft.rfft(_frames(samples) * np.hanning(FRAME), axis=1)) ** 2).mean(axis=0)
    return float(power @ np.fft.rfftfreq(FRAME, 1 / SAMPLE_RATE) / (power.sum() + 1e-12))


def _timbre(samples: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the mean log power in BANDS bands, spaced like the ear's, without its mean, of length 1."""
    power = np.abs(np.fft.rfft(_frames(samples) * np.hanning(FRAME), axis=1)) ** 2
    edges = np.unique(np.geomspace(2, power.shape[1], BANDS + 1).astype(int))
    bands = np.stack([power[:, start:stop].mean(axis=1) for start, stop in pairwise(edges)], axis=1)
    mean: NDArray[np.float64] = np.log(bands + 1e-8).mean(axis=0)
    mean = mean - mean.mean()
    return mean / (np.linalg.norm(mean) + 1e-12)


def _frames(samples: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the louder half of the frames, (frames, FRAME): the speech, not the pauses."""
    padded = np.pad(samples.astype(np.float64), (0, max(0, 2 * FRAME - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::STEP]
    power = (frames**2).mean(axis=1)
    loud: NDArray[np.float64] = frames[power >= np.median(power)]
    return loud
