"""Private replies: what needs a key, and every error, is kept by no cache; public routes say themselves how long they hold."""

from pathlib import Path

import pytest
import requests
from starlette.routing import Route

from pipeline.store.store import Store
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from serve.errors import plain_status
from serve.http.error_reply import named_error_reply
from serve.protocols.api import ROUTERS, route_access
from serve.protocols.openai.protocol import PROTOCOL
from tests.support.fakes import Speaker, make_jobs, make_services
from tests.support.guarded import add, ring_of
from tests.support.live_server import Live, serving

ASKED = [
    (method, route.path)
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, Route)
    for method in route.methods
]
FILL = {
    "{name}": "alloy",
    "{job_id}": "job-" + "0" * 24,
    "{lexicon_id}": "none",
    "{number}": "0",
    "{version}": "x",
    "{path:path}": "x",
}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory):
    from pipeline.store.open import open_store

    folder: Path = tmp_path_factory.mktemp("keyed")
    store: Store = open_store(str(folder / "store.sqlite"))
    key, _ = add(store, scopes=tuple(Scope))
    services = make_services(Speaker())
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store)))
    object.__setattr__(services, "jobs", make_jobs(services.speech, folder=folder / "jobs"))
    with serving(services) as live:
        yield live, key
    store.close()


@pytest.mark.parametrize(("method", "path"), ASKED)
def test_what_needs_a_key_is_kept_by_no_cache(keyed: tuple[Live, str], method: str, path: str):
    live, key = keyed
    for name, value in FILL.items():
        path = path.replace(name, value)
    scopes = route_access().access_of({"type": "http", "method": method, "path": path}).scopes
    for headers in ({}, {"X-API-Key": key}, {"X-API-Key": "wrong"}):
        reply = requests.request(method, live.url + path, headers=headers, json={}, timeout=60)
        if scopes is not None or reply.status_code >= 400:
            assert reply.headers["Cache-Control"] == "no-store", (headers, reply.status_code)


def test_a_defect_and_a_refusal_before_the_application_are_kept_by_no_cache(keyed: tuple[Live, str]):
    live, key = keyed
    broken, live.services.status.health = live.services.status.health, None  # type: ignore[method-assign,assignment]
    reply = requests.get(f"{live.url}/admin/status", headers={"X-API-Key": key}, timeout=60)
    live.services.status.health = broken  # type: ignore[method-assign]
    early = named_error_reply(plain_status(503), "id", {"connection": "close"}, protocol=PROTOCOL)
    assert (reply.status_code, reply.headers["Cache-Control"], early.headers["cache-control"]) == (500, "no-store", "no-store")
    for path in ("/no/such/path", "/admin/nothing"):
        assert requests.get(live.url + path, headers={"X-API-Key": key}, timeout=60).headers["Cache-Control"] == "no-store"
