"""configs/two-gpu.yaml on a cluster with three GPUs that exist on paper only."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from scripts.chaos.deploying import deploy
from tests.support.cluster import Cluster, document_of

pytestmark = pytest.mark.nightly

ROUTE = "/two-gpu"


def speak(cluster: Cluster) -> bytes:
    body = {"input": "Hello there. And here.", "response_format": "pcm", "seed": 4, "voice": "nova", "cache": "no-store"}
    reply = requests.post(cluster.url(f"{ROUTE}/v1/audio/speech"), json=body, timeout=60)
    assert reply.status_code == 200
    return reply.content


def test_acoustic_replicas_and_the_vocoder_get_gpus_of_their_own(cluster: Cluster):
    first = document_of("dev.yaml", app="chattts", route="/")
    small = {"checkpoint": "small-random", "engine": {"device": "cpu", "dtype": "float32", "slots": 4, "threads": 1},
             "vocoder": {"device": "cpu", "rows": 2, "threads": 1}}  # fmt: skip
    second = document_of("two-gpu.yaml", app="two-gpu", route=ROUTE, pipeline=small, keys={"open": True})  # as it is: keys only
    for deployment in second["applications"][0]["deployments"]:
        deployment["ray_actor_options"]["num_cpus"] = 0.1
        if deployment["name"] == "AcousticModel":
            deployment["autoscaling_config"]["min_replicas"] = 2
        if deployment["name"] == "Ingress":
            deployment["num_replicas"] = 1
    first["http_options"]["port"] = cluster.port
    deploy(first, second)
    try:
        assert len(speak(cluster)) > 1000
        health = cluster.health(ROUTE)
        gpus = [stats["gpus"] for stats in (*health["acoustic"], *health["vocoder"])]
        assert len(health["acoustic"]) == 2
        assert len(health["vocoder"]) == 1
        assert all(len(own) == 1 for own in gpus)
        assert len({own[0] for own in gpus}) == 3
        before = {stats["replica"]: stats["steps"] for stats in health["acoustic"]}
        with ThreadPoolExecutor(8) as pool:
            heard = list(pool.map(lambda _: speak(cluster), range(16)))
        assert set(heard) == {speak(cluster)}, "whichever replica decodes it, a seed is the same audio"
        after = {stats["replica"]: stats["steps"] for stats in cluster.health(ROUTE)["acoustic"]}
        assert all(after[replica] > steps for replica, steps in before.items()), "both replicas spoke"
    finally:
        deploy(first)
