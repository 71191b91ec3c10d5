"""Keys: who is let in, what a key may do, and that no key is ever seen again."""

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from pipeline.errors import StoreUnavailable
from pipeline.store.open import open_store
from pipeline.store.store import Store
from pipeline.types import Lane
from scripts.operate import keys as keys_script
from serve.access.api_keys import KEY, NAMESPACE, KeyRing, Quota, Scope
from serve.access.authentication import Authenticator, local_peer_check
from serve.access.quotas import LocalQuotas
from serve.config.app_config import LimitsConfig
from serve.config.config_file import find_mistakes
from serve.config.hosts import is_loopback
from serve.http.api import create_api, route_access
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import LOOPBACK, add, guarded, ring_of, speak, status
from tests.support.waiting import wait_until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(str(tmp_path / "store.sqlite"))
    yield opened
    opened.close()


# Without keys.


def test_without_keys_only_this_machine_is_served(store: Store):
    authenticator = Authenticator(ring_of(store))
    assert status(authenticator, LOOPBACK) == status(authenticator, "::1") == status(authenticator, "::ffff:127.0.0.1") == "in"
    assert status(authenticator, LOOPBACK, authorization="Bearer none") == "in", (
        "what client libraries send when they must send something"
    )
    for peer in ("10.0.0.7", "172.17.0.1", "192.168.1.2", "8.8.8.8", "", "unknown"):
        assert status(authenticator, peer) == "no_keys_configured"


@pytest.mark.parametrize("name", ["forwarded", "x_forwarded_for", "x_real_ip", "via"])
def test_what_a_proxy_claims_denies_access_and_never_grants_it(store: Store, name: str):
    authenticator = Authenticator(ring_of(store))
    assert status(authenticator, LOOPBACK, **{name: LOOPBACK}) == "no_keys_configured", "a local proxy forwards for others"
    assert status(authenticator, "8.8.8.8", **{name: LOOPBACK}) == "no_keys_configured"
    assert status(Authenticator(ring_of(store), is_open=True), "8.8.8.8", **{name: "9.9.9.9"}) == "in", (
        "unless the operator says so"
    )


def test_behind_haproxy_every_peer_looks_local_so_the_listening_address_decides():
    own = ("10.1.2.3",)
    assert local_peer_check(listens="0.0.0.0", behind_proxy=False, own=own) is is_loopback
    for listens in ("0.0.0.0", "10.1.2.3", None):
        assert not local_peer_check(listens=listens, behind_proxy=True, own=own)(LOOPBACK)
    inside = local_peer_check(listens=LOOPBACK, behind_proxy=True, own=own)
    assert inside(LOOPBACK)
    assert inside("10.1.2.3"), "HAProxy of this machine"
    assert not inside("10.1.2.4"), "straight to the replica's port, beside HAProxy"


def test_a_store_that_was_never_read_lets_nobody_in(store: Store):
    assert status(Authenticator(KeyRing(store)), LOOPBACK) == "store_unavailable"
    assert status(Authenticator(KeyRing(store), is_open=False), LOOPBACK) == "store_unavailable"
    assert status(Authenticator(KeyRing(store), is_open=True), "8.8.8.8") == "in"


def test_keys_only_is_keys_only_before_there_is_one_too(store: Store):
    assert status(Authenticator(ring_of(store), is_open=False), LOOPBACK) == "no_keys_configured"


def test_a_record_nobody_can_read_opens_nothing(store: Store):
    store.put(NAMESPACE, "abcdefghij", b"not a record", replaces=0)
    assert status(Authenticator(ring_of(store)), LOOPBACK) == "missing_api_key"


def test_a_service_others_can_hear_states_who_may_call():
    document = {
        "http_options": {"host": "0.0.0.0"},
        "applications": [
            {"name": "x", "route_prefix": "/", "import_path": "serve.app:build_app", "args": {}, "deployments": []}
        ],
    }
    for name, most in (("Ingress", 400), ("AcousticModel", 1000), ("Vocoder", 64)):
        document["applications"][0]["deployments"].append({"name": name, "max_ongoing_requests": most})
    (mistake,) = find_mistakes(document)
    assert "keys.open" in mistake
    for said in (True, False):
        document["applications"][0]["args"] = {"keys": {"open": said}}
        assert find_mistakes(document) == []


# With keys.


def test_each_of_the_three_headers_brings_a_key(store: Store):
    key, key_id = add(store)
    with guarded(Authenticator(ring_of(store))) as live:
        for headers in ({"Authorization": f"Bearer {key}"}, {"xi-api-key": key}, {"X-API-Key": key}):
            assert speak(live, **headers).status_code == 200
        other = key[:-1] + ("A" if key[-1] != "A" else "B")
        for wrong in (other, key_id, "", "none", f"ck-{'a' * 10}-{'b' * 43}", "é"):
            reply = requests.get(f"{live.url}/v1/models", headers={"X-API-Key": wrong.encode()}, timeout=5)
            assert reply.status_code == 401
            assert reply.json()["error"]["code"] == ("invalid_api_key" if wrong else "missing_api_key")
            assert reply.json()["error"]["type"] == "authentication_error"
            assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert reply.json()["error"]["request_id"] == reply.headers["X-Request-ID"]
            assert key not in reply.text
            assert not wrong or wrong not in reply.text


def test_a_key_once_there_is_asked_of_this_machine_too(store: Store):
    add(store)
    with guarded(Authenticator(ring_of(store))) as live:
        assert speak(live).json()["error"]["code"] == "missing_api_key"
        for path in ("/", "/live", "/ready", "/health", "/source", "/source.tar.gz", "/docs", "/openapi.json"):
            assert requests.get(f"{live.url}{path}", timeout=5).status_code == 200, f"{path} asks for no key"


def test_a_route_that_changes_or_costs_something_takes_one_scope():
    api, access = create_api(lambda: make_services(Speaker())), route_access()
    routes = [(method.upper(), path) for path, methods in api.openapi()["paths"].items() for method in methods]
    assert len(routes) > 20
    for method, path in routes:
        wanted = access.access_of({"type": "http", "method": method, "path": path}).scopes
        assert method == "GET" or (wanted is not None and len(wanted) == 1), f"{method} {path}"


def test_a_key_does_what_its_scopes_say(store: Store):
    key, key_id = add(store, scopes=(Scope.TEXT,))
    with guarded(Authenticator(ring_of(store))) as live:
        reply = speak(live, **{"X-API-Key": key})
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "scope_missing")
        assert key_id in reply.json()["error"]["message"]
        headers = {"X-API-Key": key}
        assert requests.get(f"{live.url}/v1/models", headers=headers, timeout=5).status_code == 200
        text = {"input": "One."}
        assert requests.post(f"{live.url}/v1/text/normalize", json=text, headers=headers, timeout=5).status_code == 200
        assert requests.post(f"{live.url}/v1/text/refine", json=text, headers=headers, timeout=5).status_code == 403
        assert requests.post(f"{live.url}/admin/anything", headers=headers, timeout=5).status_code == 403


def test_keys_come_and_go_without_a_restart(store: Store):
    ring = ring_of(store)
    with guarded(Authenticator(ring)) as live:
        assert speak(live).status_code == 200
        key, key_id = add(store)
        ring.refresh()
        assert speak(live).status_code == 401
        assert speak(live, **{"X-API-Key": key}).status_code == 200
        assert store.delete(NAMESPACE, key_id)
        second, _ = add(store)
        ring.refresh()
        assert speak(live, **{"X-API-Key": key}).status_code == 401
        assert speak(live, **{"X-API-Key": second}).status_code == 200


def test_a_store_that_goes_away_keeps_the_known_keys(store: Store):
    key, _ = add(store)
    ring = ring_of(store)

    def gone(namespace: str, since: str = "") -> None:
        raise StoreUnavailable("gone")

    store.changes = gone  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreUnavailable):
        ring.refresh()
    assert status(Authenticator(ring), "8.8.8.8", x_api_key=key) == "in"


def test_the_script_makes_lists_and_revokes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = str(tmp_path / "keys.sqlite")
    assert (
        keys_script.main(["add", "anna", "--store", store, "--scopes", "speech", "--lanes", "bulk", "--streams", "none"]) == 0
    )
    key = capsys.readouterr().out.strip()
    assert KEY.fullmatch(key)
    ring = ring_of(open_store(store))
    found = ring.find(key)
    assert found is not None
    assert (found.record.scopes, found.record.lanes, found.record.quota.streams) == ((Scope.SPEECH,), (Lane.BULK,), None)
    assert keys_script.main(["list", "--store", store]) == 0
    listed = capsys.readouterr().out
    assert found.id in listed
    assert key.rpartition(f"{found.id}-")[2] not in listed + (tmp_path / "keys.sqlite").read_bytes().decode("latin-1")
    assert keys_script.main(["revoke", found.id, "--store", store]) == 0
    ring.refresh()
    assert ring.find(key) is None
    assert keys_script.main(["revoke", found.id, "--store", store]) == 1


def test_no_key_is_in_a_log_or_a_reply(store: Store, caplog: pytest.LogCaptureFixture):
    key, key_id = add(store, quota=Quota(requests_per_s=0.001, burst=2))
    secret = key.rpartition(f"{key_id}-")[2]
    with caplog.at_level(logging.DEBUG), guarded(Authenticator(ring_of(store))) as live:
        replies = [speak(live, Authorization=f"Bearer {claimed}") for claimed in (key, key, key, f"{key}x", secret)]
    assert [reply.status_code for reply in replies] == [200, 200, 429, 401, 401]
    seen = caplog.text + "".join(reply.text + str(reply.headers) for reply in replies if reply.status_code != 200)
    assert secret not in seen
    assert f"key={key_id}" in caplog.text, "the log names it by its id"


# Quotas of a key.


def test_the_rate_is_said_and_kept(store: Store):
    key, _ = add(store, quota=Quota(requests_per_s=0.01, burst=3))
    with guarded(Authenticator(ring_of(store))) as live:
        replies = [requests.get(f"{live.url}/v1/models", headers={"X-API-Key": key}, timeout=5) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    assert [reply.headers["RateLimit-Remaining"] for reply in replies] == ["2", "1", "0", "0"]
    assert {reply.headers["RateLimit-Limit"] for reply in replies} == {"3"}
    refusal = replies[-1]
    assert refusal.json()["error"]["code"] == "rate_limited"
    assert refusal.json()["error"]["type"] == "rate_limit_error"
    assert 95 <= int(refusal.headers["Retry-After"]) <= 100, "one request a hundred seconds"
    assert re.fullmatch(r"\d+\.\d{3}s", refusal.headers["x-ratelimit-reset-requests"])


def test_characters_of_the_day_are_taken_whole_or_not_at_all(store: Store):
    key, _ = add(store, quota=Quota(requests_per_s=None, characters_a_day=30))
    with guarded(Authenticator(ring_of(store))) as live:
        replies = [speak(live, **{"X-API-Key": key}) for _ in range(3)]  # 12 characters each
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert replies[-1].json()["error"]["code"] == "quota_exceeded"
    assert replies[-1].headers["x-should-retry"] == "false"
    assert 0 < int(replies[-1].headers["Retry-After"]) <= 86_400


def test_audio_is_counted_as_it_is_made(store: Store):
    key, _ = add(store, quota=Quota(requests_per_s=None, audio_s_a_minute=1.5))
    with guarded(Authenticator(ring_of(store))) as live:
        replies = [speak(live, **{"X-API-Key": key}) for _ in range(3)]  # a second each
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert replies[-1].json()["error"]["code"] == "quota_exceeded"
    assert 10 <= int(replies[-1].headers["Retry-After"]) <= 21, "half a second too much, at 1.5 s a minute"


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
            assert requests.get(f"{live.url}/v1/models", headers={"X-API-Key": key}, timeout=5).status_code == 200
        wait_until(lambda: quotas.streams(key_id) == 0)


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


def test_websockets_need_a_key_too(store: Store):
    add(store)
    services = make_services(Speaker())
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store)))
    sent = []

    async def ask() -> None:
        async def send(message):
            sent.append(message)

        async def receive():
            return {"type": "websocket.connect"}

        scope = {
            "type": "websocket",
            "path": "/v1/audio/speech/stream",
            "headers": [],
            "client": (LOOPBACK, 1),
            "query_string": b"",
        }
        await create_api(lambda: services)(scope, receive, send)

    asyncio.run(ask())
    assert sent == [{"type": "websocket.close", "code": 1008, "reason": "missing_api_key"}]
