"""The service's own protocol over a real WebSocket: what is said, refused and closed, and what is left when a client leaves."""

import asyncio
import base64
import hashlib
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from pipeline.store.store import Store
from serve.access.api_keys import Quota
from serve.access.authentication import Authenticator
from serve.access.quotas import LocalQuotas
from serve.config.app_config import LimitsConfig
from serve.http import conversation_socket
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import CANARY, Live, serving
from tests.support.waiting import wait_until

PATH = "/v1/audio/conversation"
PCM = {"response_format": "pcm", "seed": 7}


class Client:
    """A client of the protocol."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def say(self, kind: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": kind, **fields}))

    def hear(self) -> dict[str, Any]:
        message = json.loads(self.connection.recv(timeout=30))
        assert CANARY not in json.dumps(message)
        return message

    def until(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """Returns all messages up to one of this kind."""
        events = [self.hear()]
        while events[-1]["type"] != kind or not fields.items() <= events[-1].items():
            events.append(self.hear())
        return events

    def closed(self) -> tuple[int, str]:
        with suppress(ConnectionClosed):  # it is an error where the code is one
            while True:
                self.connection.recv(timeout=30)
        assert self.connection.close_code is not None
        return self.connection.close_code, self.connection.close_reason or ""


@contextmanager
def talking(live: Live, **headers: str) -> Iterator[Client]:
    url = live.url.replace("http", "ws") + PATH
    with connect(url, additional_headers=headers) as connection:
        yield Client(connection)


def audio_of(events: list[dict[str, Any]], context: str = "main") -> bytes:
    return b"".join(
        base64.b64decode(event["audio"]) for event in events if event["type"] == "audio" and event["context"] == context
    )


def test_a_text_at_once_has_the_bytes_of_the_http_reply(live):
    with talking(live) as client:
        client.say("open", speech=PCM)
        client.say("text", text="Hello there. ")
        client.say("close")
        events = client.until("closed")
    kinds = [event["type"] for event in events]
    assert kinds == ["opened", "started", *["audio"] * 5, "finished", "closed"]
    assert audio_of(events) == live.speak(input="Hello there. ", seed=7).content
    started, finished, closed = events[1], events[-2], events[-1]
    assert (started["seed"], started["part"], started["characters"]) == (7, 0, [0, 13])
    assert (started["content_type"], started["sample_rate"], started["voice"]) == (
        "audio/pcm; rate=24000; channels=1",
        24000,
        "default",
    )
    assert (finished["duration_ms"], closed["duration_ms"], finished["steps"]) == (1000, 1000, 46)


def test_a_client_that_says_nothing_wakes_nobody(live, monkeypatch):
    """Ten thousand of them would share one event loop."""
    looks: list[float] = []
    now = conversation_socket._now
    with talking(live) as client:
        client.say("open", speech=PCM)
        client.until("opened")
        monkeypatch.setattr(conversation_socket, "_now", lambda: looks.append(now()) or now())
        with pytest.raises(TimeoutError):
            client.connection.recv(timeout=0.7)
        assert looks == []
        client.say("text", text="Hello there. ")
        client.say("close")
        client.until("closed")
    assert looks != []


def test_contexts_talk_at_the_same_time_and_halves_of_characters_join(live):
    with talking(live) as client:
        for name in ("a", "b"):
            client.say("open", context=name, speech=PCM | {"seed": ord(name)}, sentences=True)
        for name in ("a", "b"):
            client.say("text", context=name, text="So this is one sentence. And here is \ud83d")
            client.say("text", context=name, text="\ude00 one more")
            client.say("close", context=name)
        events = client.until("closed")
        events += client.until("closed")
    assert {event["context"] for event in events} == {"a", "b"}
    for name in ("a", "b"):
        parts = [event["characters"] for event in events if event["type"] == "started" and event["context"] == name]
        assert parts == [[0, 25], [25, 47]]
        assert audio_of(events, name) == 2 * live.speak(seed=ord(name)).content
    assert live.services.speech.stream.__self__.requests[-3].text == "And here is 😀 one more"


def test_an_interruption_says_what_was_heard():
    speaker = Speaker(chunks=None, pause_s=0.001)
    with serving(make_services(speaker)) as server, talking(server) as client:
        client.say("open", speech=PCM)
        client.say("text", text="One two three four five six.")
        client.say("flush")
        client.until("audio")
        client.say("cancel", played_ms=100)
        cancelled = client.until("cancelled")[-1]
        assert cancelled["heard"]["ms"] == 100
        assert cancelled["heard"]["quality"] == "estimated"
        wait_until(lambda: speaker.closed == 1)
        client.say("text", text="more")
        refused = client.hear()
        assert (refused["type"], refused["context"], refused["error"]["code"]) == ("refused", "main", "context_not_found")
        client.say("open")
        assert client.hear()["type"] == "opened"


REFUSED: list[tuple[str | bytes, str]] = [
    ("{", "invalid_json"),
    ("[]", "invalid_type"),
    ("1", "invalid_type"),
    ("{}", "invalid_type"),
    ('{"type": "shout"}', "invalid_type"),
    ('{"type": ["open"]}', "invalid_type"),
    ("[" * 100_000, "invalid_json"),
    (b"\x00\x01", "invalid_type"),
    ('{"type": "text"}', "missing_field"),
    ('{"type": "text", "text": 5}', "invalid_type"),
    ('{"type": "text", "text": "x", "flush": true}', "unknown_field"),
    ('{"type": "text", "text": "x"}', "context_not_found"),
    (f'{{"type": "flush", "context": "{CANARY} \\" x"}}', "out_of_range"),
    ('{"type": "cancel", "played_ms": -1}', "out_of_range"),
    ('{"type": "cancel", "played_ms": NaN}', "out_of_range"),
    ('{"type": "open", "pause_ms": 1}', "out_of_range"),
    ('{"type": "open", "lead_s": 61}', "out_of_range"),
    ('{"type": "open", "speech": {"input": "x"}}', "unknown_field"),
    ('{"type": "open", "speech": {"speed": "\\ud83d"}}', "invalid_json"),
    ('{"type": "open", "speech": {"voice": "nobody"}}', "voice_not_found"),
    ('{"type": "open", "speech": {"model": "nothing"}}', "model_not_found"),
]


def test_what_is_wrong_is_refused_in_words_and_the_socket_stays(live):
    with talking(live) as client:
        for frame, code in REFUSED:
            client.connection.send(frame)
            refused = client.hear()
            assert (refused["type"], refused["error"]["code"]) == ("refused", code), frame[:80]
            assert refused["status"] >= 400
            assert refused["error"]["message"]
            assert refused["error"]["request_id"]
        client.say("open", speech=PCM)
        assert client.hear()["type"] == "opened"
        for number in range(20):
            client.say("open", context=f"c{number}")
        refused = [event for event in (client.hear() for _ in range(20)) if event["type"] == "refused"]
        assert [1 <= event["retry_after_s"] <= 1.5 for event in refused] == [True] * 13
        client.say("text", text="x" * 16_385)
        assert client.hear()["error"]["code"] == "overloaded"


def test_a_message_is_measured_in_bytes_as_in_http_and_beyond_a_mebibyte_the_socket_closes():
    with serving(make_services(Speaker(), LimitsConfig.varied({"max_body_bytes": 2000}))) as server, talking(server) as client:
        for letters in ("x" * 2000, "你" * 700):
            client.connection.send('{"type": "text", "text": "' + letters + '"}')
            assert client.hear()["error"]["code"] == "body_too_large"
        client.connection.send("x" * ((1 << 20) + 1))
        assert client.closed()[0] == 1009


def test_a_replica_that_stops_says_so_and_finishes_what_was_flushed():
    services = make_services(Speaker(chunks=3, pause_s=0.05))
    with serving(services) as server, talking(server) as client:
        client.say("open", speech=PCM)
        client.say("text", text="One. ")
        client.say("flush")
        client.say("text", text="Two. ")
        client.say("flush")
        client.until("audio")
        services.speech.admission.close()
        services.conversations.leave()
        events = client.until("finished", part=1)
        assert "going_away" in [event["type"] for event in events]
        assert client.closed() == (1001, "the service is about to stop; connect again")


@pytest.mark.parametrize("container", ["pcm", "mp3"])
def test_a_part_that_was_cut_goes_on_in_another_socket(live, container):
    speech = {"response_format": container}  # without a seed: the token has it
    with talking(live) as client:
        client.say("open", speech=speech)
        client.say("text", text="One. ")
        client.say("flush")
        client.say("text", text="Two. ")
        client.say("close")
        events = client.until("closed")
    first = [event for event in events if event.get("part") == 0]
    token, audio = first[0]["resume"], audio_of(first)
    for at in (0, 1, len(audio) // 2, len(audio)):
        with talking(live) as client:
            digest = hashlib.sha256(audio[:at]).hexdigest()
            client.say("open", speech=speech, resume={"token": token, "bytes": at, "sha256": digest})
            client.say("text", text="One. ")
            client.say("flush")
            client.say("text", text="Two. ")
            client.say("close")
            again = client.until("closed")
        rest = [event for event in again if event.get("part") == 0]
        assert audio[:at] + audio_of(rest) == audio
        assert (rest[0]["seed"], rest[-1]) == (first[0]["seed"], first[-1])
        assert next(event["type"] for event in again if event.get("part") == 1) == "started", "the text goes on behind it"


def test_another_text_does_not_go_on_with_a_part(live):
    with talking(live) as client:
        client.say("open", speech=PCM)
        client.say("text", text="One.")
        client.say("close")
        token = client.until("closed")[1]["resume"]
        client.say("open", speech=PCM, resume={"token": token, "bytes": 10})
        client.say("text", text="Another one.")
        client.say("close")
        failed = client.until("error")[-1]
        assert (failed["status"], failed["error"]["code"]) == (409, "resume_mismatch")
        client.say("open", speech=PCM, resume={"token": token, "bytes": -1})
        assert client.until("refused")[-1]["error"]["param"] == "resume"


def test_a_key_is_needed_and_an_open_socket_counts_as_one_request(store: Store):
    key, key_id = add(store, quota=Quota(requests_per_s=None, streams=1))
    quotas = LocalQuotas()
    with guarded(Authenticator(ring_of(store), quotas), Speaker(chunks=1)) as live:
        for headers in ({}, {"xi-api-key": "ck-wrong"}):
            with pytest.raises(InvalidStatus) as refusal, talking(live, **headers):
                pass
            code = json.loads(refusal.value.response.body)["error"]["code"]
            assert (refusal.value.response.status_code, code) == (401, "invalid_api_key" if headers else "missing_api_key")
        with talking(live, **{"xi-api-key": key}) as client:
            client.say("open", speech=PCM)
            assert client.hear()["type"] == "opened"
            assert quotas.streams(key_id) == 1
            with pytest.raises(InvalidStatus) as refusal, talking(live, Authorization=f"Bearer {key}"):
                pass
            assert refusal.value.response.status_code == 429
        wait_until(lambda: quotas.streams(key_id) == 0)


@pytest.mark.slow
def test_of_64_sockets_the_silent_ones_cost_no_place_and_the_talking_ones_lose_nothing():
    speaker = Speaker(chunks=3, pause_s=0.05)
    services = make_services(speaker, LimitsConfig(max_in_flight=32))

    async def talk(url: str, seed: int, meeting: asyncio.Barrier) -> bytes:
        audio = b""
        async with connect_async(url) as connection:
            await meeting.wait()
            if seed % 2:
                await meeting.wait()
                return audio
            await connection.send(json.dumps({"type": "open", "speech": PCM | {"seed": seed}}))
            for number in range(5):
                await connection.send(json.dumps({"type": "text", "text": f"Part number {number}."}))
                await connection.send(json.dumps({"type": "flush"}))
            await connection.send(json.dumps({"type": "close"}))
            async for frame in connection:
                message = json.loads(frame)
                assert message["type"] != "error", message
                audio += base64.b64decode(message.get("audio", ""))
                if message["type"] == "closed":
                    break
            await meeting.wait()
        return audio

    async def all_of_them(url: str) -> list[bytes]:
        meeting = asyncio.Barrier(64)
        return await asyncio.gather(*(talk(url, seed, meeting) for seed in range(64)))

    with serving(services) as server:
        streams = asyncio.run(all_of_them(f"ws://127.0.0.1:{server.port}{PATH}"))
        for seed in range(0, 64, 8):
            assert streams[seed] == 5 * server.speak(seed=seed).content
    assert [len(audio) for audio in streams] == [5 * 3 * 9600, 0] * 32


@pytest.mark.slow
def test_a_message_larger_than_the_server_takes_closes_the_socket(live):
    with talking(live) as client:
        client.connection.send("x" * ((16 << 20) + 1))
        assert client.closed()[0] == 1009


@pytest.mark.slow
def test_a_client_that_reads_nothing_is_let_go():
    speaker = Speaker(chunks=None, chunk_samples=48_000)
    services = make_services(speaker, LimitsConfig(stall_timeout_s=0.3))
    with serving(services) as server:
        url = f"ws://127.0.0.1:{server.port}{PATH}"
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        small.connect(("127.0.0.1", server.port))
        with connect(url, sock=small, max_queue=1, close_timeout=0.1) as connection:
            client = Client(connection)
            client.say("open", speech=PCM)
            client.say("text", text="Endless.")
            client.say("flush")
            wait_until(lambda: speaker.closed == 1 and services.conversations.open_now == 0)
            produced = speaker.produced
        assert produced < 1000
