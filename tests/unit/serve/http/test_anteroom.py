"""Sockets without a key: refused before they open, but for protocols whose clients say it in their first message."""

import json
from contextlib import ExitStack
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from pipeline.store.store import Store
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from serve.access.proxies import Proxies
from serve.http import anteroom
from tests.support.elevenlabs_client import Client
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import Live
from tests.support.waiting import wait_until

MULTI = "/v1/text-to-speech/alloy/multi-stream-input?output_format=pcm_24000"
PATHS = (MULTI, MULTI.replace("multi-", ""), "/v1/text-to-dialogue/multi-stream-input?output_format=pcm_24000")
OTHERS = ("/v1/audio/conversation", "/v1/speak", "/v1/audio/nothing", "/v1/text-to-speech/alloy/nothing/stream-input")


def opened(live: Live, path: str = MULTI, **headers: str) -> ClientConnection:
    return connect(live.url.replace("http", "ws") + path, additional_headers=headers)


def refused(live: Live, path: str, **headers: str) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as refusal, opened(live, path, **headers):
        pass
    return refusal.value.response.status_code, json.loads(refusal.value.response.body)


def replies_to(connection: ClientConnection, text: str | bytes) -> tuple[list[dict[str, Any]], int | None]:
    """What a socket says to a first message until it closes, and its code."""
    messages = []
    try:
        connection.send(text)
        while True:
            messages.append(json.loads(connection.recv(timeout=30)))
    except ConnectionClosed:
        return messages, connection.close_code


def test_a_wrong_key_and_no_key_are_refused_over_http_in_the_words_of_the_protocol(store: Store) -> None:
    _, _ = add(store)
    voices, _ = add(store, scopes=(Scope.VOICES,))
    with guarded(Authenticator(ring_of(store))) as live:
        for path in (*PATHS, *OTHERS):
            status, body = refused(live, path, **{"xi-api-key": "ck-wrong"})
            named = body["detail"]["status"] if "detail" in body else body.get("err_code") or body["error"]["code"]
            assert (status, named) == (401, "INVALID_AUTH" if path == "/v1/speak" else "invalid_api_key"), path
        for path in OTHERS:
            assert refused(live, path)[0] == 401
        for path in (*PATHS, *OTHERS[:2]):
            assert refused(live, path, **{"xi-api-key": voices})[0] == 403
        for path in OTHERS[2:]:
            assert refused(live, path, **{"xi-api-key": voices})[0] == 404


@pytest.mark.parametrize("field", anteroom.KEY_FIELDS)
def test_a_key_in_the_first_message_opens_the_socket_and_is_named_nowhere(store: Store, field: str) -> None:
    key, _ = add(store)
    with guarded(Authenticator(ring_of(store))) as live, opened(live) as connection:
        client = Client(connection)
        claimed = f"Bearer {key}" if field == "authorization" else key
        client.say(text="Hello. ", context_id="c", flush=True, **{field: claimed})
        messages = client.hear()
        assert messages["audio"]
        assert "ignored_fields" not in messages
        client.say(text="And more. ", context_id="c", note="x" * 5000)  # longer than the first one may be
        client.say(close_socket=True)
        messages, code, _ = client.closed()
    assert code == 1000
    assert not [message for message in messages if "error" in message]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"text": " ", "context_id": "c", "xi_api_key": "ck-wrong"}', "invalid_api_key"),
        ('{"text": " ", "context_id": "c", "xi_api_key": ""}', "missing_api_key"),
        ('{"text": " ", "context_id": "c", "xi_api_key": 5}', "missing_api_key"),
        ("[" * 4000, "invalid_json"),
        ("[]", "invalid_type"),
        (b"{}", "invalid_type"),
    ],
)
def test_another_first_message_is_refused_in_words(store: Store, text: str | bytes, error: str) -> None:
    add(store)
    with guarded(Authenticator(ring_of(store))) as live, opened(live) as connection:
        messages, code = replies_to(connection, text)
    assert [(message["error"], message.get("context_id")) for message in messages] == [
        (error, "c" if '"c"' in str(text) else None)
    ]
    assert code == 1008


def test_what_follows_the_first_message_waits_for_the_key(store: Store) -> None:
    """A client in a browser sends its text right behind its key, in messages of any length."""
    key, _ = add(store)
    long = {"text": "And more. ", "context_id": "c", "note": "x" * 100_000}
    with guarded(Authenticator(ring_of(store))) as live:
        with opened(live) as connection:
            client = Client(connection)
            client.say(text="Hello. ", context_id="c", xi_api_key=key)
            client.say(**long)
            client.say(close_socket=True)
            messages, code, _ = client.closed()
        assert (code, [message for message in messages if "error" in message]) == (1000, [])
        assert any(message.get("audio") for message in messages)
        with opened(live) as connection:
            connection.send(json.dumps({"text": " ", "xi_api_key": "ck-wrong"}))
            messages, code = replies_to(connection, json.dumps(long))
        assert ([message["error"] for message in messages], code) == (["invalid_api_key"], 1008)


@pytest.mark.parametrize("header", ["X-Chattts-Client", "X-Forwarded-For"])
def test_forged_addresses_share_the_places_of_one_address(store: Store, header: str) -> None:
    add(store)
    with guarded(Authenticator(ring_of(store))) as live, ExitStack() as waiting:
        for number in range(anteroom.MOST_OF_AN_ADDRESS):
            waiting.enter_context(opened(live, **{header: f"192.0.2.{number}"}))
        assert refused(live, MULTI, **{header: "192.0.2.99"})[0] == 429


@pytest.mark.parametrize("silent", [{"X-Forwarded-For": "192.0.2.1"}, {}])
def test_where_all_places_are_taken_the_longest_silence_ends(
    store: Store, monkeypatch: pytest.MonkeyPatch, silent: dict[str, str]
) -> None:
    """Behind a balancer, whether it names its clients or not."""
    key, _ = add(store)
    monkeypatch.setattr(anteroom, "MOST_SOCKETS", 3)
    with guarded(Authenticator(ring_of(store), proxies=Proxies(["127.0.0.0/8"]))) as live, ExitStack() as waiting:
        other = waiting.enter_context(opened(live, **{"X-Forwarded-For": "192.0.2.2"}))
        first, second = (waiting.enter_context(opened(live, **silent)) for _ in range(2))
        client = Client(waiting.enter_context(opened(live, **silent)))
        assert json.loads(first.recv(timeout=30))["error"] == "too_many_without_a_key"
        client.say(text="Hello. ", context_id="c", xi_api_key=key, flush=True)
        assert client.hear()["audio"]
        for still in (other, second):
            still.send("[]")
            assert json.loads(still.recv(timeout=30))["error"] == "invalid_type"


def test_a_first_message_is_short_and_not_too_many_wait_for_theirs(store: Store) -> None:
    add(store)
    with guarded(Authenticator(ring_of(store))) as live:
        with opened(live) as connection:
            assert replies_to(connection, json.dumps({"text": "x" * 2 * anteroom.MOST_BYTES})) == ([], 1009)
        with ExitStack() as waiting:
            sockets = [waiting.enter_context(opened(live)) for _ in range(anteroom.MOST_OF_AN_ADDRESS)]
            assert refused(live, MULTI)[0] == 429
            sockets[0].close()

            def has_room() -> bool:
                try:
                    waiting.enter_context(opened(live))
                except InvalidStatus:
                    return False
                return True

            wait_until(has_room)
            assert refused(live, MULTI)[0] == 429
