"""The one cluster of the session."""

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, is_idle, start_cluster, stop_cluster
from tests.support.waiting import wait_until


@pytest.fixture(scope="session")
def started() -> Iterator[Cluster]:
    cluster = start_cluster()
    print(f"\n  cluster and application up after {cluster.start_s:.1f} s")
    yield cluster
    stop_cluster()


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    """The cluster with nothing under way, before and after."""
    wait_until(lambda: is_idle(started.health()), 30.0)
    yield started
    wait_until(lambda: is_idle(started.health()), 30.0)
