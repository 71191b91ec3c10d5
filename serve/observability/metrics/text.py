"""Text metrics: the answers and restarts of the text worker.

In:    TextStats and the load
Out:   values for the metric registry
Owns:  the metrics of one text replica
Never: a text
"""

from collections.abc import Mapping
from typing import Any

from serve.observability.metrics.definitions import TEXT_ANSWER, TEXT_ANSWERS, TEXT_RESTARTS, TEXT_WAITING
from serve.observability.metrics.registry import MetricRegistry
from serve.resilience.autoscaling import Load


class TextMetrics:
    """Metrics of one text replica."""

    def __init__(self) -> None:
        self._registry = MetricRegistry()

    def update(self, stats: Mapping[str, Any], load: Load) -> None:
        """Updates the metrics from TextStats and the load."""
        registry = self._registry
        registry.set_load(load)
        registry.set_gauge(TEXT_WAITING, stats["waiting"])
        registry.set_gauge(TEXT_ANSWER, stats["read_s"])
        registry.set_total(TEXT_ANSWERS, stats["answers"])
        registry.set_total(TEXT_RESTARTS, stats["restarts"])
