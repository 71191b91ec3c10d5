"""Speech: the decode steps of a sequence, and why it ended.

In:    nothing
Out:   StepBlock
Owns:  nothing
Never: samples, scheduling
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class CacheResult(StrEnum):
    """Where steps came from."""

    HIT = "hit"
    MISS = "miss"
    JOINED = "joined"
    """another request was generating them"""
    BYPASS = "bypass"
    """the cache was not used"""


class FinishReason(StrEnum):
    """Why a sequence ended by itself. Every other end is an exception (pipeline/errors.py)."""

    EOS = "eos"
    """the model drew the end token"""
    LENGTH = "length"
    """the step cap was reached"""


@dataclass(frozen=True, slots=True)
class Admission:
    """How long a sequence waited for its first decode round."""

    waited_s: float
    """from submission to a slot [s]"""
    prefill_s: float
    """from the slot to the first decode round; on a GPU the time to enqueue the work [s]"""


@dataclass(frozen=True, slots=True, eq=False)
class StepBlock:
    """Consecutive steps of one sequence."""

    hidden: NDArray[np.float32]  # (n, width)
    codes: NDArray[np.int64]  # (n, 4); TEXT sequences: (n, 1)
    first_step: int
    finish: FinishReason | None = None
    """set on the last block, which may be empty"""
    admission: Admission | None = None
    """on the first block"""
    fingerprint: str = ""
    """on the last block: the weights, code and configuration that generated the steps; empty: unknown"""

    @property
    def stop(self) -> int:
        """Number of steps of the sequence up to the end of this block."""
        return self.first_step + len(self.codes)

    def after(self, position: int) -> "StepBlock":
        """Returns the part from step `position` of the sequence on; it may have no steps."""
        skipped = position - self.first_step
        if skipped <= 0:
            return self
        return replace(self, hidden=self.hidden[skipped:], codes=self.codes[skipped:], first_step=position)
