"""Audio: the samples of one reply and the report of what was done to them.

In:    CacheResult
Out:   AudioChunk, AudioReport
Never: containers, codecs
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.types.speech import CacheResult
from pipeline.types.timing import Coverage, TimedItem


@dataclass(frozen=True, slots=True)
class AudioReport:
    """What was done to the samples of a whole stream."""

    steps: int
    """decoded; the model generates 46.875 per second of speech"""
    trimmed_ms: tuple[int, int] = (0, 0)
    """cut before the first and after the last sound, measured before any time-stretch [ms]"""
    denoised: bool = False
    coverage: Coverage | None = None
    """of the words whose times were followed; None: of none"""


@dataclass(frozen=True, slots=True, eq=False)
class AudioChunk:
    """Samples that are sent together: mono, at the request's rate."""

    samples: NDArray[np.float32]  # (m,) in [-1, 1]
    first_sample: int
    is_last: bool
    warnings: tuple[tuple[str, int], ...] = ()
    """(code, count): SpeechPlan.warnings on a stream's first chunk; on its last those of the takes, on the first those known"""
    cache: CacheResult = CacheResult.BYPASS
    """where the steps of the first segment came from"""
    is_made: bool = False
    """the model makes steps for this request: the cache lacks a part of what was asked for so far"""
    times: tuple[TimedItem, ...] = ()
    """what is told before these samples are sent; no sample was sent before that belongs to a word of it"""
    report: AudioReport | None = None
    """on a stream's last chunk"""
