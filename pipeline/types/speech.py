"""Speech: the decode steps of a sequence, and why it ended.

Out:   StepBlock
Never: scheduling
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
    """Consecutive steps of one sequence, which leave the engine together. A step is four codes, one per codebook, and the
    hidden state that the vocoder decodes; 46.875 steps are one second of audio.
    """

    hidden: NDArray[np.float32]  # (n, width)
    codes: NDArray[np.int64]  # (n, 4); TEXT sequences: (n, 1)
    first_step: int
    finish: FinishReason | None = None
    """set on the last block, which may be empty"""
    admission: Admission | None = None
    """on the first block"""
    fingerprint: str = ""
    """on the first and the last block: the weights, code and configuration that generated the steps; empty: unknown"""
    samples: NDArray[np.float32] | None = None  # (m,)
    """what the steps so far complete, if the model decodes what it generates; None: `hidden` is decoded elsewhere"""
    first_sample: int = 0
    """of the sequence, where `samples` begin"""

    @property
    def stop(self) -> int:
        """Number of steps of the sequence up to the end of this block."""
        return self.first_step + len(self.codes)

    @property
    def end(self) -> "Position":
        """Where the next block begins."""
        return Position(self.stop, self.first_sample + (0 if self.samples is None else len(self.samples)), self.fingerprint)

    def after(self, position: "Position") -> "StepBlock":
        """Returns the part from a position of the sequence on; it may have no steps and no samples."""
        skipped, unheard = position.step - self.first_step, position.sample - self.first_sample
        rest = self
        if skipped > 0:
            rest = replace(
                rest, hidden=self.hidden[skipped:], codes=self.codes[skipped:], first_step=position.step, admission=None
            )
        if self.samples is not None and unheard > 0:
            rest = replace(rest, samples=self.samples[unheard:], first_sample=position.sample)
        return rest

    @property
    def is_empty(self) -> bool:
        """True if it says nothing: no step, no sample and no end."""
        return not len(self.codes) and (self.samples is None or not len(self.samples)) and self.finish is None


@dataclass(frozen=True, slots=True)
class Position:
    """How much of a sequence has been delivered, and which build made it."""

    step: int = 0
    sample: int = 0
    build: str = ""
    """the fingerprint of its blocks; empty: unknown"""

    def __or__(self, other: "Position") -> "Position":
        """Returns the later of both, in either count."""
        return Position(max(self.step, other.step), max(self.sample, other.sample), other.build or self.build)

    @property
    def has_begun(self) -> bool:
        """True once anything has been delivered."""
        return self.step > 0 or self.sample > 0

    def precedes(self, fingerprint: str) -> bool:
        """Returns True if steps of a build may follow what has been delivered; an empty fingerprint says nothing."""
        return not self.has_begun or not fingerprint or self.build in ("", fingerprint)
