"""Engine metrics: slots, steps, waits and preemptions.

In:    what happens to sequences; EngineStats and the load
Out:   values for the metric registry
Owns:  the metrics of one acoustic replica
Never: waiting: some methods are called on the engine's thread
"""

from collections.abc import Mapping
from typing import Any

from pipeline.types import Lane
from serve.observability.metrics.definitions import (
    KV_CACHE,
    PREEMPTED,
    QUEUE_WAIT,
    RUNNING,
    SEGMENTS,
    SLOTS,
    STEP,
    STEPS,
    USABLE,
    WAITING,
    WASTED,
)
from serve.observability.metrics.registry import MetricRegistry
from serve.resilience.autoscaling import Load


class EngineMetrics:
    """Observer of the engine that sets metrics; the engine's thread calls it between two rounds."""

    def __init__(self) -> None:
        self._registry = MetricRegistry()

    def scheduled(self, waited_s: float, lane: Lane) -> None:
        """Records how long a sequence waited for its slot [s]."""
        self._registry.observe(QUEUE_WAIT, waited_s, lane=lane.value)

    def preempted(self) -> None:
        """Counts a preempted sequence."""
        self._registry.add(PREEMPTED)

    def wasted(self, steps: int, reason: str) -> None:
        """Counts steps that no client received."""
        self._registry.add(WASTED, steps, reason=reason)

    def update(self, stats: Mapping[str, Any], steps_per_round: int, load: Load) -> None:
        """Updates the metrics from EngineStats and the load."""
        registry = self._registry
        registry.set_load(load)
        registry.set_gauge(SLOTS, stats["slots"])
        registry.set_gauge(USABLE, stats["slots_usable"])
        registry.set_gauge(RUNNING, stats["slots_used"])
        registry.set_gauge(WAITING, stats["waiting"])
        registry.set_gauge(STEP, stats["round_s"] / steps_per_round)
        registry.set_gauge(KV_CACHE, stats["kv_bytes"])
        registry.set_total(STEPS, stats["steps"])
        registry.set_total(SEGMENTS, stats["sequences"])
