"""What an edge hears of a service: shares and waits from its reports, 503 once it takes nothing new."""

from pathlib import Path

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, NotCached, StoreUnavailable
from pipeline.store.sqlite import SqliteStore
from pipeline.store.store import Store
from pipeline.types import CacheMode, CacheResult, Lane, LoadReport
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from serve.access.resume_tokens import FLEET_KEY, Origin, ResumeTokens, SharedSecret
from serve.config.app_config import read_app_config
from serve.errors import ApiError
from serve.http.routes.health import cell_state
from serve.ingress.ingress_records import SHORTEST_KEY, open_secret
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import add, guarded, ring_of
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


# Health: readiness, with its reason.


def test_a_service_without_replicas_is_ready_and_says_that_it_sleeps():
    services = make_services(Speaker())
    with serving(services) as live:
        assert requests.get(f"{live.url}/ready", timeout=60).json() == {"status": "ready"}
        services.status.asleep = {"AcousticModel": "waking"}
        reply = requests.get(f"{live.url}/ready", timeout=60)
    assert (reply.status_code, reply.json()) == (200, {"status": "ready", "stages": {"AcousticModel": "waking"}})


def test_not_ready_names_the_reason():
    with serving(make_services(Speaker(), not_ready="no answer from AcousticModel")) as live:
        reply = requests.get(f"{live.url}/ready", timeout=60)
    assert reply.status_code == 503
    assert reply.json()["reason"] == "no answer from AcousticModel"
    assert reply.headers["Retry-After"] == "2"


# What a request says about the cache, what a reply says, and the routes that empty it.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "header", "mode"),
    [
        (None, None, CacheMode.DEFAULT),
        (None, "no-store", CacheMode.NO_STORE),
        (None, "No-Cache", CacheMode.REFRESH),
        (None, "max-age=0", CacheMode.REFRESH),
        (None, "no-transform, only-if-cached", CacheMode.ONLY_IF_CACHED),
        (None, "no-cache, no-store", CacheMode.NO_STORE),
        (None, "max-age=60", CacheMode.DEFAULT),
        ("default", "no-store", CacheMode.DEFAULT),
        ("refresh", "no-store", CacheMode.REFRESH),
        ("no-store", None, CacheMode.NO_STORE),
        ("only-if-cached", None, CacheMode.ONLY_IF_CACHED),
    ],
)
def test_the_field_and_else_the_header_say_what_is_wanted(field, header, mode):
    speaker = Speaker()
    with serving(make_services(speaker)) as live:
        body = {"input": "Hi.", "seed": 1, **({} if field is None else {"cache": field})}
        headers = {} if header is None else {"Cache-Control": header}
        assert requests.post(f"{live.url}/v1/audio/speech", json=body, headers=headers, timeout=9).status_code == 200
    assert speaker.requests[0].cache.mode is mode


@pytest.mark.parametrize(("field", "mode"), [("default", "no-store"), ("refresh", "no-store"), ("only-if-cached",) * 2])
def test_a_seed_that_is_drawn_now_is_not_looked_for(field, mode):
    speaker = Speaker()
    with serving(make_services(speaker)) as live:
        assert live.speak(cache=field).headers["X-Cache"] == "bypass"
    assert speaker.requests[0].cache.mode == mode


def test_a_reply_names_the_source_of_its_steps():
    for result in CacheResult:
        with serving(make_services(Speaker(source=result))) as live:
            for fields in ({}, {"stream": False}, {"stream_format": "sse"}):
                assert live.speak(seed=1, **fields).headers["X-Cache"] == result.value


def test_only_if_cached_without_an_entry_is_a_504():
    with serving(make_services(Speaker(fails_at=0, error=NotCached("not there", param="cache")))) as live:
        reply = live.speak(cache="only-if-cached", seed=1)
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "not_cached")
    assert reply.headers["x-should-retry"] == "false"


def test_a_client_purges_its_own_entries_and_an_operator_all(store: Store):
    speaker = Speaker()
    key, key_id = add(store, scopes=tuple(Scope))
    headers = {"X-API-Key": key}
    with guarded(Authenticator(ring_of(store)), speaker) as live:
        own = requests.delete(f"{live.url}/v1/audio/speech/cache", headers=headers, timeout=9)
        every = requests.post(f"{live.url}/admin/cache/purge", headers=headers, timeout=9)
        assert (own.status_code, own.content, every.status_code, every.content) == (204, b"", 204, b"")
        assert speaker.purged == [key_id, None]
        speaker.purge_error = StoreUnavailable("the store does not answer")
        assert requests.post(f"{live.url}/admin/cache/purge", headers=headers, timeout=9).status_code == 503


def test_a_shared_cache_is_a_redis():
    assert read_app_config({"cache": {"redis": "redis://cache:6379/1", "memory_mib": 0}}).cache.redis == "redis://cache:6379/1"
    for wrong in ("a/file.sqlite", "http://cache"):
        with pytest.raises(ConfigError, match="redis://"):
            read_app_config({"cache": {"redis": wrong}})
