"""Speech: the decode steps of a sequence, and why it ended; the load of the engine that makes them.

Out:   StepBlock, LoadReport
Never: scheduling
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from pipeline.types.request import Lane


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


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The work before one engine at one moment."""

    usable: int
    """slots that may be taken at the present pace"""
    running: int
    waiting: int
    """sequences in slots, and without one"""
    waiting_steps: tuple[float, float, float]
    """predicted steps of those that wait, by lane, the most urgent first"""
    remaining_steps: float
    """predicted steps to come of those in slots"""
    mean_steps: float
    """predicted steps of one sequence"""
    fixed_s: float
    row_s: float
    """a step of n rows takes fixed_s + n row_s; both 0 before the first round [s]"""
    listened_steps: int
    """steps that each listener has got since start"""
    listened_s: float
    """time they took [s]"""
    replica: str = ""
    """its unique name"""
    build: str = ""
    """the fingerprint of what it generates"""

    @property
    def sequences(self) -> int:
        """How many run or wait."""
        return self.running + self.waiting

    def step_s(self, rows: int) -> float:
        """Returns how long a step takes [s]."""
        return self.fixed_s + self.row_s * min(rows, self.usable)

    @property
    def capacity(self) -> float:
        """Steps per second with all usable slots taken; 0: unknown."""
        step_s = self.step_s(self.usable)
        return self.usable / step_s if step_s else 0.0

    def first_audio_s(self, calls: int, lane: Lane, first_steps: int) -> float:
        """Returns the predicted time to the first audio of a newcomer [s].

        Args:
            calls: sequences that are there at present; those beyond the report have come since.
            first_steps: that the first audio takes.
        """
        wait_s = 0.0
        if calls >= self.usable:
            since = calls - self.running - self.waiting
            ahead = max(0.0, sum(self.waiting_steps[: list(Lane).index(lane) + 1]) + since * self.mean_steps)
            mean_left = self.remaining_steps / self.running if self.running else self.mean_steps
            wait_s = (mean_left + ahead) / self.usable * self.step_s(self.usable)
        return wait_s + first_steps * self.step_s(calls + 1)


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
    report: LoadReport | None = None
    """on the first and the last block that leave a replica"""

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
