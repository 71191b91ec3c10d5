"""Device: the interface between the engine's loop and the runner of a CPU or a GPU.

In:    nothing
Out:   DeviceRunner, and the results of its rounds and preemptions
Owns:  nothing
Never: a device's own arithmetic: cpu_runner.py and gpu_runner.py
"""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.engine.scheduler import Plan
from pipeline.engine.sequence import Sequence

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class RoundOutput:
    """The result of one round: K steps of S slots."""

    hidden: NDArray[np.float32]  # (K, S, width)
    tokens: NDArray[np.int64]  # (K, S, 4); TEXT slots: their token in every column
    emitted: NDArray[np.bool_]  # (K, S): the step belongs to the sequence
    ended: NDArray[np.bool_]  # (S,): EOS was drawn
    broken: NDArray[np.bool_]  # (S,): the state or the logits were not finite


class DeviceRunner(Protocol):
    """Runs plans on one device. It is created and used on one thread."""

    rounds_ahead: int
    """rounds that may be launched before the one before them is read"""

    @property
    def num_graphs(self) -> int:
        """Number of rounds held as CUDA graphs."""
        ...

    @property
    def kv_bytes(self) -> int:
        """Size of the KV cache [bytes]."""
        ...

    def prefill(self, sequences: Ordered[Sequence]) -> None:
        """Computes the prompts of newly scheduled sequences, all of one bucket, in their slots."""
        ...

    def launch(self, plan: Plan) -> None:
        """Starts one round: `steps_per_round` steps in which the plan's decoding slots advance until they end."""
        ...

    def read(self) -> RoundOutput:
        """Waits for the round launched longest ago and returns its results, in memory that no later round writes to."""
        ...

    def preempt(self, slot: int, length: int) -> object:
        """Returns a copy of the slot's state and of the first `length` positions of its cache, on the host.

        No round in flight may use the slot.
        """
        ...

    def restore(self, slot: int, preempted: object) -> None:
        """Writes what `preempt` returned into any slot; the sequence then continues with the same steps, bit for bit."""
        ...

    def reset_slot(self, slot: int) -> None:
        """Zeroes the cache and the state that a broken sequence left in its slot."""
        ...

    def drop_graphs(self) -> None:
        """Discards the CUDA graphs; later rounds run eagerly, which is slower."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PreemptedSlot:
    """A preempted sequence's slot, on the host."""

    cached: tuple[torch.Tensor, ...]  # one per tensor of the cache: (layers, heads, length, ...)
    state: tuple[torch.Tensor, ...]  # one per tensor of per-slot state: the slot's row


def remember(recent: torch.Tensor, drawn: torch.Tensor, rows: torch.Tensor) -> None:
    """Shifts the tokens `drawn` (S, C) into the windows `recent` (S, C, R) of the rows marked in `rows` (S,) bool."""
    shifted = torch.cat([recent[..., 1:], drawn.unsqueeze(-1)], -1)
    recent.copy_(torch.where(rows[:, None, None], shifted, recent))
