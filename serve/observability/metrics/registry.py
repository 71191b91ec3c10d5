"""Metric registry: sets the metrics of one replica.

In:    a Metric of definitions.py and a value; how a metric is created
Out:   series of whatever collects them
Owns:  the metrics of one replica
Never: a metric that is not in definitions.py
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from serve.observability.metrics.definitions import BACKLOG, UTILISATION, Metric
from serve.resilience.autoscaling import Load

NewSeries = Callable[[Metric], Any]
"""creates a metric, with the methods `inc`, `set` and `observe` of Ray's metrics"""

PERIOD_S = 1.0  # between two updates of the gauges


class MetricRegistry:
    """Creates each metric when it is first set, so that a replica exports only the metrics it has."""

    def __init__(self, new_series: NewSeries) -> None:
        self._new_series = new_series
        self._metrics: dict[str, Any] = {}
        self._totals: dict[tuple[str, ...], float] = {}

    def add(self, metric: Metric, amount: float = 1.0, **tags: str) -> None:
        """Adds to a counter; ignores zero, which collectors refuse."""
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
            self._metrics[metric.name] = self._new_series(metric)
        return self._metrics[metric.name]


async def every_period(update: Callable[[], None], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Calls `update` every PERIOD_S, for as long as the replica lives."""
    while True:
        update()
        await sleep(PERIOD_S)
