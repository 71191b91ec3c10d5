"""From zero: stages without replicas are woken by the requests that are refused, by those that wait, and by jobs."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from ray import serve

from tests.support.cluster import Cluster, deploy, document_of
from tests.support.service import FLAT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nightly

ROUTE = "/sleeper"
STAGES = ("TextNormalizer", "AcousticModel", "Vocoder")
CHANGE_S = 240.0  # a replica is a Python process: on a busy machine it takes its time
BODY = {"input": "Hello there.", "response_format": "pcm", "seed": 3, "cache": "no-store", **FLAT}
IMPATIENT = {"deadline_ms": 500}
PATIENT = {"deadline_ms": 600_000}


@pytest.fixture(scope="module")
def sleeper(started: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    first = document_of("dev.yaml", app="chattts", route="/")
    first["http_options"]["port"] = started.port
    folder = tmp_path_factory.mktemp("sleeper")  # of its own: the other application would take its jobs
    own = {"voices": {"store": str(folder / "store.sqlite")}, "jobs": {"folder": str(folder)}}
    second = document_of("dev.yaml", app="sleeper", route=ROUTE, limits={"chunk_timeout_s": 120.0}, **own)
    for deployment in second["applications"][0]["deployments"]:
        if deployment["name"] in STAGES:
            del deployment["num_replicas"]
            deployment["autoscaling_config"] = {
                "min_replicas": 0,
                "initial_replicas": 1,
                "max_replicas": 1,
                "policy": {"policy_function": "serve.resilience.autoscaling:StepBacklogPolicy"},
                "metrics_interval_s": 0.5,
                "look_back_period_s": 3,
                "upscale_delay_s": 0,
                "downscale_delay_s": 10,
            }
    deploy(first, second)
    yield started
    deploy(first)


@pytest.fixture
def asleep(sleeper: Cluster) -> Cluster:
    """The service without a replica of any stage, although somebody looks at it all the time."""

    state = dict.fromkeys(STAGES, "asleep")

    def is_asleep() -> bool:
        looked = requests.get(sleeper.url(f"{ROUTE}/ready"), timeout=30)
        return looked.status_code == 200 and looked.json().get("stages") == sleeper.health(ROUTE)["stages"] == state

    wait_until(is_asleep, CHANGE_S)
    assert [running(stage) for stage in STAGES] == [0, 0, 0]
    return sleeper


def running(deployment: str) -> int:
    """Replicas that take requests."""
    states = serve.status().applications["sleeper"].deployments[deployment].replica_states
    return sum(count for state, count in states.items() if state == "RUNNING")


def speak(cluster: Cluster, **fields: Any) -> requests.Response:
    return requests.post(cluster.url(f"{ROUTE}/v1/audio/speech"), json=BODY | fields, timeout=CHANGE_S)


def is_awake(cluster: Cluster) -> bool:
    return set(cluster.health(ROUTE)["stages"].values()) == {"awake"}


def test_a_refusal_during_waking_has_retry_after(asleep: Cluster, capsys):
    began = time.monotonic()
    refused = speak(asleep, **IMPATIENT)
    refused_s = time.monotonic() - began
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "waking"), refused.text
    assert int(refused.headers["Retry-After"]) >= 1
    ready = requests.get(asleep.url(f"{ROUTE}/ready"), timeout=30).json()
    assert ready == {"status": "ready", "stages": dict.fromkeys(STAGES, "waking")}
    while (reply := speak(asleep, **IMPATIENT)).status_code == 503:
        assert reply.json()["error"]["code"] == "waking", reply.text
        assert time.monotonic() - began < CHANGE_S
        time.sleep(0.5)
    woken_s = time.monotonic() - began
    assert speak(asleep, **PATIENT).status_code == 200
    assert {breaker["state"] for breaker in asleep.health(ROUTE)["breakers"].values()} == {"closed"}
    with capsys.disabled():
        print(f"\n  refused after {refused_s:.3f} s, awake after {woken_s:.1f} s")


def test_patient_requests_wait_for_waking_and_have_the_same_bytes(asleep: Cluster):
    replies: list[requests.Response] = []
    clients = [threading.Thread(target=lambda: replies.append(speak(asleep, **PATIENT))) for _ in range(3)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert [reply.status_code for reply in replies] == [200, 200, 200], [reply.text[:200] for reply in replies]
    assert {reply.content for reply in replies} == {speak(asleep, **PATIENT).content}


def test_a_text_is_read_once_its_stage_is_awake_and_the_others_sleep_on(asleep: Cluster):
    url = asleep.url(f"{ROUTE}/v1/text/normalize")
    refused = requests.post(url, json={"input": "It costs $3."}, timeout=30)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "waking"), refused.text
    wait_until(lambda: requests.post(url, json={"input": "It costs $3."}, timeout=30).status_code == 200, CHANGE_S)
    stages = asleep.health(ROUTE)["stages"]
    assert stages == {"TextNormalizer": "awake", "AcousticModel": "asleep", "Vocoder": "asleep"}


def test_a_job_wakes_the_service_and_is_spoken(asleep: Cluster):
    jobs = asleep.url(f"{ROUTE}/v1/audio/jobs")
    reply = requests.post(jobs, json={"input": "A job waits, and then it is spoken.", "seed": 3}, timeout=30)
    assert reply.status_code in (200, 201, 202), reply.text
    job = f"{jobs}/{reply.json()['id']}"
    wait_until(lambda: requests.get(job, timeout=30).json()["status"] in ("succeeded", "failed"), CHANGE_S)
    assert requests.get(job, timeout=30).json()["status"] == "succeeded"
    assert is_awake(asleep)
