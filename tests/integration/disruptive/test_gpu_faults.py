"""GPUs that fail as CUDA fails: a replica ends, another goes on with its streams, none is restarted into the same error."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from scripts.chaos.deploying import deploy
from tests.support.cluster import FLAT, LONG, Cluster, document_of
from tests.support.failing_gpu import AT_LOAD, GONE, IN_A_STEP, hits, plan_faults
from tests.support.recovery import recovered
from tests.support.waiting import wait_until

ROUTE = "/gpus"
BACK_S = 180.0
BODY = {"input": LONG[:1500], "response_format": "pcm", "seed": 3, "deadline_ms": 200_000, "cache": "no-store", **FLAT}


def document(**engine: Any) -> dict[str, Any]:
    """Two acoustic replicas, a GPU each."""
    small = {"engine": {"slots": 4, "threads": 1, **engine}}
    made = document_of("dev.yaml", app="gpus", route=ROUTE, pipeline=small, limits={"first_audio_timeout_s": 120.0})
    application = made["applications"][0]
    application["import_path"] = "tests.support.failing_gpu:build_app"
    for deployment in application["deployments"]:
        deployment["ray_actor_options"]["num_cpus"] = 0.1
        if deployment["name"] == "AcousticModel":
            deployment |= {"num_replicas": 2, "max_surge_percent": 50}
            deployment["ray_actor_options"]["num_gpus"] = 1
    return made


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
    return requests.post(cluster.url(f"{ROUTE}/v1/audio/speech"), json=BODY, timeout=240)


def replicas(cluster: Cluster) -> list[int]:
    return cluster.replicas("gpus", "AcousticModel")


@pytest.mark.parametrize(("fault", "failure"), [(IN_A_STEP, "F-03"), (GONE, "F-32")])
def test_a_gpu_that_fails_in_a_step_ends_its_replica_and_no_listener_hears_it(
    cluster: Cluster, gpus: Any, fault: str, failure: str
):
    twin = speak(cluster)
    assert twin.status_code == 200
    before, earlier = set(replicas(cluster)), len(hits())
    (one, other) = (stats["gpus"][0] for stats in cluster.health(ROUTE)["acoustic"])
    assert one != other
    plan_faults({str(one): fault})
    began = time.monotonic()
    while len(hits()) == earlier:  # the router picks a replica; sooner or later it is that one
        assert time.monotonic() - began < BACK_S, "the fault never happened"
        heard = speak(cluster)
        assert (heard.status_code, heard.content == twin.content) == (200, True)
    failed = time.monotonic()
    assert hits()[earlier] == fault
    wait_until(lambda: before - set(replicas(cluster)), 60.0)
    if fault == GONE:  # the next replica finds the third GPU; where it finds the dead one it does not become ready
        for _ in range(3):
            assert speak(cluster).content == twin.content
        plan_faults({})
    wait_until(lambda: len(replicas(cluster)) == 2, BACK_S)
    recovered(failure, time.monotonic() - failed)
    assert speak(cluster).content == twin.content
    assert cluster.health(ROUTE)["quarantine"]["quarantined"] == 0, "it was the GPU, not the text"


def test_replicas_that_find_no_gpu_memory_leave_the_old_ones_serving(cluster: Cluster, gpus: Any):
    """An update whose replicas do not fit, as when another process takes the GPU."""
    twin = speak(cluster)
    before, earlier = set(replicas(cluster)), len(hits())
    plan_faults({"*": AT_LOAD})
    gpus(max_waiting=15)
    wait_until(lambda: len(hits()) > earlier, BACK_S)
    began, tried = time.monotonic(), len(hits())
    for _ in range(5):
        assert speak(cluster).content == twin.content
    assert before & set(replicas(cluster)), "one of the old replicas at least goes on"
    assert len(hits()) - tried <= 3 + 2 * (time.monotonic() - began), "it is not tried again and again without a pause"
    plan_faults({})
    freed = time.monotonic()
    gpus(max_waiting=14)
    wait_until(lambda: len(replicas(cluster)) == 2 and not before & set(replicas(cluster)), BACK_S)
    recovered("F-04", time.monotonic() - freed)
    assert speak(cluster).content == twin.content
