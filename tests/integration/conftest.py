"""The services of the session: the one cluster, and one without Ray."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, start_cluster, stop_cluster
from tests.support.service import Service, is_idle, one_process
from tests.support.waiting import wait_until


@contextlib.contextmanager
def nothing_under_way(service: Service) -> Iterator[None]:
    """Before and after the block."""
    wait_until(lambda: is_idle(service.health()), 30.0)
    yield
    wait_until(lambda: is_idle(service.health()), 30.0)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs what asks a service on each runtime: in one process in the fast ring; on Ray nightly, or always with `on_ray`."""
    if "service" in metafunc.fixturenames:
        marks = () if metafunc.definition.get_closest_marker("on_ray") else (pytest.mark.nightly,)
        runtimes = [pytest.param("process", marks=pytest.mark.process), pytest.param("ray", marks=marks)]
        metafunc.parametrize("runtime", runtimes, scope="session")


@pytest.fixture(scope="session")
def started() -> Iterator[Cluster]:
    cluster = start_cluster()
    print(f"\n  cluster and application up after {cluster.start_s:.1f} s")
    yield cluster
    stop_cluster()


@pytest.fixture(scope="session")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with one_process(tmp_path_factory.mktemp("home")) as service:
        yield service


@pytest.fixture(scope="session")
def running(runtime: str, request: pytest.FixtureRequest) -> Service:
    """The service of a runtime."""
    service: Service = request.getfixturevalue({"process": "in_one_process", "ray": "started"}[runtime])
    return service


@pytest.fixture
def service(running: Service) -> Iterator[Service]:
    """It, with nothing under way, before and after."""
    with nothing_under_way(running):
        yield running


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    """The cluster with nothing under way, before and after."""
    with nothing_under_way(started):
        yield started
