"""Device: what the engine's loop needs of a device, whichever it is.

In:    nothing
Out:   DeviceRunner, and the values its rounds and preemptions hand over
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
    """What one round made: K steps of S slots."""

    hidden: NDArray[np.float32]  # (K, S, width)
    tokens: NDArray[np.int64]  # (K, S, 4); TEXT slots: their token in every column
    emitted: NDArray[np.bool_]  # (K, S): the step belongs to the sequence
    ended: NDArray[np.bool_]  # (S,): EOS was drawn
    broken: NDArray[np.bool_]  # (S,): the state or the logits were not finite


class DeviceRunner(Protocol):
    """What the engine's loop needs of a device. Made and used on one thread."""

    rounds_ahead: int
    """rounds that may be launched before the one before them is read"""

    @property
    def num_graphs(self) -> int:
        """Rounds held as CUDA graphs."""
        ...

    @property
    def kv_bytes(self) -> int:
        """Of the KV cache."""
        ...

    def prefill(self, sequences: Ordered[Sequence]) -> None:
        """Read the prompts of newly placed sequences, all of one bucket, into their slots."""
        ...

    def launch(self, plan: Plan) -> None:
        """Begin one round: `steps_per_round` steps in which the plan's decoding slots advance until they end."""
        ...

    def read(self) -> RoundOutput:
        """The results of the round launched longest ago; waits for it. The caller's own: no later round writes to them."""
        ...

    def preempt(self, slot: int, length: int) -> object:
        """All a slot is and the first `length` positions of its cache, copied to the host; no round in flight uses it."""
        ...

    def restore(self, slot: int, preempted: object) -> None:
        """Put it into a slot, any slot: its next steps are the ones it would have made."""
        ...

    def reset_slot(self, slot: int) -> None:
        """Remove what a broken sequence left in its slot."""
        ...

    def drop_graphs(self) -> None:
        """Go on eagerly: the slow twin of what was recorded."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PreemptedSlot:
    """An interrupted sequence, on the host."""

    cached: tuple[torch.Tensor, ...]  # of each tensor of the cache (layers, heads, length, ...), its own bits
    state: tuple[torch.Tensor, ...]  # of each per-slot tensor the slot's row


def remember(recent: torch.Tensor, drawn: torch.Tensor, rows: torch.Tensor) -> None:
    """Shift the draws (S, C) of the given rows (S,) into their windows (S, C, R)."""
    shifted = torch.cat([recent[..., 1:], drawn.unsqueeze(-1)], -1)
    recent.copy_(torch.where(rows[:, None, None], shifted, recent))
