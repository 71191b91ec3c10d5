"""A job over HTTP while the processes that speak it are killed: it goes on, and its bytes are those of an undisturbed one."""

import contextlib
import time
from typing import Any

import requests

from tests.support.cluster import Cluster
from tests.support.waiting import wait_until

PARTS = 80
BOOK = "\n\n".join(f"Sentence number {number} of a book that somebody waits for." for number in range(PARTS))
KILLED = ("AcousticModel", "Ingress", "Vocoder", "AcousticModel", "Ingress")
TIMEOUT_S = 240.0  # a lease has to run out after each death of the ingress


def job(cluster: Cluster) -> str:
    """The address of a new job."""
    jobs = cluster.url("/v1/audio/jobs")
    made = requests.post(jobs, json={"input": BOOK, "seed": 3, "response_format": "flac"}, timeout=30)
    assert made.status_code == 202, made.text
    return f"{jobs}/{made.json()['id']}"


def progress(one: str) -> dict[str, Any]:
    """The job once the service answers; it may be away for a moment."""
    while True:
        with contextlib.suppress(requests.RequestException, ValueError):
            reply = requests.get(one, timeout=10)
            if reply.status_code == 200:
                found: dict[str, Any] = reply.json()
                return found
        time.sleep(0.1)


def done(one: str) -> int:
    found = progress(one)
    assert found["status"] in ("queued", "running", "succeeded"), found
    return int(found["progress"]["done"])


def audio(one: str) -> bytes:
    wait_until(lambda: progress(one)["status"] == "succeeded", TIMEOUT_S)
    return requests.get(f"{one}/audio", timeout=60).content


def test_a_job_survives_the_death_of_every_process_with_the_same_bytes(cluster: Cluster, capsys):
    disturbed = job(cluster)
    died_at = []
    for number, deployment in enumerate(KILLED):
        wait_until(lambda number=number: done(disturbed) >= (number + 1) * PARTS // (len(KILLED) + 2), TIMEOUT_S)
        wait_until(lambda deployment=deployment: len(cluster.replicas("chattts", deployment)) == 1, 60.0)
        died_at.append(done(disturbed))
        cluster.kill_replica("chattts", deployment)
    heard = audio(disturbed)
    assert died_at[-1] < PARTS, "every death came in the middle"
    with capsys.disabled():
        print(f"\n  killed after {died_at} of {PARTS} parts")
    requests.delete(cluster.url("/v1/audio/speech/cache"), timeout=30).raise_for_status()
    undisturbed = job(cluster)
    assert audio(undisturbed) == heard
    for one in (disturbed, undisturbed):
        assert requests.delete(one, timeout=30).status_code == 204
