"""Replica context: what a stage or an ingress has to know of the process it runs in.

In:    what the runtime says of the process
Out:   ids, addresses and how metrics are created
Never: Ray: serve/remote/replica.py fills it
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve.observability.metrics.registry import NewSeries


def never() -> bool:
    """Returns False."""
    return False


def alone() -> int:
    """Returns 1."""
    return 1


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """A replica, and the process it runs in."""

    replica: str
    """its unique id"""
    new_series: NewSeries
    gpus: Sequence[Any] = ()
    """ids of the GPUs it may use; a share of a GPU counts as that GPU"""
    metrics_text: Callable[[], bytes] | None = None
    """what Prometheus reads from the service itself; None: it asks the runtime"""
    runtime_limits: Mapping[str, str] = field(default_factory=dict)
    """what the runtime cannot do, for /health"""
    addresses: tuple[str, ...] = ()
    """of this machine, as its clients may see them"""
    is_behind_proxy: bool = False
    """True: HAProxy stands before the ingress"""
    is_stopping: Callable[[], bool] = never
    """True from the moment when the replica is about to be stopped"""
    num_replicas: Callable[[], int] = alone
    """how many replicas the deployment has, this one included"""

    def info(self) -> Mapping[str, Any]:
        """Returns what /health says of where it runs."""
        return {"replica": self.replica, "gpus": list(self.gpus)}
