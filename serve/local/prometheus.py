"""Prometheus: the metrics of a service in one process, under the names and labels that they have behind Ray.

In:    metrics of definitions.py, values
Out:   the text that Prometheus reads
Owns:  a registry of collectors
Never: Ray

So the dashboard and the alerts of k8s/monitoring read either service.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from serve.observability.metrics.definitions import Metric, MetricType
from serve.observability.metrics.registry import NewSeries

OF_REPLICA = ("application", "deployment", "replica")
"""labels that Serve adds"""


class Series:
    """One metric of one stage, with the methods of Ray's metrics."""

    def __init__(self, collector: Any, tags: Sequence[str], replica: Mapping[str, str]) -> None:
        """
        Args:
            tags: names of the labels that the metric has itself.
            replica: labels that all its values have.
        """
        self._collector, self._tags, self._replica = collector, tags, replica

    def inc(self, amount: float, tags: Mapping[str, str]) -> None:
        """Adds to a counter."""
        self._of(tags).inc(amount)

    def set(self, value: float, tags: Mapping[str, str]) -> None:
        """Sets a gauge."""
        self._of(tags).set(value)

    def observe(self, value: float, tags: Mapping[str, str]) -> None:
        """Adds a value to a histogram."""
        self._of(tags).observe(value)

    def _of(self, tags: Mapping[str, str]) -> Any:
        return self._collector.labels(**self._replica, **{name: tags.get(name, "") for name in self._tags})


class Exposition:
    """All metrics of the process."""

    def __init__(self, application: str) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._application = application
        self._registry = CollectorRegistry()
        self._collectors: dict[str, Any] = {}

    def new_series(self, deployment: str, replica: str) -> NewSeries:
        """Returns what creates the metrics of one stage."""
        labels = dict(zip(OF_REPLICA, (self._application, deployment, replica), strict=True))
        return lambda metric: Series(self._collector(metric), metric.tags, labels)

    def text(self) -> bytes:
        """Returns all values."""
        return generate_latest(self._registry)

    def _collector(self, metric: Metric) -> Any:
        if metric.name not in self._collectors:
            labels = (*OF_REPLICA, *metric.tags)
            match metric.type:
                case MetricType.HISTOGRAM:
                    created: Any = Histogram(
                        metric.exported, metric.description, labels, registry=self._registry, buckets=metric.buckets
                    )
                case MetricType.COUNTER:
                    created = Counter(metric.exported, metric.description, labels, registry=self._registry)
                case MetricType.GAUGE:
                    created = Gauge(metric.exported, metric.description, labels, registry=self._registry)
            self._collectors[metric.name] = created
        return self._collectors[metric.name]
