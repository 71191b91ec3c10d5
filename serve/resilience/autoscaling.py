"""Autoscaling: the number of replicas that the work in progress and in queues needs.

In:    the load each replica reports: how busy it is, how long its queue would take
Out:   a number of replicas, to Serve's autoscaler; StepBacklogPolicy is named in configs/*.yaml
Owns:  the latest counters of one replica
Never: clocks of its own; delays and bounds, which Serve adds (autoscaling_config)

Serve's own policy counts requests, but a request is one sentence or a whole page, and one whose audio is far ahead of its
client costs nothing. The capacity of a GPU is steps per second, so this policy counts steps. It also tells work from probes:
with min_replicas 0, replicas without work go, however often somebody asks how they are.
"""

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from serve.config.policies import StepBacklogConfig

BUSY = "busy"  # share of a replica in use: 1 is all of it
BACKLOG_S = "backlog_s"  # time the waiting work would take [s]


class StepBacklogPolicy:
    """The `policy_function` of an autoscaling_config: StepBacklogConfig says what its `policy_kwargs` are."""

    def __init__(self, utilisation: float = 0.75, wait_s: float = 1.0) -> None:
        """
        Args:
            utilisation: see StepBacklogConfig.
            wait_s: see StepBacklogConfig [s].

        Raises:
            ValueError: a value is out of range.
        """
        self._config = StepBacklogConfig(utilisation=utilisation, wait_s=wait_s)

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Maps Serve's AutoscalingContext to (number of replicas, empty state)."""
        means: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        busy, backlog_s = means.get(BUSY), means.get(BACKLOG_S)
        if not busy:  # there is none, or none has reported yet; calls that wait in Serve ask for the first one
            return max(context.target_num_replicas, min(1, math.ceil(context.total_queued_requests))), {}
        demand = sum(busy.values()) + sum((backlog_s or {}).values()) / self._config.wait_s
        least = min(1, context.capacity_adjusted_min_replicas)
        return max(least, math.ceil(round(demand / self._config.utilisation, 6))), {}


@dataclass(frozen=True, slots=True)
class Load:
    """How busy one replica is, and how long its queue would take [s]."""

    busy: float = 0.0
    backlog_s: float = 0.0

    def as_stats(self) -> dict[str, float]:
        """Returns the mapping for `record_autoscaling_stats`."""
        return {BUSY: self.busy, BACKLOG_S: self.backlog_s}


class Growth:
    """How fast a total grows between two measurements."""

    def __init__(self) -> None:
        self._total = 0.0
        self._measured_at: float | None = None

    def per_s(self, total: float, now: float) -> float:
        """Returns the growth per second since the last call; 0 at the first one.

        Args:
            now: monotonic time [s].
        """
        passed_s = 0.0 if self._measured_at is None else now - self._measured_at
        grown, self._total, self._measured_at = total - self._total, total, now
        return grown / passed_s if passed_s > 0 else 0.0


class EngineLoad:
    """Load of an engine: the share of its time that its steps and prompts take, and how long the waiting steps would.

    Steps count by the highest rate: where a row is dear, a few of them fill an engine, and its free slots promise nothing.
    """

    def __init__(self) -> None:
        self._waiting_steps = 0
        self._steps, self._prefill = Growth(), Growth()

    @contextmanager
    def waiting(self, predicted_steps: int) -> Generator["Waiting", None, None]:
        """Counts a segment as waiting until it starts or leaves."""
        self._waiting_steps += predicted_steps
        waiting = Waiting(self, predicted_steps)
        try:
            yield waiting
        finally:
            waiting.begun()

    def leave(self, predicted_steps: int) -> None:
        """Removes steps from those that wait."""
        self._waiting_steps -= predicted_steps

    def measure(self, stats: Mapping[str, Any], capacity: float, now: float) -> Load:
        """Returns the load since the last call.

        Args:
            stats: EngineStats as a mapping.
            capacity: LoadReport's: steps per second with all slots taken; 0: unknown.
            now: monotonic time [s].
        """
        step_s = 1 / capacity if capacity else 0.0
        working = self._steps.per_s(stats["steps"], now) * step_s + self._prefill.per_s(stats["prefill_s"], now)
        # A slot whose client is slow computes nothing and is occupied all the same.
        occupied = stats["slots_used"] / stats["slots_usable"]
        return Load(max(min(working, 1.0), min(occupied, 1.0)), self._waiting_steps * step_s)


class Waiting:
    """The waiting steps of one segment."""

    def __init__(self, load: EngineLoad, predicted_steps: int) -> None:
        self._load = load
        self._steps = predicted_steps

    def begun(self) -> None:
        """Called when the segment gets its slot or leaves; harmless a second time."""
        self._load.leave(self._steps)
        self._steps = 0


class VocoderLoad:
    """Load of a vocoder: the time spent in its network, and the calls that wait."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.inside = 0
        """windows or runs of steps submitted and not yet returned"""
        self._calls = Growth()

    @contextmanager
    def call(self) -> Generator[None, None, None]:
        """Counts a window or a run of steps as submitted while the block runs."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def measure(self, stats: Mapping[str, Any], now: float) -> Load:
        """Returns the load since the last call.

        Args:
            stats: VocoderStats as a mapping.
            now: monotonic time [s].
        """
        busy = min(self._calls.per_s(stats["calls"], now) * stats["call_s"], 1.0)
        waiting = max(self.inside - self._rows, 0)
        return Load(busy, math.ceil(waiting / self._rows) * stats["call_s"])


class TextLoad:
    """Load of a text replica: the time its worker was busy, and the texts that wait."""

    def __init__(self) -> None:
        self._busy = Growth()

    def measure(self, stats: Mapping[str, Any], now: float) -> Load:
        """Returns the load since the last call.

        Args:
            stats: TextStats as a mapping.
            now: monotonic time [s].
        """
        busy = min(self._busy.per_s(stats["busy_s"], now), 1.0)
        return Load(busy, stats["waiting"] * stats["read_s"])
