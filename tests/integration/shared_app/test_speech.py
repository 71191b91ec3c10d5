"""What clients of a service hear, and what happens when they crowd or leave: in one process, and on a cluster."""

import concurrent.futures
import contextlib
import hashlib
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path

import numpy as np
import pytest
import ray
import requests

from serve.config.app_config import PROJECT
from tests.support.cluster import Cluster
from tests.support.effort import seconds
from tests.support.service import LONG_SPEECH, LONG_STEPS, Service
from tests.support.waiting import wait_until

ROUTING_HEADERS = {
    "x-request-disconnect-disabled": "?1",
    "x-request-timeout-seconds": "0",
    "x-session-id": "mine",
    "serve_multiplexed_model_id": "other",
}


def test_the_service_is_ready_and_says_what_it_is(service: Service):
    assert requests.get(service.url("/ready"), timeout=10).json() == {"status": "ready"}
    health = service.health()
    assert health["acoustic"][0]["slots"] == 8
    assert health["vocoder"][0]["jobs"] > 0
    voices = requests.get(service.url("/v1/audio/voices"), timeout=10).json()["voices"]
    assert voices
    reply = requests.get(service.url("/live"), headers={"X-Request-ID": "mine.1"}, timeout=10)
    assert reply.headers["X-Request-ID"] == "mine.1"


@pytest.mark.on_ray
def test_sixteen_clients_at_once_hear_what_each_hears_alone(service: Service):
    voices = [voice["id"] for voice in requests.get(service.url("/v1/audio/voices"), timeout=10).json()["voices"]]

    def hear(index: int) -> bytes:
        reply = service.speak(
            input=f"Client {index} says this. It has two sentences.", seed=1000 + index, voice=voices[index % len(voices)]
        )
        assert reply.status_code == 200, reply.text
        return reply.content

    alone = [hear(index) for index in range(16)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(hear, range(16)))
    assert together == alone
    assert len(set(alone)) == 16


EVERYTHING = {"trim": True, "denoise": "on", "gain_db": 3, "loudness_lufs": -18, "fade_ms": 20}
LOW = {"latency": "low"}


@pytest.mark.on_ray
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
def test_streamed_audio_equals_buffered_audio(service: Service, fields: dict):
    streamed = service.speak(seed=5, **fields)
    buffered = service.speak(seed=5, stream=False, **fields)
    assert streamed.headers["Transfer-Encoding"] == "chunked"
    assert int(buffered.headers["Content-Length"]) == len(buffered.content)
    assert streamed.content == buffered.content
    samples = np.frombuffer(streamed.content, "<i2")
    assert samples.std() > 0
    duration_ms = 1000 * len(samples) / fields.get("sample_rate", 24_000)
    assert int(buffered.headers["X-Audio-Duration-Ms"]) == pytest.approx(duration_ms, abs=1)
    assert int(buffered.headers["X-Usage-Audio-Tokens"]) > 0


@pytest.mark.on_ray
def test_a_low_latency_has_its_own_bytes_alone_among_others_and_from_the_cache(service: Service):
    body = {"input": "First this. Then that, which is longer, is said in a second sentence.", "cache": "default"}

    def hear(number: int) -> bytes:
        reply = service.speak(**body, seed=2000 + number // 2, latency=("exact", "low")[number % 2])
        assert reply.headers["X-Latency"] == ("exact", "low")[number % 2]
        return reply.content

    alone = [service.speak(**body | {"cache": "no-store"}, seed=2000 + number, **LOW).content for number in range(4)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(hear, range(8)))
    assert together[1::2] == alone
    assert [hear(number) for number in range(8)] == together, "steps of the cache serve both"
    # Random weights end some seeds after so few steps that there is nothing to look ahead to.
    assert together[::2] != together[1::2]


@pytest.mark.on_ray
def test_the_refine_pass_speaks_too(service: Service):
    first = service.speak(input="This is refined.", refine={"oral": 3, "laugh": 1, "break": 5}, seed=9)
    assert first.status_code == 200, first.text
    assert first.content == service.speak(input="This is refined.", refine={"oral": 3, "laugh": 1, "break": 5}, seed=9).content


@pytest.mark.slow
def test_the_first_audio_comes_while_the_rest_is_being_made(service: Service, capsys):
    times = []
    for _ in range(10):
        began = time.perf_counter()
        body = json.loads(LONG_SPEECH)
        with requests.post(service.url("/v1/audio/speech"), json=body, stream=True, timeout=60) as reply:
            pieces = reply.iter_content(1)  # kept: one that is thrown away closes the connection
            next(pieces)
            times.append(time.perf_counter() - began)
            assert service.in_flight() == 1
        wait_until(lambda: service.in_flight() == 0, 60.0)
    with capsys.disabled():
        print(f"\n  first audio after {1000 * min(times):.0f} .. {1000 * max(times):.0f} ms, alone")


@pytest.mark.on_ray
@pytest.mark.parametrize("steering", [{}, ROUTING_HEADERS], ids=["plain", "steering headers"])
def test_a_client_that_leaves_frees_its_slots(service: Service, steering: dict[str, str]):
    head = "".join(f"{name}: {value}\r\n" for name, value in steering.items())
    client = service.connect(LONG_SPEECH, head)
    assert b" 200 " in client.recv(4096)
    assert service.in_flight() == 1
    steps = service.steps()
    client.close()
    wait_until(lambda: service.slots_used() == service.in_flight() == 0, 60.0)
    assert service.steps() - steps < LONG_STEPS / 2, "it was given up, not finished"


def test_a_client_cannot_shorten_or_lift_time_limits(service: Service):
    assert service.speak(headers={"x-request-timeout-seconds": "0.001"}).status_code == 200
    with speaking(service, 8):  # as many as there are slots: nobody else's first audio can be there in time
        wait_until(lambda: service.slots_used() == 8, 60.0)
        reply = service.speak(stream=False, deadline_ms=50, headers={"x-request-timeout-seconds": "0"})
    assert (reply.status_code, reply.json()["error"]["code"]) in [(504, "timeout"), (429, "deadline_unmeetable")]


@contextlib.contextmanager
def speaking(service: Service, number: int) -> Iterator[list[socket.socket]]:
    """So many long speeches under way, or refused."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(service.connect(LONG_SPEECH))) for _ in range(number)]


def test_a_client_cannot_put_words_into_our_headers(service: Service):
    reply = requests.get(service.url("/live"), headers={"X-Request-ID": "<script>"}, timeout=10)
    assert "<" not in reply.headers["X-Request-ID"]
    assert "," not in reply.headers["X-Request-ID"]


@pytest.mark.on_ray
def test_a_crowd_is_served_or_told_when_to_come_back(service: Service):
    crowd, places = 60, 32
    with speaking(service, crowd) as clients, contextlib.ExitStack() as opened:
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


def test_unknown_routes_keep_the_envelope(service: Service):
    reply = requests.get(service.url("/v1/nothing"), timeout=10)
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("headers", "code"),
    [({"Host": "evil.example"}, "host_not_allowed"), ({"Origin": "http://evil.example"}, "origin_not_allowed")],
)
def test_foreign_pages_are_refused(service: Service, headers: dict[str, str], code: str):
    for method, route in (("POST", "/v1/audio/speech"), ("POST", "/admin/cache/purge"), ("GET", "/v1/models")):
        reply = requests.request(method, service.url(route), json={"input": "Hi."}, headers=headers, timeout=10)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, code)
    assert requests.get(service.url("/ready"), headers=headers, timeout=10).status_code == 200


@pytest.mark.parametrize("deployment", ["Ingress", "TextNormalizer", "AcousticModel", "Vocoder"])
def test_no_process_of_a_cpu_loads_torch(cluster: Cluster, deployment: str):
    (pid,) = cluster.replicas("chattts", deployment)
    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.on_ray
def test_times_cross_the_handles_and_are_equal_however_the_audio_is_sent(service: Service):
    """Random weights have no head that follows the text, and the reply says that its words are estimated."""
    body = {"input": "So this is said. It has $5 in it.", "seed": 3, "timestamps": "word", "speed": 1.2}
    whole = service.speak(**body, stream=False).json()
    stored = service.speak(**body, stream=False, cache="default").json()
    again = service.speak(**body, stream=False, cache="default").json()
    lines = service.speak(**body, stream_format="sse").text.splitlines()
    streamed: dict[str, list] = {}
    for event in (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")):
        if event["type"] == "speech.audio.timestamps":
            for kind in event.keys() - {"type"}:
                streamed.setdefault(kind, []).extend(event[kind])
    assert [word["text"] for word in whole["words"]] == ["So", "this", "is", "said", "It", "has", "$5", "in", "it"]
    assert {word["quality"] for word in whole["words"]} == {"estimated"}
    for other in (streamed, stored, again):
        assert (other["words"], other["segments"]) == (whole["words"], whole["segments"])
    assert round(1000 * whole["segments"][-1]["end"]) == whole["duration_ms"]
    assert "coverage" not in whole


# Scripts that work on a running cluster, on one that runs something else.


def test_draining_what_does_not_run_there_says_so(cluster: Cluster, tmp_path: Path):
    path = tmp_path / "elsewhere.yaml"
    dev = (PROJECT / "configs/dev.yaml").read_text()
    path.write_text(dev.replace("- name: chattts\n", "- name: elsewhere\n").replace("configs/dev.yaml", str(path)))
    command = [
        sys.executable,
        "-m",
        "serve.commands.operate.drain",
        str(path),
        "--address",
        ray.get_runtime_context().gcs_address,
    ]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    words = done.stderr.splitlines()[-1]
    assert words.startswith("no application elsewhere runs there, but ")
    assert words.endswith(": is it another cluster?")
    assert cluster.speak(seed=1).status_code == 200


# The cache: a second request takes no step, and nobody hears a difference.

TEXT = {"input": "This is said twice. The second time nobody makes it.", "cache": "default", "seed": 77}


def steps(service: Service) -> int:
    return sum(stats["steps"] for stats in service.health()["acoustic"])


@pytest.mark.on_ray
@pytest.mark.parametrize("fields", [{}, {"refine": {"oral": 2}}], ids=["plain", "refined"])
def test_what_was_said_before_is_heard_again_without_a_step(service: Service, fields: dict[str, object]):
    requests.delete(service.url("/v1/audio/speech/cache"), timeout=10).raise_for_status()
    alone = service.speak(**TEXT | fields | {"cache": "no-store"})
    first = service.speak(**TEXT | fields)
    wait_until(lambda: service.slots_used() == 0, 10.0)
    before = steps(service)
    again = service.speak(**TEXT | fields)
    slower = service.speak(**TEXT | fields | {"speed": 0.8, "sample_rate": 8000, "post": True})
    assert [reply.headers["X-Cache"] for reply in (alone, first, again, slower)] == ["bypass", "miss", "hit", "hit"]
    assert alone.content == first.content == again.content
    assert steps(service) == before
    uncached = service.speak(**TEXT | fields | {"speed": 0.8, "sample_rate": 8000, "post": True, "cache": "no-store"})
    assert uncached.content == slower.content
    assert requests.delete(service.url("/v1/audio/speech/cache"), timeout=10).status_code == 204
    assert service.speak(**TEXT | fields | {"cache": "only-if-cached"}).json()["error"]["code"] == "not_cached"


@pytest.mark.on_ray
def test_equal_requests_at_once_are_made_once(service: Service):
    body = {"input": "Eight people want to hear this at the same moment, and it is made once.", "cache": "default", "seed": 5}
    before = steps(service)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: service.speak(**body), range(8)))
    wait_until(lambda: service.slots_used() == 0, 10.0)
    steps_made = steps(service) - before
    assert len({hashlib.sha256(reply.content).hexdigest() for reply in replies}) == 1
    before = steps(service)
    assert service.speak(**body | {"cache": "no-store"}).content == replies[0].content
    wait_until(lambda: service.slots_used() == 0, 10.0)
    assert steps(service) - before == steps_made
    assert [reply.headers["X-Cache"] for reply in replies].count("miss") == 1


# Text through the real HTTP API: breaks to the sample, hard texts, no 500 whatever is asked.

FUZZING_S = seconds(45.0)
# 504 is what a request asks for with only-if-cached (RFC 9111), or with a deadline this machine does not keep.
CHECKS = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]
"""

HARD_TEXTS = {
    "1,000 digits": "1" * 1000,
    "4,096 brackets": "[" * 4096,
    "nested tags": "[S[Stts]tts]" * 300 + "hi",
    "bidi": "\u202e\u2067hello\u2069\u202c" * 200,
    "zero width": "\u200b\u200d\ufeff" * 1300 + "hi",
    "4,096 emoji": "😀" * 4096,
    "combining": "e" + "\u0301" * 4000,
    "no spaces": "a" * 4096,
    "money": "$1,234.50" * 400,
}


def plan(service: Service, text: str) -> requests.Response:
    return requests.post(service.url("/v1/audio/speech/plan"), json={"input": text}, timeout=60)


@pytest.mark.parametrize("name", HARD_TEXTS)
def test_hard_texts_are_planned_or_refused(service: Service, name: str):
    reply = plan(service, HARD_TEXTS[name])
    assert reply.status_code in (200, 400, 422), reply.text[:200]
    assert plan(service, "hello").status_code == 200


def test_a_break_is_exact_silence(service: Service):
    def hear(document: str) -> np.ndarray:
        reply = service.speak(input=document, input_type="ssml", seed=5, post={"trim": False, "fade_ms": 0})
        assert reply.status_code == 200, reply.text
        return np.frombuffer(reply.content, "<i2")

    samples = hear('<speak><break time="1s"/>Hello there.<break time="333ms"/></speak>')
    alone = hear("<speak>Hello there.</speak>")
    zeros = np.zeros(333 * 24, np.int16)
    assert np.array_equal(samples, np.concatenate([np.zeros(24_000, np.int16), alone, zeros]))


def test_models_and_voices_tell_the_languages_of_the_checkpoint(service: Service):
    for model in requests.get(service.url("/v1/models"), timeout=20).json()["data"]:
        assert model["languages"] == ["zh", "en"], "random weights were taught nothing, and say nothing"
    assert requests.get(service.url("/v1/audio/voices"), timeout=20).json()["languages"] == ["zh", "en"]


def test_the_refine_pass_can_be_looked_at(service: Service):
    body = {"input": "Hello there.", "seed": 3, "refine": {"guard": "strict"}}
    reply = requests.post(service.url("/v1/text/refine"), json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    shown = reply.json()
    assert shown["segments"][0]["source"] == "Hello there."
    strict = service.speak(**body)
    assert strict.status_code == (200 if shown["accepted"] else 422), strict.text


@pytest.mark.slow
@pytest.mark.timeout(FUZZING_S + 255)
def test_no_request_made_from_our_own_document_breaks_a_promise_of_it(service: Service, tmp_path: Path):
    """Schemathesis, good requests and bad ones; by hand for longer: `schemathesis run URL/openapi.json --max-time 300`."""
    program = Path(sys.executable).with_name("schemathesis")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    config = tmp_path / "schemathesis.toml"
    config.write_text(CHECKS)
    command = [program, "--config-file", config, "run", service.url("/openapi.json"), "--checks", checks]
    command += ["--phases", "coverage,fuzzing", "--max-time", str(round(FUZZING_S))]
    command += ["--request-timeout", "60", "--continue-on-failure", "--no-color"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=FUZZING_S + 235, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
