"""Scaling: how many replicas of a stage the work ahead of it asks for.

In:    what every replica says of its work: how busy it is, how many seconds its queue is long
Out:   a number of replicas, to Serve's autoscaler; WorkAhead is named in configs/*.yaml
Owns:  nothing but the latest look at one replica's counters
Never: Ray, clocks of its own; delays and bounds, which Serve puts around it (autoscaling_config)

Serve's own policy counts requests. A request is one sentence or a page, and one whose listener is served from far ahead
costs nothing: steps are what a GPU has to give, so steps are counted.
"""

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

BUSY = "busy"
"""share of a replica that is in use: 1 is all of it"""
BACKLOG_S = "backlog_s"
"""how long it would take to work off what waits [s]"""


class WorkAhead:
    """For autoscaling_config.policy: {policy_function: serve.resilience.autoscaling:WorkAhead, policy_kwargs: {...}}."""

    def __init__(self, utilisation: float = 0.75, wait_s: float = 1.0) -> None:
        """
        Args:
            utilisation: how busy replicas should be, 0 < utilisation <= 1; the rest is room while a new one loads.
            wait_s: what waits should be worked off in this time [s].

        Raises:
            ValueError: a value is out of range.
        """
        if not 0 < utilisation <= 1:
            raise ValueError(f"utilisation is {utilisation}; it must be above 0 and at most 1")
        if not wait_s > 0:
            raise ValueError(f"wait_s is {wait_s}; it must be above 0")
        self._utilisation = utilisation
        self._wait_s = wait_s

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Serve's AutoscalingContext -> (replicas, nothing to remember)."""
        means: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        busy, backlog_s = means.get(BUSY), means.get(BACKLOG_S)
        if not busy:
            return context.target_num_replicas, {}  # nobody has said anything yet
        wanted = sum(busy.values()) + sum((backlog_s or {}).values()) / self._wait_s
        return max(1, math.ceil(round(wanted / self._utilisation, 6))), {}


@dataclass(frozen=True, slots=True)
class Load:
    """One replica's work."""

    busy: float = 0.0
    backlog_s: float = 0.0

    def as_stats(self) -> dict[str, float]:
        """For `record_autoscaling_stats`."""
        return {BUSY: self.busy, BACKLOG_S: self.backlog_s}


class EngineLoad:
    """An engine's load: steps made and predicted steps that wait, over the steps a second it can make."""

    def __init__(self, steps_per_round: int) -> None:
        self._steps_per_round = steps_per_round
        self._waiting_steps = 0
        self._looked_at: float | None = None
        self._steps = 0

    @contextmanager
    def waiting(self, predicted_steps: int) -> Generator["Waiting", None, None]:
        """A segment that waits until it has begun or left."""
        self._waiting_steps += predicted_steps
        waiting = Waiting(self, predicted_steps)
        try:
            yield waiting
        finally:
            waiting.begun()

    def leave(self, predicted_steps: int) -> None:
        """That many steps wait no longer."""
        self._waiting_steps -= predicted_steps

    def look(self, stats: Mapping[str, Any], now: float) -> Load:
        """The load since the last look [EngineStats, monotonic s]."""
        slots, round_s = stats["slots"], stats["round_s"]
        steps_a_second = slots * self._steps_per_round / round_s if round_s > 0 else math.inf
        made = stats["steps"] - self._steps
        passed_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._steps, self._looked_at = stats["steps"], now
        computed = made / passed_s / steps_a_second if passed_s > 0 else 0.0
        # A slot whose listener is slow computes nothing and is taken all the same.
        return Load(max(computed, stats["slots_used"] / slots), self._waiting_steps / steps_a_second)


class Waiting:
    """One segment's share of what waits."""

    def __init__(self, load: EngineLoad, predicted_steps: int) -> None:
        self._load = load
        self._left = predicted_steps

    def begun(self) -> None:
        """It has its slot, or has left; harmless a second time."""
        self._load.leave(self._left)
        self._left = 0


class VocoderLoad:
    """A vocoder's load: how long it was calling its network, and the work that waits."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.inside = 0
        """windows or feeds that were handed in and not yet given back"""
        self._looked_at: float | None = None
        self._calls = 0

    @contextmanager
    def call(self) -> Generator[None, None, None]:
        """A window or feed that is inside for as long as the block runs."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def look(self, stats: Mapping[str, Any], now: float) -> Load:
        """The load since the last look [VocoderStats, monotonic s]."""
        calls = stats["calls"] - self._calls
        passed_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._calls, self._looked_at = stats["calls"], now
        busy = min(calls * stats["call_s"] / passed_s, 1.0) if passed_s > 0 else 0.0
        waiting = max(self.inside - self._rows, 0)
        return Load(busy, math.ceil(waiting / self._rows) * stats["call_s"])


class TextLoad:
    """A text replica's load: how long its workers were answering."""

    def __init__(self) -> None:
        self._looked_at: float | None = None
        self._busy_s = 0.0

    def look(self, stats: Mapping[str, Any], now: float) -> Load:
        """The load since the last look [TextStats, monotonic s]."""
        worked_s = stats["busy_s"] - self._busy_s
        passed_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._busy_s, self._looked_at = stats["busy_s"], now
        return Load(min(worked_s / passed_s, 1.0) if passed_s > 0 else 0.0, stats["waiting"] * stats["read_s"])
