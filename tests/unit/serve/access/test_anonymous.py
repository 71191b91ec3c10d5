"""Clients without a key: what they may do, on every route and protocol, and that a key never allows less."""

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
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from serve.config.key_settings import Openness
from serve.errors import ApiError
from serve.http.services import Services
from serve.protocols.api import ROUTERS, route_access
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import LOOPBACK, add, guarded, ring_of
from tests.support.live_server import serving
from tests.support.riva_server import Caller, refusal, riva_serving
from tests.unit.serve.protocols.wyoming.test_wyoming import heard, talk

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
