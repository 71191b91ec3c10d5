"""Keys: who is let in, what a key may do, and that no key is ever seen again."""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import requests
from starlette.datastructures import Headers
from starlette.routing import WebSocketRoute
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize

from pipeline.store.store import Store
from serve.access.api_keys import KeyRing, Quota, Scope
from serve.access.authentication import Authenticator, local_peer_check
from serve.config.hosts import is_loopback
from serve.config.key_settings import Openness
from serve.errors import ApiError
from serve.http.services import Services
from serve.protocols.api import ROUTERS, create_api, route_access
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import LOOPBACK, add, guarded, ring_of, speak, status
from tests.support.live_server import serving
from tests.support.riva_server import Caller, refusal, riva_serving
from tests.unit.serve.protocols.wyoming.test_wyoming import heard, talk

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


@pytest.mark.parametrize(
    ("is_open", "peer", "unread", "none_yet"),
    [
        ("until_first_key", LOOPBACK, "store_unavailable", "in"),
        (None, LOOPBACK, "store_unavailable", "in"),
        (False, LOOPBACK, "store_unavailable", "no_keys_configured"),
        (True, "8.8.8.8", "in", "in"),
    ],
)
def test_before_the_first_key_and_before_the_store_was_read(
    store: Store, is_open: Openness, peer: str, unread: str, none_yet: str
):
    assert status(Authenticator(KeyRing(store), is_open=is_open), peer) == unread
    assert status(Authenticator(ring_of(store), is_open=is_open), peer) == none_yet


def test_behind_haproxy_every_peer_looks_local_so_the_listening_address_decides():
    own = ("10.1.2.3",)
    assert local_peer_check(listens="0.0.0.0", behind_proxy=False, own=own) is is_loopback
    for listens in ("0.0.0.0", "10.1.2.3", None):
        assert not local_peer_check(listens=listens, behind_proxy=True, own=own)(LOOPBACK)
    inside = local_peer_check(listens=LOOPBACK, behind_proxy=True, own=own)
    assert inside(LOOPBACK)
    assert inside("10.1.2.3"), "HAProxy of this machine"
    assert not inside("10.1.2.4"), "straight to the replica's port, beside HAProxy"


# With keys.


def test_each_of_the_three_headers_brings_a_key(store: Store):
    key, key_id = add(store)
    with guarded(Authenticator(ring_of(store))) as live:
        for headers in ({"Authorization": f"Bearer {key}"}, {"xi-api-key": key}, {"X-API-Key": key}):
            assert speak(live, **headers).status_code == 200
        other = key[:-1] + ("A" if key[-1] != "A" else "B")
        for wrong in (other, key_id, "", "none", f"ck-{'a' * 10}-{'b' * 43}", "é"):
            reply = requests.get(f"{live.url}/v1/models", headers={"X-API-Key": wrong.encode()}, timeout=60)
            assert reply.status_code == 401
            assert reply.json()["error"]["code"] == ("invalid_api_key" if wrong else "missing_api_key")
            assert reply.json()["error"]["type"] == "authentication_error"
            assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert reply.json()["error"]["request_id"] == reply.headers["X-Request-ID"]
            assert key not in reply.text
            assert not wrong or wrong not in reply.text


def test_once_a_key_exists_this_machine_needs_one_too(store: Store):
    add(store)
    with guarded(Authenticator(ring_of(store))) as live:
        assert speak(live).json()["error"]["code"] == "missing_api_key"
        for path in ("/", "/live", "/ready", "/health", "/source", "/source.tar.gz", "/docs", "/openapi.json"):
            assert requests.get(f"{live.url}{path}", timeout=60).status_code == 200, f"{path} asks for no key"


def test_a_route_that_changes_or_costs_something_takes_one_scope():
    api, access = create_api(lambda: make_services(Speaker())), route_access()
    routes = [(method.upper(), path) for path, methods in api.openapi()["paths"].items() for method in methods]
    assert len(routes) > 20
    for method, path in routes:
        scopes = access.access_of({"type": "http", "method": method, "path": path}).scopes
        assert method == "GET" or (scopes is not None and len(scopes) == 1), f"{method} {path}"


def test_a_scope_that_is_missing_is_named_with_the_key(store: Store):
    key, key_id = add(store, scopes=(Scope.TEXT,))
    with guarded(Authenticator(ring_of(store))) as live:
        reply = speak(live, **{"X-API-Key": key})
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "scope_missing")
        assert key_id in reply.json()["error"]["message"]


def test_no_key_is_in_a_log_or_a_reply(store: Store, caplog: pytest.LogCaptureFixture):
    key, key_id = add(store, quota=Quota(requests_per_s=0.001, burst=2))
    secret = key.rpartition(f"{key_id}-")[2]
    with caplog.at_level(logging.DEBUG), guarded(Authenticator(ring_of(store))) as live:
        replies = [speak(live, Authorization=f"Bearer {claimed}") for claimed in (key, key, key, f"{key}x", secret)]
    assert [reply.status_code for reply in replies] == [200, 200, 429, 401, 401]
    texts = caplog.text + "".join(reply.text + str(reply.headers) for reply in replies if reply.status_code != 200)
    assert secret not in texts
    assert f"key={key_id}" in caplog.text, "the log names it by its id"


# Quotas of a key.


def test_the_rate_is_in_the_headers_and_enforced(store: Store):
    key, _ = add(store, quota=Quota(requests_per_s=0.01, burst=3))
    with guarded(Authenticator(ring_of(store))) as live:
        replies = [requests.get(f"{live.url}/v1/models", headers={"X-API-Key": key}, timeout=60) for _ in range(4)]
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
    assert (replies[-1].json()["error"]["code"], replies[-1].headers["x-should-retry"]) == ("quota_exceeded", "false")
    assert 0 < int(replies[-1].headers["Retry-After"]) <= 86_400


# Clients without a key: what they may do, on every route and protocol, and that a key never allows less.


FAR = "8.8.8.8"
ROUTES = [
    (kind, method, route.path)
    for router in ROUTERS
    for route in router.routes
    for kind, method in (
        [("websocket", "GET")] if isinstance(route, WebSocketRoute) else [("http", method) for method in sorted(route.methods)]
    )
]


def code(gate: Authenticator, scopes: frozenset[Scope] | None, *, key: str = "", peer: str = FAR, stores: bool = False) -> str:
    try:
        caller = gate.authenticate(
            Headers({"host": "localhost", **({"x-api-key": key} if key else {})}), peer, scopes, opens_page=False
        )
        if caller is None and stores:
            gate.check_storing()
    except ApiError as refused:
        return refused.spec.code
    return "in"


@pytest.mark.parametrize("allowed", [(), ("speech", "text"), ("speech", "voices"), ("speech", "voices", "text")])
@pytest.mark.parametrize(("is_open", "has_keys"), [(True, True), (True, False), ("until_first_key", False), (None, False)])
def test_no_key_is_never_more_than_a_key(store: Store, is_open: Openness, has_keys: bool, allowed: tuple[str, ...]):
    gates = [Authenticator(ring_of(store), is_open=is_open, anonymous_scopes=tuple(map(Scope, allowed)))]
    if has_keys:
        key, _ = add(store, scopes=tuple(map(Scope, allowed)))
        gates = [Authenticator(ring_of(store), is_open=is_open, anonymous_scopes=tuple(map(Scope, allowed)))]
    table, peer = route_access(), LOOPBACK
    for kind, method, path in ROUTES:
        access = table.access_of({"type": kind, "method": method, "path": path.replace("{path:path}", "x")})
        scopes, may_store = access.scopes, not access.stores or "voices" in allowed
        for gate in gates:
            without = code(gate, scopes, peer=peer, stores=access.stores)
            assert (without == "in") == (scopes is None or (bool(scopes & set(allowed)) and may_store)), (method, path)
            assert without in ("in", "missing_api_key"), "a 401, which a key cures"
            if path.startswith("/admin/"):
                assert without == "missing_api_key"
            if has_keys and without == "in":
                assert code(gate, scopes, key=key, peer=peer) == "in", (method, path)


def test_admin_cannot_be_opened(store: Store):
    gate = Authenticator(ring_of(store), is_open=True, anonymous_scopes=tuple(Scope))
    assert code(gate, frozenset({Scope.ADMIN})) == "missing_api_key"
    assert code(gate, frozenset(Scope)) == "in"


def test_a_service_that_is_open_until_the_first_key_closes_with_it(store: Store):
    ring = ring_of(store)
    gate, speech = Authenticator(ring, is_open="until_first_key"), frozenset({Scope.SPEECH})
    assert code(gate, speech) == "in"
    key, _ = add(store)
    ring.refresh()
    assert (code(gate, speech), code(gate, speech, key=key)) == ("missing_api_key", "in")


def test_lexicons_are_stored_without_a_key_only_where_the_operator_says_so():
    for scopes, stored in (((Scope.SPEECH, Scope.TEXT), 401), ((Scope.TEXT, Scope.VOICES), 400)):
        with guarded(Authenticator(is_open=True, anonymous_scopes=scopes)) as live:
            assert requests.put(f"{live.url}/v1/lexicons/mine", json={}, timeout=60).status_code == stored
            assert requests.get(f"{live.url}/v1/lexicons/mine", timeout=60).status_code == 404


# Real protocols. Each returns whether a text was spoken.


def over_http(services: Services) -> bool:
    with serving(services) as live:
        reply = live.speak()
        assert reply.status_code in (200, 401)
        return reply.status_code == 200


def over_socket(path: str, *messages: str) -> Callable[[Services], bool]:
    def ask(services: Services) -> bool:
        with serving(services) as live:
            try:
                with connect(f"ws://127.0.0.1:{live.port}{path}") as socket:
                    for message in messages:
                        socket.send(message)
                    while True:
                        event = socket.recv(timeout=20)
                        if isinstance(event, bytes) or '"audio"' in event:
                            return True
            except InvalidStatus as refused:
                return bool(refused.response.status_code != 401)
            except ConnectionClosed as closed:
                return bool(closed.rcvd is None or closed.rcvd.code != 1008)

    return ask


def over_grpc(services: Services) -> bool:
    with riva_serving(services) as address:
        try:
            Caller(address).whole(text="Hello there.")
        except Exception:
            assert refusal(lambda: Caller(address).whole(text="Hello there.")) == ("UNAUTHENTICATED", "missing_api_key")
            return False
        return True


def over_wyoming(services: Services) -> bool:
    async def script(client: AsyncTcpClient, listener: Any) -> list[str]:
        await client.write_event(Synthesize("Hello there.").event())
        return (await heard(client))[0]

    events: list[str] = talk(script, services)
    assert "audio-stop" in events or events == ["error missing_api_key", "end"]
    return "audio-stop" in events


SAID = ('{"type": "open"}', '{"type": "text", "text": "Hello there. "}', '{"type": "close"}')
PROTOCOLS = {
    "http": over_http,
    "conversation": over_socket("/v1/audio/conversation", *SAID),
    "elevenlabs": over_socket("/v1/text-to-speech/alloy/stream-input", '{"text": "Hello there. "}', '{"text": ""}'),
    "deepgram": over_socket("/v1/speak", '{"type": "Speak", "text": "Hello."}', '{"type": "Flush"}'),
    "grpc": over_grpc,
    "wyoming": over_wyoming,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("scope", [Scope.SPEECH, Scope.TEXT])
def test_every_protocol_asks_for_the_scope(protocol: str, scope: Scope):
    services = replace(make_services(Speaker()), authenticator=Authenticator(anonymous_scopes=(scope,)))
    assert PROTOCOLS[protocol](services) == (scope is Scope.SPEECH)
