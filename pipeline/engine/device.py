"""Device: the interface between the engine's loop and the runner of a CPU or a GPU.

Out:   DeviceRunner, and the results of its rounds and preemptions
Never: torch; a device's own arithmetic: cpu_runner.py and gpu_runner.py
"""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.engine.scheduler import Plan
from pipeline.engine.sequence import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class RoundOutput:
    """The result of one round, a run of the model over all slots: K steps of S slots."""

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
    """The slot of a bulk sequence that gave it to a listener, on the host: arrays of a CPU's runner, tensors of a GPU's."""

    cached: tuple[Any, ...]  # one per array of the cache: (layers, heads, length, ...)
    state: tuple[Any, ...]  # one per array of per-slot state: the slot's row
