"""Killed replicas. Last, because the cluster needs a moment after each."""

import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from scripts.chaos.deploying import deploy
from tests.support.cluster import EXPORT_TIMEOUT_S, Cluster, document_of, scrape, total
from tests.support.failing_replicas import DEATHS_FILE, FRAGILE, POISON
from tests.support.recovery import recovered
from tests.support.service import LONG_SPEECH
from tests.support.service_process import say_live
from tests.support.waiting import is_ready, wait_until

ROUTE = "/fragile"
JSON = {"Content-Type": "application/json"}


def test_a_listener_hears_a_pause_when_the_acoustic_replica_is_killed(cluster: Cluster, capsys):
    """The only one: the next replica goes on at the exact sample. Newcomers are refused meanwhile."""
    body = json.loads(LONG_SPEECH)
    body["input"] = body["input"][:1500]
    twin = requests.post(cluster.url("/v1/audio/speech"), json=body, timeout=120).content
    reply = requests.post(cluster.url("/v1/audio/speech"), json=body, stream=True, timeout=120)
    pieces = reply.iter_content(4096)
    audio = [next(pieces)]
    assert reply.status_code == 200
    killed = cluster.kill_replica("chattts", "AcousticModel")
    died = time.monotonic()
    audio += pieces
    paused_s = time.monotonic() - died
    assert b"".join(audio) == twin
    for name in ("fail_overs_total", "repeated_steps_total", "fail_over_seconds_count"):
        wait_until(lambda name=name: total(scrape(cluster), name=f"ray_chattts_{name}") > 0, EXPORT_TIMEOUT_S)
    statuses = set()
    while (again := cluster.speak(seed=1)).status_code != 200:
        statuses.add(again.status_code)
        assert again.json()["error"]["code"] in ("engine_dead", "overloaded", "timeout", "circuit_open")
        assert time.monotonic() - died < 60
    recovered("F-01", time.monotonic() - died)
    with capsys.disabled():
        print(f"\n  killed: spoken to its end after {paused_s:.1f} s, others meanwhile: {statuses or '-'}")
    assert killed not in cluster.replicas("chattts", "AcousticModel")
    assert statuses <= {503, 429, 504}


def test_a_killed_controller_comes_back_and_nobody_notices(cluster: Cluster):
    """Serve's own: it starts and ends replicas, and no reply passes through it."""

    def controllers() -> list[int]:
        return cluster.processes("ray::ServeController")

    twin = cluster.speak(seed=1).content
    (killed,) = controllers()
    with requests.post(cluster.url("/v1/audio/speech"), data=LONG_SPEECH, headers=JSON, stream=True, timeout=120) as reply:
        pieces = reply.iter_content(4096)
        assert next(pieces)
        os.kill(killed, signal.SIGKILL)
        died = time.monotonic()
        wait_until(lambda: killed not in controllers(), 5.0)
        for _ in range(5):
            assert cluster.speak(seed=1).content == twin
            assert next(pieces)
    wait_until(lambda: controllers() not in ([], [killed]), 60.0)
    vocoder = cluster.kill_replica("chattts", "Vocoder")
    wait_until(lambda: cluster.replicas("chattts", "Vocoder") not in ([], [vocoder]), 60.0)
    wait_until(lambda: cluster.speak(seed=1).content == twin, 60.0)
    recovered("F-13", time.monotonic() - died)


def test_a_killed_vocoder_replica_comes_back(cluster: Cluster):
    cluster.kill_replica("chattts", "Vocoder")
    died = time.monotonic()
    while (reply := cluster.speak(seed=1)).status_code != 200:
        assert reply.status_code in (503, 504), reply.text
        assert time.monotonic() - died < 60
    recovered("F-08", time.monotonic() - died)


def test_a_killed_ingress_replica_leaves_no_slot_taken(cluster: Cluster):
    client = cluster.connect(LONG_SPEECH)
    assert b" 200 " in client.recv(4096)
    wait_until(lambda: cluster.in_flight() > 0, 5.0)
    cluster.kill_replica("chattts", "Ingress")
    died = time.monotonic()

    wait_until(lambda: is_ready(cluster.url()), 60.0)
    wait_until(lambda: cluster.slots_used() == 0, 5.0)
    recovered("F-02", time.monotonic() - died)
    client.close()


# An application whose acoustic replicas really die of certain words (tests/support/failing_replicas.py).


@pytest.fixture
def fragile(cluster: Cluster) -> Iterator[Cluster]:
    usual = document_of("dev.yaml", app="chattts", route="/")
    usual["http_options"]["port"] = cluster.port
    small = {"engine": {"slots": 4, "threads": 1}}
    document = document_of("dev.yaml", app="fragile", route=ROUTE, pipeline=small, limits={"first_audio_timeout_s": 60})
    application = document["applications"][0]
    application["import_path"] = "tests.support.failing_replicas:fragile_replicas"
    for deployment in application["deployments"]:
        deployment["ray_actor_options"]["num_cpus"] = 0.1
        if deployment["name"] == "AcousticModel":
            deployment["num_replicas"] = 2
    deploy(usual, document)
    yield cluster
    deploy(usual)


def deaths(cluster: Cluster) -> list[str]:
    path = Path(cluster.temp_dir) / DEATHS_FILE
    return path.read_text().splitlines() if path.exists() else []


def say(cluster: Cluster, text: str, seed: int) -> requests.Response:
    body = {"input": text, "response_format": "pcm", "seed": seed, "cache": "no-store"}
    return requests.post(cluster.url(f"{ROUTE}/v1/audio/speech"), json=body, timeout=90)


def test_a_death_before_the_first_audio_is_not_heard_and_a_deadly_request_ends_two_replicas_at_most(fragile: Cluster):
    text = f"Words that are {FRAGILE} follow one another, and the rest is like every other sentence."
    reply = say(fragile, text, 11)
    assert reply.status_code == 200, reply.text
    assert len(deaths(fragile)) == 1, "a replica died of it"
    assert fragile.health(ROUTE)["breakers"]["acoustic"]["retries"] >= 1
    assert say(fragile, text, 11).content == reply.content, "what was heard is what a replica that lives makes"
    assert len(deaths(fragile)) == 1

    wait_until(lambda: len(fragile.replicas("fragile", "AcousticModel")) == 2, 60.0)
    wait_until(lambda: len(fragile.health(ROUTE)["acoustic"]) == 2, 60.0)
    killed = say(fragile, f"This is {POISON}.", 12)
    assert killed.status_code == 503
    assert killed.json()["error"]["code"] == "engine_dead"
    assert len(deaths(fragile)) == 3
    for seed in (12, 13):
        refused = say(fragile, f"This is {POISON}.", seed)
        assert refused.status_code == 422, refused.text
        assert refused.json()["error"]["code"] == "request_quarantined"
        assert refused.headers["x-should-retry"] == "false"
    assert fragile.health(ROUTE)["quarantine"] == {"quarantined": 1, "refused": 2}
    wait_until(lambda: say(fragile, "Everybody else goes on.", 14).status_code == 200, 60.0)
    assert len(deaths(fragile)) == 3


# A job over HTTP while the processes that speak it are killed: it goes on, and its bytes are those of an undisturbed one.

PARTS = 80
BOOK = "\n\n".join(f"Sentence number {number} of a book that somebody waits for." for number in range(PARTS))
KILLED = ("AcousticModel", "Ingress", "Vocoder", "AcousticModel", "Ingress")
TIMEOUT_S = 240.0  # a lease has to run out after each death of the ingress


def job(cluster: Cluster) -> str:
    """The address of a new job."""
    jobs = cluster.url("/v1/audio/jobs")
    reply = requests.post(jobs, json={"input": BOOK, "seed": 3, "response_format": "flac"}, timeout=30)
    assert reply.status_code == 202, reply.text
    return f"{jobs}/{reply.json()['id']}"


def progress(url: str) -> dict[str, Any]:
    """The job once the service answers; it may be away for a moment."""
    while True:
        with contextlib.suppress(requests.RequestException, ValueError):
            reply = requests.get(url, timeout=10)
            if reply.status_code == 200:
                document: dict[str, Any] = reply.json()
                return document
        time.sleep(0.1)


def done(url: str) -> int:
    document = progress(url)
    assert document["status"] in ("queued", "running", "succeeded"), document
    return int(document["progress"]["done"])


def audio(url: str) -> bytes:
    wait_until(lambda: progress(url)["status"] == "succeeded", TIMEOUT_S)
    return requests.get(f"{url}/audio", timeout=60).content


def test_a_job_survives_the_death_of_every_process_with_the_same_bytes(cluster: Cluster, capsys):
    disturbed = job(cluster)
    died_at = []
    for number, deployment in enumerate(KILLED):
        wait_until(lambda number=number: done(disturbed) >= (number + 1) * PARTS // (len(KILLED) + 2), TIMEOUT_S)
        wait_until(lambda deployment=deployment: len(cluster.replicas("chattts", deployment)) == 1, 60.0)
        died_at.append(done(disturbed))
        cluster.kill_replica("chattts", deployment)
    samples = audio(disturbed)
    assert died_at[-1] < PARTS, "every death came in the middle"
    with capsys.disabled():
        print(f"\n  killed after {died_at} of {PARTS} parts")
    requests.delete(cluster.url("/v1/audio/speech/cache"), timeout=30).raise_for_status()
    undisturbed = job(cluster)
    assert audio(undisturbed) == samples
    for url in (disturbed, undisturbed):
        assert requests.delete(url, timeout=30).status_code == 204


# The ingress dies while somebody listens: the rest is asked for, and is the rest to the byte. Late: it breaks the cluster.

TEXT = "Many words follow one another here, and this is sentence number {}. "
BODY: dict[str, Any] = json.loads(LONG_SPEECH)


def kill_ingress(cluster: Cluster) -> None:
    cluster.kill_replica("chattts", "Ingress")


def kill_proxy(cluster: Cluster) -> None:
    """Serve's own HTTP server."""
    (pid,) = [int(name) for name in os.listdir("/proc") if name.isdigit() and is_proxy(cluster, int(name))]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_proxy(cluster, pid), 5.0)


def is_proxy(cluster: Cluster, pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as command, open(f"/proc/{pid}/environ", "rb") as environment:
        return command.read().startswith(b"ray::ProxyActor") and str(cluster.temp_dir).encode() in environment.read()
    return False


@pytest.mark.parametrize("container", ["wav", "flac", "mp3", "opus"])
def test_a_reply_goes_on_when_the_ingress_was_killed(cluster: Cluster, container: str):
    goes_on(cluster, kill_ingress, container, by_key=False)


@pytest.mark.parametrize("kill", [kill_ingress, kill_proxy])
def test_a_reply_goes_on_by_its_key(cluster: Cluster, kill: Callable[[Cluster], None]):
    goes_on(cluster, kill, "mp3", by_key=True)


def goes_on(cluster: Cluster, kill: Callable[[Cluster], None], container: str, *, by_key: bool) -> None:
    body = {**BODY, "response_format": container}
    url, key = cluster.url("/v1/audio/speech"), {"Idempotency-Key": f"{kill.__name__}-{container}"}
    twin = requests.post(url, json=body, timeout=120).content
    reply = requests.post(url, json=body, headers=key if by_key else {}, stream=True, timeout=120)
    received = b""
    killed = False
    with suppress(requests.RequestException):
        for piece in reply.iter_content(4096):
            received += piece
            if not killed:
                kill(cluster)
                killed = True
    assert killed
    assert 0 < len(received) < len(twin), "the body was cut"
    wait_until(lambda: is_ready(cluster.url()), 120.0)
    named = key if by_key else {"X-Resume": reply.headers["X-Resume"]}
    digest = {"X-Resume-Digest": hashlib.sha256(received).hexdigest()}
    rest = requests.post(url, json=body, headers={**named, **digest, "Range": f"bytes={len(received)}-"}, timeout=120)
    assert rest.status_code == 206, rest.text
    assert received + rest.content == twin


@pytest.mark.parametrize("kill", [kill_ingress, kill_proxy])
def test_say_goes_on_by_itself(cluster: Cluster, kill: Callable[[Cluster], None], capsys):
    text = "".join(map(TEXT.format, range(16)))
    twin = say_live(cluster.url(), text)
    whole = twin.stdout.read()
    assert twin.wait(60) == 0
    saying = say_live(cluster.url(), text)
    begun = saying.stdout.read(48_000)
    kill(cluster)
    died = time.monotonic()
    begun += saying.stdout.read()
    took_s = time.monotonic() - died
    assert saying.wait(60) == 0, saying.stderr.read()
    assert begun == whole
    messages = saying.stderr.read().decode()
    assert messages, "it was told of the lost connection"
    with capsys.disabled():
        print(f"\n  {kill.__name__}: {messages.splitlines()[0]}; all said {took_s:.1f} s after it")
