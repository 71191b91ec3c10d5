"""Acoustic replicas that hang, and GPUs that fail: others take over, and readiness says the truth."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import requests

from scripts.chaos.deploying import deploy
from tests.support.cluster import Cluster, document_of
from tests.support.failing_replicas import AT_LOAD, GONE, IN_A_STEP, hits, plan_faults
from tests.support.recovery import recovered
from tests.support.service import FLAT, LONG
from tests.support.signals import stopped
from tests.support.waiting import wait_until

BACK_S = 120.0  # a dozen seconds where the machine is idle
IN_A_HURRY = {"deadline_ms": 1500}


def why_not_ready(cluster: Cluster) -> str:
    """Empty: it is ready."""
    reply = requests.get(cluster.url("/ready"), timeout=30)
    return "" if reply.status_code == 200 else str(reply.json()["reason"])


def speaks(cluster: Cluster) -> bool:
    reply = cluster.speak(seed=1)
    assert reply.status_code in (200, 429, 503, 504), reply.text
    return reply.status_code == 200


@contextmanager
def asking(cluster: Cluster) -> Iterator[list[str]]:
    """Impatient listeners, again and again; the codes of the errors they got."""
    codes: list[str] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            reply = cluster.speak(**IN_A_HURRY)
            if reply.status_code != 200:
                codes.append(reply.json()["error"]["code"])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield codes
    finally:
        over.set()
        for thread in threads:
            thread.join(60)


@pytest.mark.parametrize(
    ("deployment", "stage"), [("TextNormalizer", "text"), ("AcousticModel", "acoustic"), ("Vocoder", "vocoder")]
)
def test_a_stage_that_hangs_is_named_refused_and_replaced(cluster: Cluster, deployment: str, stage: str, capsys):
    wait_until(lambda: speaks(cluster), BACK_S)
    opened = cluster.health()["breakers"][stage]["opened"]
    (pid,) = cluster.replicas("chattts", deployment)
    began = time.monotonic()
    with stopped(pid), asking(cluster) as codes:
        wait_until(lambda: deployment in why_not_ready(cluster), BACK_S)
        named_s = time.monotonic() - began
        wait_until(lambda: "circuit_open" in codes, BACK_S)
        refused_s = time.monotonic() - began
        wait_until(lambda: pid not in cluster.replicas("chattts", deployment), BACK_S)
        gone_s = time.monotonic() - began
    wait_until(lambda: speaks(cluster), BACK_S)
    with capsys.disabled():
        back_s = time.monotonic() - began
        print(
            f"\n  {deployment} stopped: named after {named_s:.1f} s, callers refused after {refused_s:.1f} s, "
            f"ended after {gone_s:.1f} s, speaking again after {back_s:.1f} s"
        )
    wait_until(lambda: why_not_ready(cluster) == "", BACK_S)
    recovered("F-05", time.monotonic() - began)
    assert cluster.health()["breakers"][stage]["opened"] > opened
    assert set(codes) <= {"circuit_open", "timeout", "engine_dead", "overloaded", "deadline_unmeetable"}


def test_an_ingress_that_hangs_is_replaced(cluster: Cluster, capsys):
    wait_until(lambda: speaks(cluster), BACK_S)
    (pid,) = cluster.replicas("chattts", "Ingress")
    began = time.monotonic()
    with stopped(pid):
        wait_until(lambda: pid not in cluster.replicas("chattts", "Ingress"), BACK_S)
    gone_s = time.monotonic() - began

    def back() -> bool:
        try:
            return speaks(cluster)
        except requests.RequestException:
            return False

    wait_until(back, BACK_S)
    with capsys.disabled():
        print(f"\n  Ingress stopped: ended after {gone_s:.1f} s, speaking again after {time.monotonic() - began:.1f} s")


# The process of its own in which a text replica reads.


def restarts(cluster: Cluster) -> int:
    count: int = sum(replica["restarts"] for replica in cluster.health()["text"])
    return count


def test_a_text_worker_that_is_killed_is_replaced_and_no_request_fails_of_it(cluster: Cluster):
    wait_until(lambda: speaks(cluster), BACK_S)
    before = restarts(cluster)
    for deaths in range(1, 4):
        (pid,) = cluster.text_workers("chattts")
        os.kill(pid, signal.SIGKILL)
        reply = cluster.speak(seed=1)
        assert reply.status_code in (200, 504), reply.text  # late on a busy machine, nothing else
        wait_until(lambda pid=pid: cluster.text_workers("chattts") not in ([], [pid]), BACK_S)
        assert restarts(cluster) >= before + deaths
    assert cluster.health()["quarantine"]["quarantined"] == 0
    assert speaks(cluster)
    wait_until(lambda: why_not_ready(cluster) == "", BACK_S)


def test_a_text_worker_that_hangs_is_named_and_replaced_though_nobody_asks(cluster: Cluster, capsys):
    wait_until(lambda: speaks(cluster), BACK_S)
    (replica,) = cluster.replicas("chattts", "TextNormalizer")
    (pid,) = cluster.text_workers("chattts")
    began = time.monotonic()
    with stopped(pid):
        wait_until(lambda: "TextNormalizer" in why_not_ready(cluster), BACK_S)
        named_s = time.monotonic() - began
        wait_until(lambda: cluster.text_workers("chattts") not in ([], [pid]), BACK_S)
    wait_until(lambda: why_not_ready(cluster) == "", BACK_S)
    with capsys.disabled():
        print(f"\n  text worker stopped: named after {named_s:.1f} s, well again after {time.monotonic() - began:.1f} s")
    assert speaks(cluster)
    assert cluster.replicas("chattts", "TextNormalizer") == [replica], "the replica has helped itself"


def test_one_of_two_replicas_that_hangs_hides_no_other_and_the_only_version_is_probed_too(cluster: Cluster):
    usual, two = (document_of("dev.yaml", app="chattts", route="/") for _ in range(2))
    for document in (usual, two):
        document["http_options"]["port"] = cluster.port
    by_name = {deployment["name"]: deployment for deployment in two["applications"][0]["deployments"]}
    by_name["Vocoder"] |= {"num_replicas": 2, "health_check_timeout_s": 600}  # a stopped one is not to be replaced
    by_name["Ingress"]["user_config"] = {"probe": {"period_s": 0.2}}

    def state() -> str:
        (version,) = cluster.health()["versions"].values()
        return str(version["state"])

    deploy(two)
    try:
        wait_until(lambda: len(cluster.health()["vocoder"]) == 2, BACK_S)
        first, other = cluster.replicas("chattts", "Vocoder")
        with stopped(first):
            wait_until(lambda: len(cluster.health()["vocoder"]) == 1, BACK_S)
            assert why_not_ready(cluster) == ""
            assert state() == "in_service"
            with stopped(other):
                wait_until(lambda: state() == "no answer from Vocoder", BACK_S)
                assert "Vocoder" in why_not_ready(cluster)
        wait_until(lambda: len(cluster.health()["vocoder"]) == 2, BACK_S)
        wait_until(lambda: state() == "in_service", BACK_S)
        assert cluster.health()["gpu_mem_percent"] is None, "no GPU here"
    finally:
        deploy(usual)


# GPUs that fail as CUDA fails: a replica ends, another goes on with its streams, none is restarted into the same error.

ROUTE = "/gpus"
LOADED_S = 180.0
SPOKEN = {"input": LONG[:1500], "response_format": "pcm", "seed": 3, "deadline_ms": 200_000, "cache": "no-store", **FLAT}


def document(**engine: Any) -> dict[str, Any]:
    """Two acoustic replicas, a GPU each."""
    small = {"engine": {"slots": 4, "threads": 1, **engine}}
    config = document_of("dev.yaml", app="gpus", route=ROUTE, pipeline=small, limits={"first_audio_timeout_s": 120.0})
    application = config["applications"][0]
    application["import_path"] = "tests.support.failing_replicas:failing_gpus"
    for deployment in application["deployments"]:
        deployment["ray_actor_options"]["num_cpus"] = 0.1
        if deployment["name"] == "AcousticModel":
            deployment |= {"num_replicas": 2, "max_surge_percent": 50}
            deployment["ray_actor_options"]["num_gpus"] = 1
    return config


@pytest.fixture
def gpus(cluster: Cluster) -> Iterator[Any]:
    usual = document_of("dev.yaml", app="chattts", route="/")
    usual["http_options"]["port"] = cluster.port
    plan_faults({})
    deploy(usual, document())
    yield lambda **engine: deploy(usual, document(**engine), waits=False)
    plan_faults({})
    deploy(usual)


def speak(cluster: Cluster) -> requests.Response:
    return requests.post(cluster.url(f"{ROUTE}/v1/audio/speech"), json=SPOKEN, timeout=240)


def replicas(cluster: Cluster) -> list[int]:
    return cluster.replicas("gpus", "AcousticModel")


@pytest.mark.parametrize(("fault", "failure"), [(IN_A_STEP, "F-03"), (GONE, "F-32")])
def test_a_gpu_that_fails_in_a_step_ends_its_replica_and_no_listener_hears_it(
    cluster: Cluster, gpus: Any, fault: str, failure: str
):
    twin = speak(cluster)
    assert twin.status_code == 200
    before, earlier = set(replicas(cluster)), len(hits())
    (first, other) = (stats["gpus"][0] for stats in cluster.health(ROUTE)["acoustic"])
    assert first != other
    plan_faults({str(first): fault})
    began = time.monotonic()
    while len(hits()) == earlier:  # the router picks a replica; sooner or later it is that one
        assert time.monotonic() - began < LOADED_S, "the fault never happened"
        reply = speak(cluster)
        assert (reply.status_code, reply.content == twin.content) == (200, True)
    failed = time.monotonic()
    assert hits()[earlier] == fault
    wait_until(lambda: before - set(replicas(cluster)), 60.0)
    if fault == GONE:  # the next replica finds the third GPU; where it finds the dead one it does not become ready
        for _ in range(3):
            assert speak(cluster).content == twin.content
        plan_faults({})
    wait_until(lambda: len(replicas(cluster)) == 2, LOADED_S)
    recovered(failure, time.monotonic() - failed)
    assert speak(cluster).content == twin.content
    assert cluster.health(ROUTE)["quarantine"]["quarantined"] == 0, "it was the GPU, not the text"


def test_replicas_that_find_no_gpu_memory_leave_the_old_ones_serving(cluster: Cluster, gpus: Any):
    """An update whose replicas do not fit, as when another process takes the GPU."""
    twin = speak(cluster)
    before, earlier = set(replicas(cluster)), len(hits())
    plan_faults({"*": AT_LOAD})
    gpus(max_waiting=15)
    wait_until(lambda: len(hits()) > earlier, LOADED_S)
    began, tried = time.monotonic(), len(hits())
    for _ in range(5):
        assert speak(cluster).content == twin.content
    assert before & set(replicas(cluster)), "one of the old replicas at least goes on"
    assert len(hits()) - tried <= 3 + 2 * (time.monotonic() - began), "it is not tried again and again without a pause"
    plan_faults({})
    freed = time.monotonic()
    gpus(max_waiting=14)
    wait_until(lambda: len(replicas(cluster)) == 2 and not before & set(replicas(cluster)), LOADED_S)
    recovered("F-04", time.monotonic() - freed)
    assert speak(cluster).content == twin.content
