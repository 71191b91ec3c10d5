"""Two deployments, text in the ingress and the vocoder beside the engine, say what four deployments say."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from scripts.chaos.deploying import deploy
from tests.support.cluster import Cluster, document_of
from tests.support.waiting import wait_until

# configs/two-gpu.yaml on a cluster with three GPUs that exist on paper only.

PLACED = "/two-gpu"


def speak_there(cluster: Cluster) -> bytes:
    body = {"input": "Hello there. And here.", "response_format": "pcm", "seed": 4, "voice": "nova", "cache": "no-store"}
    reply = requests.post(cluster.url(f"{PLACED}/v1/audio/speech"), json=body, timeout=60)
    assert reply.status_code == 200
    return reply.content


@pytest.mark.nightly
def test_acoustic_replicas_and_the_vocoder_get_gpus_of_their_own(cluster: Cluster):
    first = document_of("dev.yaml", app="chattts", route="/")
    small = {"checkpoint": "small-random", "engine": {"device": "cpu", "dtype": "float32", "slots": 4, "threads": 1},
             "vocoder": {"device": "cpu", "rows": 2, "threads": 1}}  # fmt: skip
    second = document_of("two-gpu.yaml", app="two-gpu", route=PLACED, pipeline=small, keys={"open": True})
    for deployment in second["applications"][0]["deployments"]:
        deployment["ray_actor_options"]["num_cpus"] = 0.1
        if deployment["name"] == "AcousticModel":
            deployment["autoscaling_config"]["min_replicas"] = 2
        if deployment["name"] == "Ingress":
            deployment["num_replicas"] = 1
    first["http_options"]["port"] = cluster.port
    deploy(first, second)
    try:
        assert len(speak_there(cluster)) > 1000
        health = cluster.health(PLACED)
        gpus = [stats["gpus"] for stats in (*health["acoustic"], *health["vocoder"])]
        assert len(health["acoustic"]) == 2
        assert len(health["vocoder"]) == 1
        assert all(len(own) == 1 for own in gpus)
        assert len({own[0] for own in gpus}) == 3
        before = {stats["replica"]: stats["steps"] for stats in health["acoustic"]}
        with ThreadPoolExecutor(8) as pool:
            streams = list(pool.map(lambda _: speak_there(cluster), range(16)))
        assert set(streams) == {speak_there(cluster)}, "whichever replica decodes it, a seed is the same audio"
        after = {stats["replica"]: stats["steps"] for stats in cluster.health(PLACED)["acoustic"]}
        assert all(after[replica] > steps for replica, steps in before.items()), "both replicas spoke"
    finally:
        deploy(first)


ROUTE = "/beside"
LINES = [f"Speaker {number} has this to say. It is not much, and it is soon over." for number in range(6)]


@pytest.fixture(scope="module")
def beside(started: Cluster) -> Iterator[Cluster]:
    first = document_of("dev.yaml", app="chattts", route="/")
    first["http_options"]["port"] = started.port
    placements = {"pipeline": {"vocoder": {"placement": "with_acoustic"}}, "text": {"placement": "ingress"}}
    second = document_of("dev.yaml", app="beside", route=ROUTE, **placements)
    application = second["applications"][0]
    kept = [deployment for deployment in application["deployments"] if deployment["name"] in ("Ingress", "AcousticModel")]
    application["deployments"] = kept
    deploy(first, second)
    yield started
    deploy(first)


def speak(cluster: Cluster, route: str, **fields: object) -> requests.Response:
    body = {"input": LINES[0], "response_format": "pcm", "seed": 3, "cache": "no-store", **fields}
    reply = requests.post(cluster.url(f"{route}/v1/audio/speech"), json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return reply


@pytest.mark.parametrize("fields", [{}, {"stream": False}, {"speed": 1.3, "sample_rate": 16_000}, {"refine": True}])
def test_the_bytes_do_not_depend_on_where_steps_are_decoded(beside: Cluster, fields: dict):
    assert speak(beside, ROUTE, **fields).content == speak(beside, "", **fields).content


def test_a_crowd_hears_what_each_hears_alone(beside: Cluster):
    alone = [speak(beside, "", input=line).content for line in LINES]
    with ThreadPoolExecutor(len(LINES)) as pool:
        assert list(pool.map(lambda line: speak(beside, ROUTE, input=line).content, LINES)) == alone


def test_a_cached_reply_has_the_same_bytes_and_no_call_of_the_vocoder(beside: Cluster):
    first = speak(beside, ROUTE, cache="default", input="Say it once, and then again.")
    calls = beside.health(ROUTE)["vocoder"][0]["calls"]
    again = speak(beside, ROUTE, cache="default", input="Say it once, and then again.")
    assert (first.headers["X-Cache"], again.headers["X-Cache"]) == ("miss", "hit")
    assert again.content == first.content
    assert beside.health(ROUTE)["vocoder"][0]["calls"] == calls > 0


def test_its_state_is_that_of_one_replica(beside: Cluster):
    health = beside.health(ROUTE)
    (acoustic,), (vocoder,) = health["acoustic"], health["vocoder"]
    assert vocoder["replica"] == acoustic["replica"]
    assert vocoder["trouble"] == ""
    assert set(health["breakers"]) == {"text", "acoustic"}
    assert requests.get(beside.url(f"{ROUTE}/ready"), timeout=10).json() == {"status": "ready"}


def test_a_dead_reader_of_texts_is_replaced_in_the_ingress(beside: Cluster):
    (ingress,) = beside.replicas("beside", "Ingress")
    (worker,) = beside.text_workers("beside", "Ingress")
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: beside.text_workers("beside", "Ingress") not in ([], [worker]), 30.0)
    assert speak(beside, ROUTE).content == speak(beside, "").content
    assert beside.replicas("beside", "Ingress") == [ingress]
    assert [entry["replica"] for entry in beside.health(ROUTE)["text"]]


def test_the_next_replica_goes_on_with_the_samples_of_a_killed_one(beside: Cluster):
    text = {"input": " ".join(LINES * 4)}
    twin = speak(beside, ROUTE, **text).content
    body = {"response_format": "pcm", "seed": 3, "cache": "no-store", **text}
    reply = requests.post(beside.url(f"{ROUTE}/v1/audio/speech"), json=body, stream=True, timeout=120)
    pieces = reply.iter_content(4096)
    first = next(pieces)
    beside.kill_replica("beside", "AcousticModel")
    assert first + b"".join(pieces) == twin
    wait_until(lambda: requests.get(beside.url(f"{ROUTE}/ready"), timeout=10).status_code == 200, 60.0)
