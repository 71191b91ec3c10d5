"""Vocoder metrics: its calls and the work that waits.

In:    VocoderStats and the load
Out:   values for the metric registry
Owns:  the metrics of one vocoder replica
Never: audio
"""

from collections.abc import Mapping
from typing import Any

from serve.observability.metrics.definitions import VOCODER_CALL, VOCODER_CALLS, VOCODER_JOBS, VOCODER_WAITING
from serve.observability.metrics.registry import MetricRegistry, NewSeries
from serve.resilience.autoscaling import Load


class VocoderMetrics:
    """Metrics of one vocoder replica."""

    def __init__(self, new_series: NewSeries) -> None:
        self._registry = MetricRegistry(new_series)

    def update(self, stats: Mapping[str, Any], load: Load | None) -> None:
        """Updates the metrics from VocoderStats and the load; None: the replica has another one."""
        registry = self._registry
        if load is not None:
            registry.set_load(load)
        registry.set_gauge(VOCODER_WAITING, stats["waiting"])
        registry.set_gauge(VOCODER_CALL, stats["call_s"])
        registry.set_total(VOCODER_CALLS, stats["calls"])
        registry.set_total(VOCODER_JOBS, stats["jobs"])
