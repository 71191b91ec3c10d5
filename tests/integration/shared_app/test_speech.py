"""The application of configs/dev.yaml on a real cluster: what clients hear, and what happens when they crowd or leave."""

import concurrent.futures
import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import numpy as np
import pytest
import requests

from tests.support.cluster import LONG_SPEECH, LONG_STEPS, Cluster
from tests.support.waiting import wait_until

ROUTING_HEADERS = {
    "x-request-disconnect-disabled": "?1",
    "x-request-timeout-seconds": "0",
    "x-session-id": "mine",
    "serve_multiplexed_model_id": "other",
}


def test_the_service_is_ready_and_says_what_it_is(cluster: Cluster):
    assert requests.get(cluster.url("/ready"), timeout=10).json() == {"status": "ready"}
    health = cluster.health()
    assert health["acoustic"][0]["slots"] == 8
    assert health["vocoder"][0]["jobs"] > 0
    voices = requests.get(cluster.url("/v1/audio/voices"), timeout=10).json()["voices"]
    assert voices
    reply = requests.get(cluster.url("/live"), headers={"X-Request-ID": "mine.1"}, timeout=10)
    assert reply.headers["X-Request-ID"] == "mine.1"


def test_sixteen_clients_at_once_hear_what_each_hears_alone(cluster: Cluster):
    voices = [voice["id"] for voice in requests.get(cluster.url("/v1/audio/voices"), timeout=10).json()["voices"]]

    def hear(index: int) -> bytes:
        reply = cluster.speak(
            input=f"Client {index} says this. It has two sentences.", seed=1000 + index, voice=voices[index % len(voices)]
        )
        assert reply.status_code == 200
        return reply.content

    alone = [hear(index) for index in range(16)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(hear, range(16)))
    assert together == alone
    assert len(set(alone)) == 16


EVERYTHING = {"trim": True, "denoise": "on", "gain_db": 3, "loudness_lufs": -18, "fade_ms": 20}


LOW = {"latency": "low"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"speed": 1.3},
        {"sample_rate": 16_000, "post": EVERYTHING, "speed": 0.8},
        LOW,
        LOW | {"speed": 0.8, "sample_rate": 8_000},
    ],
)
def test_streamed_audio_equals_buffered_audio(cluster: Cluster, fields: dict):
    streamed = cluster.speak(seed=5, **fields)
    buffered = cluster.speak(seed=5, stream=False, **fields)
    assert streamed.headers["Transfer-Encoding"] == "chunked"
    assert int(buffered.headers["Content-Length"]) == len(buffered.content)
    assert streamed.content == buffered.content
    samples = np.frombuffer(streamed.content, "<i2")
    assert samples.std() > 0
    duration_ms = 1000 * len(samples) / fields.get("sample_rate", 24_000)
    assert int(buffered.headers["X-Audio-Duration-Ms"]) == pytest.approx(duration_ms, abs=1)
    assert int(buffered.headers["X-Usage-Audio-Tokens"]) > 0


def test_a_low_latency_has_its_own_bytes_alone_among_others_and_from_the_cache(cluster: Cluster):
    body = {"input": "First this. Then that, which is longer, is said in a second sentence.", "cache": "default"}

    def hear(number: int) -> bytes:
        reply = cluster.speak(**body, seed=2000 + number // 2, latency=("exact", "low")[number % 2])
        assert reply.headers["X-Latency"] == ("exact", "low")[number % 2]
        return reply.content

    alone = [cluster.speak(**body | {"cache": "no-store"}, seed=2000 + number, **LOW).content for number in range(4)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(hear, range(8)))
    assert together[1::2] == alone
    assert [hear(number) for number in range(8)] == together, "steps of the cache serve both"
    # Random weights end some seeds after so few steps that there is nothing to look ahead to.
    assert together[::2] != together[1::2]


def test_the_refine_pass_speaks_too(cluster: Cluster):
    first = cluster.speak(input="This is refined.", refine={"oral": 3, "laugh": 1, "break": 5}, seed=9)
    assert first.status_code == 200, first.text
    assert first.content == cluster.speak(input="This is refined.", refine={"oral": 3, "laugh": 1, "break": 5}, seed=9).content


def test_the_first_audio_comes_while_the_rest_is_being_made(cluster: Cluster, capsys):
    times = []
    for _ in range(10):
        began = time.perf_counter()
        body = json.loads(LONG_SPEECH)
        with requests.post(cluster.url("/v1/audio/speech"), json=body, stream=True, timeout=60) as reply:
            pieces = reply.iter_content(1)  # kept: one that is thrown away closes the connection
            next(pieces)
            times.append(time.perf_counter() - began)
            assert cluster.in_flight() == 1
        wait_until(lambda: cluster.in_flight() == 0, 60.0)
    with capsys.disabled():
        print(f"\n  first audio after {1000 * min(times):.0f} .. {1000 * max(times):.0f} ms, alone")


@pytest.mark.parametrize("steering", [{}, ROUTING_HEADERS], ids=["plain", "steering headers"])
def test_a_client_that_leaves_frees_its_slots(cluster: Cluster, steering: dict[str, str]):
    head = "".join(f"{name}: {value}\r\n" for name, value in steering.items())
    client = cluster.connect(LONG_SPEECH, head)
    assert b" 200 " in client.recv(4096)
    assert cluster.in_flight() == 1
    steps = cluster.steps()
    client.close()
    wait_until(lambda: cluster.slots_used() == cluster.in_flight() == 0, 60.0)
    assert cluster.steps() - steps < LONG_STEPS / 2, "it was given up, not finished"


def test_a_client_cannot_shorten_or_lift_time_limits(cluster: Cluster):
    assert cluster.speak(headers={"x-request-timeout-seconds": "0.001"}).status_code == 200
    with speaking(cluster, 8):  # as many as there are slots: nobody else's first audio can be there in time
        wait_until(lambda: cluster.slots_used() == 8, 60.0)
        reply = cluster.speak(stream=False, deadline_ms=50, headers={"x-request-timeout-seconds": "0"})
    assert (reply.status_code, reply.json()["error"]["code"]) in [(504, "timeout"), (429, "deadline_unmeetable")]


@contextlib.contextmanager
def speaking(cluster: Cluster, number: int) -> Iterator[list[socket.socket]]:
    """So many long speeches under way, or refused."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(cluster.connect(LONG_SPEECH))) for _ in range(number)]


def test_a_client_cannot_put_words_into_our_headers(cluster: Cluster):
    reply = requests.get(cluster.url("/live"), headers={"X-Request-ID": "<script>"}, timeout=10)
    assert "<" not in reply.headers["X-Request-ID"]
    assert "," not in reply.headers["X-Request-ID"]


def test_a_crowd_is_served_or_told_when_to_come_back(cluster: Cluster):
    crowd, places = 60, 32
    with speaking(cluster, crowd) as clients, contextlib.ExitStack() as opened:
        replies: list[HTTPResponse] = []

        def enough_came() -> bool:
            for client in select.select(clients, [], [], 0)[0]:
                clients.remove(client)
                reply = opened.enter_context(contextlib.closing(HTTPResponse(client)))
                reply.begin()
                replies.append(reply)
            refused = sum(reply.status != 200 for reply in replies)
            return crowd - places <= refused < len(replies)

        wait_until(enough_came, 120.0)  # each speaks for much longer than that takes
        for reply in replies:
            if reply.status != 200:
                assert reply.status in (429, 503)
                assert json.load(reply)["error"]["code"] in ("overloaded", "deadline_unmeetable")
                assert int(reply.headers["Retry-After"]) >= 1


def test_unknown_routes_keep_the_envelope_behind_serve(cluster: Cluster):
    reply = requests.get(cluster.url("/v1/nothing"), timeout=10)
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("headers", "code"),
    [({"Host": "evil.example"}, "host_not_allowed"), ({"Origin": "http://evil.example"}, "origin_not_allowed")],
)
def test_foreign_pages_are_refused_behind_serve(cluster: Cluster, headers: dict[str, str], code: str):
    for method, route in (("POST", "/v1/audio/speech"), ("POST", "/admin/cache/purge"), ("GET", "/v1/models")):
        reply = requests.request(method, cluster.url(route), json={"input": "Hi."}, headers=headers, timeout=10)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, code)
    assert requests.get(cluster.url("/ready"), headers=headers, timeout=10).status_code == 200


@pytest.mark.parametrize("deployment", ["Ingress", "TextNormalizer", "AcousticModel", "Vocoder"])
def test_no_process_of_a_cpu_loads_torch(cluster: Cluster, deployment: str):
    (pid,) = cluster.replicas("chattts", deployment)
    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


def test_times_cross_the_handles_and_are_equal_however_the_audio_is_sent(cluster: Cluster):
    """Random weights have no head that follows the text, and the reply says that its words are estimated."""
    body = {"input": "So this is said. It has $5 in it.", "seed": 3, "timestamps": "word", "speed": 1.2}
    whole = cluster.speak(**body, stream=False).json()
    stored = cluster.speak(**body, stream=False, cache="default").json()
    again = cluster.speak(**body, stream=False, cache="default").json()
    lines = cluster.speak(**body, stream_format="sse").text.splitlines()
    told: dict[str, list] = {}
    for event in (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")):
        if event["type"] == "speech.audio.timestamps":
            for kind in event.keys() - {"type"}:
                told.setdefault(kind, []).extend(event[kind])
    assert [word["text"] for word in whole["words"]] == ["So", "this", "is", "said", "It", "has", "$5", "in", "it"]
    assert {word["quality"] for word in whole["words"]} == {"estimated"}
    for other in (told, stored, again):
        assert (other["words"], other["segments"]) == (whole["words"], whole["segments"])
    assert round(1000 * whole["segments"][-1]["end"]) == whole["duration_ms"]
    assert "coverage" not in whole
