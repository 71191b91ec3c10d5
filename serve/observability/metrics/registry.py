"""Metric registry: the only file that talks to Ray's metrics.

In:    a Metric of definitions.py and a value
Out:   Ray metrics
Owns:  the metrics of one replica
Never: a metric that is not in definitions.py
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ray.serve import metrics as ray_metrics

from serve.observability.metrics.definitions import BACKLOG, UTILISATION, Metric, MetricType
from serve.resilience.autoscaling import Load

PERIOD_S = 1.0  # between two updates of the gauges


class MetricRegistry:
    """Creates each metric when it is first set, so that a replica exports only the metrics it has."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._totals: dict[tuple[str, ...], float] = {}

    def add(self, metric: Metric, amount: float = 1.0, **tags: str) -> None:
        """Adds to a counter; ignores zero, which Ray refuses."""
        if amount > 0:
            self._of(metric).inc(amount, tags=tags)

    def set_total(self, metric: Metric, total: float, **tags: str) -> None:
        """Raises a counter to a total that is counted elsewhere."""
        series = (metric.name, *tags.values())
        self.add(metric, total - self._totals.get(series, 0.0), **tags)
        self._totals[series] = total

    def set_gauge(self, metric: Metric, value: float, **tags: str) -> None:
        """Sets a gauge."""
        self._of(metric).set(value, tags=tags)

    def set_load(self, load: Load) -> None:
        """Sets the gauges that autoscaling follows."""
        self.set_gauge(UTILISATION, load.busy)
        self.set_gauge(BACKLOG, load.backlog_s)

    def observe(self, metric: Metric, value: float, **tags: str) -> None:
        """Adds a value to a histogram."""
        self._of(metric).observe(value, tags=tags)

    def _of(self, metric: Metric) -> Any:
        if metric.name not in self._metrics:
            self._metrics[metric.name] = _create(metric)
        return self._metrics[metric.name]


async def every_period(update: Callable[[], None], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Calls `update` every PERIOD_S, for as long as the replica lives."""
    while True:
        update()
        await sleep(PERIOD_S)


def _create(metric: Metric) -> Any:
    tags: Any = metric.tags  # Ray types them as a tuple of exactly one
    if metric.type is MetricType.HISTOGRAM:
        return ray_metrics.Histogram(
            metric.name, description=metric.description, boundaries=list(metric.buckets), tag_keys=tags
        )
    create = ray_metrics.Counter if metric.type is MetricType.COUNTER else ray_metrics.Gauge
    return create(metric.name, description=metric.description, tag_keys=tags)
