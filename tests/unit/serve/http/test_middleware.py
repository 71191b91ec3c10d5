"""Middleware: request ids, keys, and permits that last as long as the reply."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
import requests
from ray.serve._private.http_util import RequestIdMiddleware, convert_object_to_asgi_messages
from starlette.routing import Route
from starlette.types import ASGIApp

from pipeline.store.store import Store
from serve.access.api_keys import Quota, Scope
from serve.access.authentication import Authenticator
from serve.access.quotas import LocalQuotas
from serve.config.app_config import LimitsConfig
from serve.errors import plain_status
from serve.http.error_reply import named_error_reply
from serve.protocols.api import ROUTERS, route_access
from serve.protocols.openai.protocol import PROTOCOL
from serve.protocols.proxy_middleware import middlewares
from tests.support.fakes import Speaker, make_jobs, make_services
from tests.support.guarded import add, guarded, ring_of, speak
from tests.support.live_server import Live, serving
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("request_id", "is_used"), [("a-b_c.9", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("<x>", False)]
)
def test_request_ids_are_kept_only_when_harmless(live, request_id, is_used):
    reply = requests.get(f"{live.url}/live", headers={"X-Request-ID": request_id}, timeout=60)
    assert (reply.headers["X-Request-ID"] == request_id) == is_used
    assert len(reply.headers["X-Request-ID"]) >= 7


def test_a_permit_lives_as_long_as_its_stream(store: Store):
    key, key_id = add(store, quota=Quota(requests_per_s=None, streams=1))
    quotas = LocalQuotas()
    with guarded(Authenticator(ring_of(store), quotas), Speaker(chunks=None, pause_s=0.01)) as live:
        head = f"X-API-Key: {key}\r\n"
        body = b'{"input": "Hello there.", "response_format": "pcm"}'
        with live.connect(body, head) as client:
            client.recv(4096)
            assert quotas.streams(key_id) == 1
            reply = speak(live, **{"X-API-Key": key})
            assert reply.json()["error"]["code"] == "too_many_concurrent_requests"
            assert int(reply.headers["Retry-After"]) >= 1
            assert requests.get(f"{live.url}/v1/models", headers={"X-API-Key": key}, timeout=60).status_code == 200
        wait_until(lambda: quotas.streams(key_id) == 0)


@pytest.mark.slow
def test_permits_return_to_zero_after_a_storm_of_clients_that_leave(store: Store):
    key, key_id = add(store, quota=Quota(requests_per_s=None, characters_a_day=None, streams=100))
    quotas = LocalQuotas()
    speaker = Speaker(chunks=None, pause_s=0.005, first_pause_s=0.02)
    with guarded(Authenticator(ring_of(store), quotas), speaker, LimitsConfig(max_in_flight=24)) as live:
        body = b'{"input": "Hello there.", "response_format": "pcm"}'
        for number in range(60):
            head = f"X-API-Key: {key}\r\n"
            client = live.connect(body[: len(body) // (1 + number % 2)] if number % 3 == 2 else body, head)
            if number % 3 == 0:
                client.recv(64)
            if number % 10 == 0:
                time.sleep(0.02)
            client.close()
        wait_until(lambda: quotas.streams(key_id) == 0 and live.services.speech.admission.in_flight == 0)
        assert speaker.opened == speaker.closed


def test_a_failing_route_gives_its_permit_back(store: Store):
    key, key_id = add(store, quota=Quota(requests_per_s=None, streams=1))
    quotas = LocalQuotas()
    for fails_at in (0, 2):
        with guarded(Authenticator(ring_of(store), quotas), Speaker(fails_at=fails_at)) as live:
            try:
                assert speak(live, **{"X-API-Key": key}).status_code == 500
            except requests.exceptions.ChunkedEncodingError:
                assert fails_at == 2
            wait_until(lambda: quotas.streams(key_id) == 0)


# Private replies: what needs a key, and every error, is kept by no cache; public routes say themselves how long they hold.


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


# What Serve refuses by itself, as clients see it: behind the middleware that Serve puts around its server.


BACKPRESSURE = "Request dropped due to backpressure"


def ask(app: ASGIApp, path: str = "/v1/audio/speech", root_path: str = "") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of what `app` answers inside all that Serve puts around it."""
    app = RequestIdMiddleware(app)
    for middleware in middlewares():
        app = middleware.cls(app, **middleware.kwargs)
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    headers = [(b"host", b"localhost"), (b"x-request-id", b"abc")]
    scope = {"type": "http", "method": "POST", "path": root_path + path, "root_path": root_path, "headers": headers}
    asyncio.run(app(scope, receive, send))
    assert [message["type"] for message in messages].count("http.response.start") == 1
    body = b"".join(message.get("body", b"") for message in messages)
    return messages[0]["status"], {name.decode(): value.decode() for name, value in messages[0]["headers"]}, body


def says(obj: Any, status: int, **headers: str) -> ASGIApp:
    """An application that answers as Serve does."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        extra = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        for message in convert_object_to_asgi_messages(obj, status_code=status, extra_headers=extra):
            await send(message)

    return app


@pytest.mark.parametrize(
    ("status", "code", "retry_after"),
    [
        (503, "overloaded", "2"),
        (429, "overloaded", "2"),
        (408, "timeout", None),
        (500, "internal_error", None),
        (404, "not_found", None),
    ],
)
def test_what_serve_refuses_in_plain_text_comes_in_the_envelope(status, code, retry_after):
    plain = says(BACKPRESSURE, status, **({"retry_after": retry_after} if retry_after else {}))
    answered, headers, body = ask(plain)
    error = json.loads(body)["error"]
    assert (answered, error["code"], error["request_id"]) == (status, code, "abc")
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"] == "abc"
    assert headers.get("retry-after") == retry_after
    assert BACKPRESSURE not in body.decode()


def test_a_busy_service_always_sends_retry_after():
    headers = ask(says(BACKPRESSURE, 503))[1]
    assert 1000 <= int(headers["retry-after-ms"]) <= 1500
    assert headers["retry-after"] in ("1", "2")


def test_an_error_outside_the_application_is_a_500_in_the_envelope():
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("secret")

    status, headers, body = ask(broken)
    assert (status, json.loads(body)["error"]["code"]) == (500, "internal_error")
    assert headers["x-request-id"] == "abc"
    assert b"secret" not in body


def test_an_error_after_the_reply_has_begun_stays_what_it_is():
    async def breaks_off(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        ask(breaks_off)


@pytest.mark.parametrize(("obj", "status"), [("plain", 200), ({"error": {"code": "ours"}}, 503)])
def test_other_replies_pass_as_they_are(obj, status):
    answered, _, body = ask(says(obj, status))
    assert answered == status
    assert body == (json.dumps(obj, separators=(",", ":")).encode() if isinstance(obj, dict) else obj.encode())


@pytest.mark.parametrize("root_path", ["", "/tts"])
def test_serves_own_pages_stay_as_its_tools_read_them(root_path):
    status, _, body = ask(says("Route table is not populated yet.", 503), "/-/routes", root_path)
    assert (status, body) == (503, b"Route table is not populated yet.")
