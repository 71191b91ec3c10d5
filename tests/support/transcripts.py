"""Transcripts: what a client and this service said to each other, recorded at the server and said again in tests."""

import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from pipeline.store.open import open_store
from pipeline.types import AudioChunk, SynthesisRequest
from serve.access.authentication import Authenticator, claimed_key
from serve.config.app_config import PROJECT, ConversationsConfig, LimitsConfig
from tests.support.fakes import Speaker, make_services, shipped_library
from tests.support.guarded import add, ring_of, tokens_of
from tests.support.live_server import serving

FILE = PROJECT / "tests/data/transcripts.json"
ENDLESS = "An endless"
"""how a text begins that is spoken until it is interrupted"""
IDLE_S = 6.0
"""after which the last of the servers closes a silent socket"""

Talk = dict[str, Any]
"""one request or one socket of a client, as JSON"""


class Talker(Speaker):
    """Speaks one second of every text but for endless ones."""

    async def stream(self, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        is_endless = request.text.startswith(ENDLESS)
        speaker = Speaker(chunks=None, pause_s=0.02) if is_endless else Speaker()
        async for chunk in speaker.stream(request):
            yield chunk


@dataclass
class Servers:
    """Four servers: one for everybody, one that asks for a key, one without room, one that soon closes a silent socket."""

    addresses: dict[str, str]
    key: str


@contextmanager
def started(folder: Path, recorder: "Recorder | None" = None) -> Iterator[Servers]:
    """Serves until the block ends."""
    store = open_store(str(folder / "store.sqlite"))
    key, _ = add(store)
    made = partial(make_services, voice_id=shipped_library().canonical)
    guarded = made(Talker())
    object.__setattr__(guarded, "authenticator", Authenticator(ring_of(store), single_use=tokens_of(store)))
    full = made(Talker(), LimitsConfig(max_in_flight=1), conversations=ConversationsConfig(max_sockets=0))
    brief = made(Talker(), conversations=ConversationsConfig(idle_timeout_s=IDLE_S))
    everyone = made(Talker())
    with ExitStack() as servers:
        addresses = {}
        for name, services in (("open", everyone), ("guarded", guarded), ("full", full), ("brief", brief)):
            wrap = None if recorder is None else recorder.at(name, key)
            addresses[name] = servers.enter_context(serving(services, wrap=wrap)).url
        servers.enter_context(full.speech.admission.acquire())
        yield Servers(addresses, key)


class Recorder:
    """Writes down what passes between clients and servers."""

    def __init__(self) -> None:
        self._talks: list[Talk] = []

    def take(self) -> list[Talk]:
        """Returns what was recorded since the last time."""
        talks, self._talks = self._talks, []
        return talks

    def at(self, server: str, key: str) -> Any:
        """Returns what wraps the application of a server."""

        def wrap(app: ASGIApp) -> ASGIApp:
            async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
                headers = Headers(scope=scope)
                claimed = claimed_key(headers)
                talk: Talk = {
                    "server": server,
                    "key": "right" if claimed == key else "wrong" if server == "guarded" else "none",
                    "path": scope["path"],
                    "query": scope["query_string"].decode(),
                }
                self._talks.append(talk)
                await (_socket if scope["type"] == "websocket" else _request)(talk, headers, app, scope, receive, send)

            return recorded

        return wrap


async def _request(talk: Talk, headers: Headers, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    names = ("content-type", "accept", "xi-api-key")
    talk |= {"method": scope["method"], "headers": {name: headers[name] for name in names if name in headers}, "body": ""}
    talk["headers"] = {name: "KEY" if name == "xi-api-key" else value for name, value in talk["headers"].items()}

    async def hear() -> Message:
        message = await receive()
        talk["body"] += message.get("body", b"").decode()
        return message

    async def say(message: Message) -> None:
        if message["type"] == "http.response.start":
            talk.update(status=message["status"], content_type=Headers(raw=message["headers"])["content-type"])
        await send(message)

    await app(scope, hear, say)


async def _socket(talk: Talk, headers: Headers, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    notes: list[list[Any]] = []
    talk["said"] = notes

    async def hear() -> Message:
        message = await receive()
        if message["type"] == "websocket.receive":
            notes.append(["client", message.get("text")])
        return message

    async def say(message: Message) -> None:
        if message["type"] == "websocket.send":
            note = ["server", kind_of(message.get("text") or message["bytes"])]
            if notes[-1:] != [note]:
                notes.append(note)
        elif message["type"] == "websocket.close":
            notes.append(["close", message["code"]])
        elif message["type"] == "websocket.http.response.start":
            notes.append(["refused", message["status"]])
        await send(message)

    await app(scope, hear, say)


def kind_of(frame: str | bytes) -> str:
    """Names what a server said, without audio, ids and sentences."""
    if isinstance(frame, bytes):
        return "audio"
    message = json.loads(frame)
    context = f" {message['context_id']}" if message.get("context_id") else ""
    if message.get("audio"):
        return f"audio{context}"
    if message.get("isFinal") or message.get("is_final"):
        return f"final{context}"
    return " ".join(str(message[name]) for name in ("type", "error", "code") if name in message) + context


def say_again(talk: Talk, servers: Servers) -> None:
    """Says what a client said, and checks that the server answers as it did."""
    claims = {"right": servers.key, "wrong": "ck-wrong", "none": "none"}
    if "said" in talk:
        _talk_again(talk, servers.addresses[talk["server"]], claims[talk["key"]])
        return
    headers = {**talk["headers"], "Authorization": f"Bearer {claims[talk['key']]}"}
    headers = {name: claims[talk["key"]] if value == "KEY" else value for name, value in headers.items()}
    url = f"{servers.addresses[talk['server']]}{talk['path']}?{talk['query']}"
    body = talk["body"].encode()
    with requests.request(talk["method"], url, headers=headers, data=body, timeout=60, stream=True) as reply:
        assert (reply.status_code, reply.headers["Content-Type"]) == (talk["status"], talk["content_type"])
        assert next(reply.iter_content(256)), "an endless reply is not read to its end"


def _talk_again(talk: Talk, address: str, key: str) -> None:
    url = f"{address.replace('http', 'ws')}{talk['path']}?{talk['query']}"
    expected: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    headers = {"Authorization": f"Token {key}"}
    if talk["said"][0][0] == "refused":
        with pytest.raises(InvalidStatus) as refusal, connect(url, additional_headers=headers):
            pass
        assert refusal.value.response.status_code == talk["said"][0][1]
        return
    with connect(url, additional_headers=headers, max_size=None) as client:
        for side, content in talk["said"]:
            if side == "client":
                _listen(client, counts, expected)
                with suppress(ConnectionClosed):  # as it was then, if the server has closed
                    client.send(content)
            elif side == "server":
                expected[content] += 1
            else:
                with suppress(ConnectionClosed):
                    while True:
                        counts[kind_of(client.recv(timeout=30))] += 1
                assert client.close_code == content
        _listen(client, counts, expected)
    controls = {name: count for name, count in expected.items() if not name.startswith("audio")}
    assert {name: counts[name] for name in controls} == controls
    assert set(counts) == set(expected)


def _listen(client: ClientConnection, counts: Counter[str], expected: Counter[str]) -> None:
    """Reads until everything expected was heard: audio at least once, all else as often as it was said."""
    while any(counts[name] < (1 if name.startswith("audio") else count) for name, count in expected.items()):
        counts[kind_of(client.recv(timeout=30))] += 1


def saved(scenario: str, talks: list[Talk]) -> None:
    """Writes the transcript of a scenario; what a client said several times is written once."""
    unique = [talk for place, talk in enumerate(talks) if talk not in talks[:place]]
    scenarios = dict(sorted({**json.loads(FILE.read_text()), scenario: unique}.items()))
    FILE.write_text(json.dumps(scenarios, indent=1, ensure_ascii=False) + "\n")
