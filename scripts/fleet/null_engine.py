"""Null engine: a device that computes nothing and takes a given time a step, for tests of many engines on one machine.

In:    plans
Out:   zeros, when a device of that speed would be ready
Never: a model
"""

import time
from collections import deque
from collections.abc import Sequence as Ordered

import numpy as np

from pipeline.engine.device import RoundOutput
from pipeline.engine.scheduler import Plan
from pipeline.engine.sequence import Sequence

LATE_S = 0.03  # a device is not slower because its host was late by less than this
WIDTH = 8


class NullRunner:
    """pipeline.engine.device.DeviceRunner whose rounds end in time."""

    rounds_ahead = 0
    num_graphs = 0
    kv_bytes = 0

    def __init__(self, slots: int, steps_per_round: int, step_s: float) -> None:
        """
        Args:
            step_s: duration of a step of any number of rows [s].
        """
        self._shape = steps_per_round, slots
        self._round_s = step_s * steps_per_round
        self._launched: deque[tuple[Plan, float]] = deque()
        self._free_at = 0.0

    def prefill(self, sequences: Ordered[Sequence]) -> None:
        """Takes no time."""

    def launch(self, plan: Plan) -> None:
        """Notes when the round will be over."""
        now = time.monotonic()
        self._free_at = (self._free_at if now - self._free_at < LATE_S else now) + self._round_s
        self._launched.append((plan, self._free_at))

    def read(self) -> RoundOutput:
        """Waits for the end of the round."""
        plan, ready_at = self._launched.popleft()
        time.sleep(max(0.0, ready_at - time.monotonic()))
        steps, slots = self._shape
        emitted, no = np.zeros(self._shape, np.bool_), np.zeros(slots, np.bool_)
        for sequence in plan.decode:
            if sequence.slot is not None:
                emitted[: max(0, min(steps, sequence.max_steps - sequence.steps)), sequence.slot] = True
        hidden, tokens = np.zeros((steps, slots, WIDTH), np.float32), np.zeros((steps, slots, 4), np.int64)
        return RoundOutput(hidden, tokens, emitted, no, no)

    def preempt(self, slot: int, length: int) -> object:
        """Keeps nothing."""
        return slot

    def restore(self, slot: int, preempted: object) -> None:
        """Has nothing to write."""

    def reset_slot(self, slot: int) -> None:
        """Has nothing to zero."""

    def drop_graphs(self) -> None:
        """Has no graphs."""
