"""What an edge hears of a service: shares and waits from its reports, 503 once it takes nothing new."""

from pathlib import Path

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.store.sqlite import SqliteStore
from pipeline.types import Lane, LoadReport
from serve.access.resume_tokens import FLEET_KEY, Origin, ResumeTokens, SharedSecret
from serve.errors import ApiError
from serve.http.routes.health import cell_state
from serve.ingress.ingress_records import SHORTEST_KEY, open_secret
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving


def report(usable: int, running: int, waiting: int, build: str) -> LoadReport:
    return LoadReport(usable, running, waiting, (10.0, 20.0, 30.0), 50.0 * running, 100.0, 0.005, 0.001, 0, 0.0, "r", build)


LOAD = st.tuples(st.integers(1, 64), st.integers(0, 64), st.integers(0, 64), st.sampled_from(["", "a", "b"]))
ORIGIN = Origin(5, "chattts", (), "body", "resolved", "build", "engine")


@given(st.lists(LOAD, max_size=6))
def test_shares_and_waits_are_in_bounds_and_less_urgent_lanes_wait_longer(loads: list[tuple[int, int, int, str]]):
    reports = [report(usable, min(usable, running), waiting, build) for usable, running, waiting, build in loads]
    state = cell_state(reports)
    assert 0 <= state["free"] <= 1
    assert (state["free"] == 1) == all(entry.running + entry.waiting == 0 for entry in reports) or state["free"] > 0.999
    waits = [state["wait_s"][lane.value] for lane in Lane]
    assert waits == sorted(waits)
    assert waits[0] == 0 or all(entry.running + entry.waiting >= entry.usable for entry in reports)
    assert state["builds"] == sorted({build for *_, build in loads if build})


def test_a_cell_that_drains_is_out():
    services = make_services(Speaker())
    with serving(services) as live:
        assert requests.get(f"{live.url}/cell", timeout=10).json() == {**cell_state([]), "draining": False}
        services.speech.admission.close()
        reply = requests.get(f"{live.url}/cell", timeout=10)
        assert (reply.status_code, reply.json()["draining"]) == (503, True)


async def test_a_key_of_the_fleet_that_can_be_guessed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = SqliteStore(tmp_path / "store.sqlite")
    monkeypatch.setenv(FLEET_KEY, "secret")
    with pytest.raises(ConfigError, match="6 characters, at least 32"):
        await open_secret(store)
    monkeypatch.setenv(FLEET_KEY, "x" * SHORTEST_KEY)
    assert (await open_secret(store)).value is not None


def test_services_with_one_key_read_each_others_tokens(tmp_path: Path):
    secrets = [
        SharedSecret(SqliteStore(tmp_path / f"{n}.sqlite"), key) for n, key in enumerate(("fleet", "fleet", "other", ""))
    ]
    for secret in secrets:
        secret.refresh()
    first, second, *others = (ResumeTokens(secret, 60.0) for secret in secrets)
    token = first.issue("tenant", ORIGIN)
    assert second.read("tenant", token).origin == ORIGIN
    for other in others:
        with pytest.raises(ApiError):
            other.read("tenant", token)
