"""Single-use tokens: a browser opens one socket or sends one request with one, on the quota of the key that fetched it."""

import asyncio
import json
from contextlib import ExitStack

import pytest
import requests
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from pipeline.store.store import Store
from serve.access.api_keys import NAMESPACE, Scope
from serve.access.authentication import Authenticator
from serve.access.single_use_tokens import TTL_S
from serve.errors import ApiError
from tests.support.clock import HeldClock
from tests.support.elevenlabs_client import Client
from tests.support.guarded import FREE, add, guarded, ring_of, tokens_of
from tests.support.live_server import Live

PATHS = (
    "/v1/text-to-speech/alloy/multi-stream-input?output_format=pcm_24000",
    "/v1/text-to-speech/alloy/stream-input?output_format=pcm_24000",
    "/v1/text-to-dialogue/multi-stream-input?output_format=pcm_24000",
)


def gate(store: Store) -> Authenticator:
    return Authenticator(ring_of(store), single_use=tokens_of(store))


def fetched(live: Live, key: str, kind: str = "tts_websocket") -> requests.Response:
    return requests.post(f"{live.url}/v1/single-use-token/{kind}", headers={"xi-api-key": key}, timeout=30)


def opened(live: Live, token: str, path: str = PATHS[0]) -> ClientConnection:
    """As a browser opens it: with an Origin and no header of its own."""
    address = f"{live.url.replace('http', 'ws')}{path}&single_use_token={token}"
    return connect(address, additional_headers={"Origin": "https://shop.example"})


def refusal(live: Live, token: str) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refused, opened(live, token):
        pass
    return refused.value.response.status_code, json.loads(refused.value.response.body)["detail"]["status"]


@pytest.mark.parametrize("path", PATHS)
def test_a_browser_opens_one_socket_on_any_replica(store: Store, path: str) -> None:
    key, _ = add(store)
    with guarded(gate(store)) as first, guarded(gate(store)) as second:
        token = fetched(first, key).json()["token"]
        assert key not in token
        with opened(second, token, path) as connection:
            client = Client(connection)
            if "dialogue" in path:
                client.say(context_id="c", voices=["alloy"])
                client.say(context_id="c", inputs=[{"text": "Hello. ", "voice_id": "alloy"}])
                client.say(context_id="c", flush=True)
            else:
                client.say(text="Hello. ", flush=True)
            message = client.hear()
            assert message["audio"]
            assert "single_use_token" not in str(message.get("ignored_fields"))
        for live in (first, second):
            assert refusal(live, token) == (401, "invalid_single_use_token")


def test_what_is_spoken_is_of_the_quota_and_the_scopes_of_its_key(store: Store) -> None:
    key, key_id = add(store, quota=FREE.model_copy(update={"streams": 1}))
    voices, _ = add(store, scopes=(Scope.VOICES,))
    with guarded(gate(store)) as live, ExitStack() as sockets:
        assert fetched(live, voices).status_code == 403
        assert fetched(live, "ck-wrong").status_code == 401
        assert fetched(live, key, "realtime_scribe").status_code == 400
        token, other, last = (fetched(live, key).json()["token"] for _ in range(3))
        sockets.enter_context(opened(live, token))
        assert refusal(live, other)[0] == 429, "the one stream of its key is taken"
        store.delete(NAMESPACE, key_id)
        with guarded(gate(store)) as later:
            assert refusal(later, last) == (401, "invalid_api_key")


def test_deepgrams_clients_are_granted_one_in_place_of_a_key(store: Store) -> None:
    key, _ = add(store)
    with guarded(gate(store)) as live:

        def granted(sent: str = key, **body: object) -> requests.Response:
            headers = {"Authorization": f"Token {sent}"}
            return requests.post(f"{live.url}/v1/auth/grant", json=body or None, headers=headers, timeout=30)

        def spoken(token: str) -> tuple[int, str]:
            headers = {"Authorization": f"Bearer {token}"}
            reply = requests.post(f"{live.url}/v1/speak", json={"text": "Hello."}, headers=headers, timeout=30)
            return reply.status_code, "" if reply.ok else reply.json()["err_code"]

        assert [granted(**body).json()["expires_in"] for body in ({}, {"ttl_seconds": 5}, {"ttl_seconds": 3600})] == [
            30,
            5,
            900,
        ]
        assert (granted("ck-wrong").status_code, granted(ttl_seconds=0).status_code) == (401, 400)
        first, second, brief = (granted(**body).json()["access_token"] for body in ({}, {}, {"ttl_seconds": 0.001}))
        assert [spoken(token) for token in (first, first, "a.b.c.d", brief)] == [(200, ""), *3 * [(401, "INVALID_AUTH")]]
        with connect(f"{live.url.replace('http', 'ws')}/v1/speak", subprotocols=["bearer", second]) as socket:
            assert json.loads(socket.recv(timeout=30))["type"] == "Metadata"
        assert granted(first).status_code == 401, "a token grants no other one"


@pytest.mark.parametrize("change", ["", "x", "x.1.y.z", "....", "a" * 5000, "%C3%A9.9999999999.b.c"])
def test_what_is_no_token_is_refused(store: Store, change: str) -> None:
    add(store)
    with guarded(gate(store)) as live:
        if change:
            assert refusal(live, change) == (401, "invalid_single_use_token")
        else:
            with opened(live, change) as connection:  # an empty one is none: it may say its key
                connection.send('{"text": " "}')
                assert "missing_api_key" in str(connection.recv(timeout=30))


def test_a_token_lives_shortly_and_cannot_be_changed() -> None:
    clock = HeldClock(1e9)
    tokens = tokens_of(None, clock)
    token = tokens.issue("abc")
    assert tokens.key_id(token) == "abc"
    for place in range(len(token)):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        with pytest.raises(ApiError):
            tokens.key_id(changed)
    with pytest.raises(ApiError):
        tokens_of(None, clock, b"of another service").key_id(token)
    clock.advance(TTL_S + 1)
    with pytest.raises(ApiError):
        tokens.key_id(token)


def test_of_many_at_once_one_is_first(store: Store) -> None:
    replicas = [tokens_of(store) for _ in range(3)]
    token = replicas[0].issue("abc")

    async def race() -> list[object]:
        return await asyncio.gather(*(replica.use(token) for replica in replicas * 3), return_exceptions=True)

    assert sum(outcome is None for outcome in asyncio.run(race())) == 1
