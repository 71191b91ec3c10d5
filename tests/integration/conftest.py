"""The one cluster of the session."""

from collections.abc import Iterator

import pytest

from tests.integration.cluster import Cluster, start_cluster, stop_cluster, wait_until


@pytest.fixture(scope="session")
def started() -> Iterator[Cluster]:
    cluster = start_cluster()
    print(f"\n  cluster and application up after {cluster.start_s:.1f} s")
    yield cluster
    stop_cluster()


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    """The cluster with nothing under way, before and after."""
    wait_until(lambda: idle(started), 30.0)
    yield started
    wait_until(lambda: idle(started), 30.0)


def idle(cluster: Cluster) -> bool:
    """No request inside, no slot taken."""
    health = cluster.health()
    engines = health["acoustic"]
    return engines != [] and health["door"]["in_flight"] == sum(e["slots_used"] + e["waiting"] for e in engines) == 0
