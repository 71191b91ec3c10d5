"""Ten thousand conversations that say nothing, on both data paths, and listeners beside them who notice nothing."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.chaos.load import idle_sockets
from serve.commands.launch.open_files import allowed, connections, raise_limit
from tests.support.started import Started, started

pytestmark = pytest.mark.nightly

SOCKETS = 10_000
BESIDE = 50  # connections that are left for listeners and health checks
HELD_S = 60.0  # three rounds of the server's pings
CHANGES = {
    "limits: {max_in_flight: 32,": f"conversations: {{max_sockets: {SOCKETS}}}\n      limits: {{max_in_flight: 32,",
    "max_ongoing_requests: 512 ": f"max_ongoing_requests: {SOCKETS + 512} ",
}


@pytest.fixture(scope="module", params=[(), ("--plain",)], ids=["through HAProxy", "through Serve's own proxy"])
def service(home: Path, folder: Path, request: pytest.FixtureRequest) -> Iterator[Started]:
    patience = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}
    with started(*request.param, home=home, folder=folder, changes=CHANGES, **patience) as running:
        running.wait_until_ready()
        yield running


def test_ten_thousand_sockets_that_say_nothing_are_held_and_listeners_are_heard(
    service: Started, request: pytest.FixtureRequest
):
    """Or as many as this machine's limit of open files allows."""
    most = connections() if "HAProxy" in request.node.name else allowed()
    assert not list(raise_limit({}, with_haproxy=False)), "this process holds the clients"
    count = min(SOCKETS, most - BESIDE) // 100 * 100
    results = asyncio.run(idle_sockets(service.url, count, HELD_S))
    assert (results["opened"], results["held"]) == (count, count), results
    assert set(results["beside"]) == {"200"}, results
