"""GPUs that fail as CUDA fails: a replica ends, and another one goes on with its streams."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.support.cluster import FLAT, LONG, Cluster, deploy, document_of
from tests.support.failing_gpu import GONE, IN_A_STEP, hits, plan_faults
from tests.support.recovery import recovered
from tests.support.waiting import wait_until

ROUTE = "/gpus"
BACK_S = 180.0
BODY = {"input": LONG[:1500], "response_format": "pcm", "seed": 3, "deadline_ms": 200_000, "cache": "no-store", **FLAT}


def document() -> dict[str, Any]:
    """Two acoustic replicas, a GPU each."""
    small = {"engine": {"slots": 4, "threads": 1}}
    made = document_of("dev.yaml", app="gpus", route=ROUTE, pipeline=small, limits={"first_audio_timeout_s": 120.0})
    application = made["applications"][0]
    application["import_path"] = "tests.support.failing_gpu:build_app"
    for deployment in application["deployments"]:
        deployment["ray_actor_options"]["num_cpus"] = 0.1
        if deployment["name"] == "AcousticModel":
            deployment["num_replicas"] = 2
            deployment["ray_actor_options"]["num_gpus"] = 1
    return made


@pytest.fixture
def gpus(cluster: Cluster) -> Iterator[None]:
    usual = document_of("dev.yaml", app="chattts", route="/")
    usual["http_options"]["port"] = cluster.port
    plan_faults({})
    deploy(usual, document())
    yield
    plan_faults({})
    deploy(usual)


def speak(cluster: Cluster) -> requests.Response:
    return requests.post(cluster.url(f"{ROUTE}/v1/audio/speech"), json=BODY, timeout=240)


def replicas(cluster: Cluster) -> list[int]:
    return cluster.replicas("gpus", "AcousticModel")


@pytest.mark.parametrize(("fault", "failure"), [(IN_A_STEP, "F-03"), (GONE, "F-32")])
def test_a_gpu_that_fails_in_a_step_ends_its_replica_and_no_listener_hears_it(
    cluster: Cluster, gpus: None, fault: str, failure: str
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
