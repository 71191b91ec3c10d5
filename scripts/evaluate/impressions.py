"""Impressions: how a recording of a sentence sounds, by judges that do not know who speaks.

In:    samples at 24 kHz, the teacher's phones of the sentence
Out:   Impression
Owns:  the alphabet in which phones are compared
Never: synthesis, tables

Naturalness is judged by DNSMOS (P.835: overall, signal, background; P.808), English phones by the recogniser of the package
hama. It answers in phones of several languages; sounds that American speakers do not keep apart count as equal.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from pipeline.spec import SAMPLE_RATE
from pipeline.voices.measure import loudness_lufs, pitches_hz
from scripts.train_demo.phones import STOPS, SYMBOLS
from scripts.train_demo.sounds import SPACE, Unit
from scripts.train_demo.teacher_phones import symbols_of
from scripts.train_demo.word_errors import edits

PACKAGES = ("speechmos", "librosa", "hama", "misaki")
RATE = 16_000  # of the judges
LOUDNESS_LUFS = -26.0
SILENCE_DB = -40.0  # below the loudest moment
MOMENT = SAMPLE_RATE // 100
LEAST_PITCHES = 16  # of a range
_OCTAVE = 12.0
_SIGNS = "aɪ:ay aʊ:aw eɪ:ey oʊ:ow ɔɪ:oy o:ow d͡ʒ:jh t͡ʃ:ch eə:eh ɪə:ih g:g r:r ɫ:l"
_RECOGNISED = {sign: SYMBOLS[name] for pair in _SIGNS.split() for sign, name in [pair.split(":")]}
_AS_RECOGNISED = {"ðə": "ði", "tə": "tO", "tʊ": "tO"}  # words without stress, which it writes as a dictionary does
_ALIKE = str.maketrans({SYMBOLS["ax"]: SYMBOLS["ah"], SYMBOLS["ao"]: SYMBOLS["aa"]})


class MissingPackages(ImportError):
    """Packages of the judges are not installed."""


@dataclass(frozen=True, slots=True)
class Impression:
    """A recording's marks of 1 to 5; mistakes among the phones of English text; its pitch; its pace.

    voiced: share of the louder frames that have a pitch; a hoarse voice has few.
    pitch_range [semitones]: between the 5th and the 95th percentile of the voiced frames; None without enough of them.
    pace [1/s]: English phones or Mandarin syllables.
    """

    overall: float
    signal: float
    background: float
    p808: float
    phones: int
    mistakes: int
    voiced: float
    pitch_range: float | None
    pace: float


def require(packages: Iterable[str] = PACKAGES) -> None:
    """
    Raises:
        MissingPackages: some of them are not installed; the message names the extra.
    """
    if missing := [package for package in packages if find_spec(package) is None]:
        raise MissingPackages(f"not installed: {', '.join(missing)}. They come with the extra train: pip install '.[train]'")


def impression(samples: NDArray[np.float32], units: Iterable[Unit]) -> Impression:
    """Judges (m,) samples at SAMPLE_RATE that say these units."""
    spoken = [unit for unit in units if unit.phones not in STOPS + SPACE]
    chinese = any(unit.token[-1].isdigit() for unit in spoken)
    lufs = loudness_lufs(samples)
    loud = samples * np.float32(10 ** ((LOUDNESS_LUFS - lufs) / 20)) if lufs is not None else samples
    judged = np.clip(soxr.resample(loud, SAMPLE_RATE, RATE), -1, 1).astype(np.float32)
    pitches = pitches_hz(samples)
    marks: dict[str, float] = import_module("speechmos.dnsmos").run(judged, RATE)
    expected = "" if chinese else english_phones(units)
    return Impression(
        overall=float(marks["ovrl_mos"]),
        signal=float(marks["sig_mos"]),
        background=float(marks["bak_mos"]),
        p808=float(marks["p808_mos"]),
        phones=len(expected),
        mistakes=edits(expected, recognised_phones(judged)) if expected else 0,
        voiced=float(np.isfinite(pitches).mean()),
        pitch_range=range_semitones(pitches[np.isfinite(pitches)]),
        pace=len(spoken if chinese else expected) / max(speech_s(samples), 1e-3),
    )


def english_phones(units: Iterable[Unit]) -> str:
    """Returns the phones that should be recognised, one character each."""
    words = "".join(unit.phones if unit.phones not in STOPS else SPACE for unit in units).split(SPACE)
    written = (_AS_RECOGNISED.get(word, word) for word in words)
    return "".join(symbol for word in written for symbol, _ in symbols_of(word)).translate(_ALIKE)


def recognised_phones(samples: NDArray[np.float32]) -> str:
    """Returns the phones that are recognised in (m,) samples at RATE, one character each."""
    return "".join(map(symbol_of, _recogniser()(samples, RATE).phonemes))


def symbol_of(sign: str) -> str:
    """Returns a phone of the recogniser as one character; `?` for one that is not of English, nothing for a mere mark."""
    if sign in _RECOGNISED:
        return _RECOGNISED[sign].translate(_ALIKE)
    try:
        return "".join(symbol for symbol, _ in symbols_of(sign)).translate(_ALIKE)
    except ValueError:
        return "?" if sign[0].isalpha() and sign not in "ːˑʰʷʲ" else ""


@cache
def _recogniser() -> Any:
    return import_module("hama").ASRModel()


def range_semitones(pitches: NDArray[np.float64]) -> float | None:
    """Returns the range of pitches [Hz]; those an octave from the median are taken for mistakes of the measure."""
    if len(pitches) < LEAST_PITCHES:
        return None
    semitones = 12 * np.log2(pitches / np.median(pitches))
    low, high = np.percentile(semitones[np.abs(semitones) < _OCTAVE - 1], (5, 95))
    return float(high - low)


def speech_s(samples: NDArray[np.float32]) -> float:
    """Returns the seconds from the first to the last moment that is not silent."""
    moments = samples[: len(samples) // MOMENT * MOMENT].reshape(-1, MOMENT)
    power = (moments.astype(np.float64) ** 2).mean(axis=1) if len(moments) else np.zeros(1)
    loud = np.flatnonzero(power > power.max() * 10 ** (SILENCE_DB / 10))
    return float(loud[-1] - loud[0] + 1) * MOMENT / SAMPLE_RATE if len(loud) else 0.0
