"""Replica: the context of a replica of Serve, and Ray's metrics.

In:    the process it runs in
Out:   ReplicaContext
Never: placement: Ray does it as configs/*.yaml says
"""

from typing import Any

import ray
from ray import serve
from ray.serve import metrics
from ray.util import get_node_ip_address

from serve.observability.metrics.definitions import Metric, MetricType
from serve.remote.ray_private import IS_BEHIND_PROXY, is_stopping
from serve.stages.replica_context import ReplicaContext


def replica_context() -> ReplicaContext:
    """Returns the context of the replica of this process."""
    return ReplicaContext(
        replica=serve.get_replica_context().replica_id.unique_id,
        new_series=new_series,
        gpus=ray.get_gpu_ids(),
        addresses=(get_node_ip_address(),),  # type: ignore[no-untyped-call]
        is_behind_proxy=IS_BEHIND_PROXY,
        is_stopping=is_stopping,
        num_replicas=lambda: serve.get_replica_context().world_size,
    )


def new_series(metric: Metric) -> Any:
    """Creates one of Ray's metrics."""
    tags: Any = metric.tags  # Ray types them as a tuple of exactly one
    if metric.type is MetricType.HISTOGRAM:
        return metrics.Histogram(metric.name, description=metric.description, boundaries=list(metric.buckets), tag_keys=tags)
    create = metrics.Counter if metric.type is MetricType.COUNTER else metrics.Gauge
    return create(metric.name, description=metric.description, tag_keys=tags)
