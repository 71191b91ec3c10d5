"""Autoscaling on work ahead: an application that loads the policy, grows under load, shrinks after it, and loses nothing."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests
from ray import serve

from scripts.chaos.deploying import deploy
from tests.support.cluster import Cluster, document_of, scrape
from tests.support.service import FLAT, LONG
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nightly

ROUTE = "/elastic"
CLIENTS = 6
GROWTH_S = 240.0  # a replica is a Python process: on a busy machine it takes its time
BOOK = "\n\n".join(f"Paragraph {number} of a book. {LONG[:200]}" for number in range(200))
BODY = {"input": LONG[:400], "response_format": "pcm", "seed": 3, "deadline_ms": 120_000, "cache": "no-store", **FLAT}


def running(deployment: str) -> int:
    """Replicas that take requests."""
    states = serve.status().applications["elastic"].deployments[deployment].replica_states
    return sum(count for state, count in states.items() if state == "RUNNING")


@pytest.fixture(scope="module")
def elastic(started: Cluster) -> Iterator[Cluster]:
    first = document_of("dev.yaml", app="chattts", route="/")
    first["http_options"]["port"] = started.port
    limits = {"chunk_timeout_s": 120.0, "max_in_flight": 64}
    second = document_of("dev.yaml", app="elastic", route=ROUTE, limits=limits, jobs={"parallel": "auto"})
    for deployment in second["applications"][0]["deployments"]:
        if deployment["name"] in ("AcousticModel", "Vocoder"):
            # The demo's steps take a tenth of a millisecond: what keeps a GPU busy is a thousandth of it.
            policy = {
                "policy_function": "serve.resilience.autoscaling:StepBacklogPolicy",
                "policy_kwargs": {"utilisation": 0.01, "wait_s": 0.05},
            }
            del deployment["num_replicas"]
            deployment["autoscaling_config"] = {
                "min_replicas": 1,
                "max_replicas": 2,
                "policy": policy,
                "metrics_interval_s": 0.5,
                "look_back_period_s": 3,
                "upscale_delay_s": 0.5,
                "downscale_delay_s": 3,
            }
    deploy(first, second)
    yield started
    deploy(first)


@contextmanager
def talking(cluster: Cluster, clients: int) -> Iterator[list[tuple[int, bytes]]]:
    """So many clients speak one after the other; yields what they have heard so far."""
    replies: list[tuple[int, bytes]] = []
    over = threading.Event()

    def client() -> None:
        while not over.is_set():
            reply = requests.post(cluster.url(f"{ROUTE}/v1/audio/speech"), json=BODY, timeout=200)
            replies.append((reply.status_code, reply.content))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield replies
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_replicas_come_with_the_work_and_go_after_it_and_nothing_is_lost(elastic: Cluster, capsys):
    assert (running("AcousticModel"), running("Vocoder")) == (1, 1)
    began = time.monotonic()
    with talking(elastic, CLIENTS) as replies:
        wait_until(lambda: running("AcousticModel") == running("Vocoder") == 2, GROWTH_S)
        grown_s = time.monotonic() - began
        so_far = len(replies)
        wait_until(lambda: len(replies) > so_far + CLIENTS, GROWTH_S)
    began = time.monotonic()
    wait_until(lambda: running("AcousticModel") == running("Vocoder") == 1, GROWTH_S)
    shrunk_s = time.monotonic() - began
    with capsys.disabled():
        print(f"\n  two replicas after {grown_s:.1f} s of load, one {shrunk_s:.1f} s after it, {len(replies)} replies")
    assert {status for status, _ in replies} == {200}
    assert len({audio for _, audio in replies}) == 1, "the same seed is the same audio on every replica"
    assert len(replies[0][1]) > 10_000


def test_a_book_alone_brings_a_second_replica(elastic: Cluster, capsys):
    jobs, began = elastic.url(f"{ROUTE}/v1/audio/jobs"), time.monotonic()
    job = requests.post(jobs, json={"input": BOOK, "response_format": "wav", "seed": 3}, timeout=60).json()
    wait_until(lambda: running("AcousticModel") == 2, GROWTH_S)
    grown_s = time.monotonic() - began
    wait_until(lambda: requests.get(f"{jobs}/{job['id']}", timeout=60).json()["status"] == "succeeded", GROWTH_S)
    with capsys.disabled():
        print(f"\n  two replicas after {grown_s:.1f} s of a book, which took {time.monotonic() - began:.1f} s")
    wait_until(lambda: running("AcousticModel") == 1, GROWTH_S)


def test_what_the_policy_sees_is_exported(elastic: Cluster):
    def names() -> set[tuple[str, str]]:
        samples = scrape(elastic)
        metrics = ("ray_chattts_utilisation", "ray_chattts_backlog_seconds")
        return {(name, tags["deployment"]) for name in metrics for tags, _ in samples.get(name, [])}

    wait_until(lambda: len(names()) == 6, 40.0)
    assert {deployment for _, deployment in names()} == {"TextNormalizer", "AcousticModel", "Vocoder"}
