"""Two versions of the model in one application: random weights of two recipes, one of which can be told to fail."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import requests

from pipeline import recipes
from tests.integration.cluster import Cluster, deploy, document_of, wait_until
from tests.integration.test_metrics import scrape, total

ROUTE = "/versions"
V1, V2 = "chattts@v1", "chattts@v2"


def document(folder: Path, user_config: dict[str, Any]) -> dict[str, Any]:
    """configs/dev.yaml with a second version beside the first."""
    made = document_of("dev.yaml", app="versions", route=ROUTE, models={V1: {}, V2: {"checkpoint": str(folder)}})
    application = made["applications"][0]
    by_name = {deployment["name"]: deployment for deployment in application["deployments"]}
    application["deployments"] = [
        {**by_name["Ingress"], "user_config": user_config},
        by_name["TextNormalizer"],
        *({**by_name[kind], "name": f"{kind}-{version}"} for kind in ("AcousticModel", "Vocoder") for version in (V1, V2)),
    ]
    for deployment in application["deployments"]:
        deployment["ray_actor_options"] = {"num_cpus": 0.1}
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("v2")
    with mock.patch.object(recipes, "RECIPE_VERSION", -2):  # part of every tensor's key: other random weights
        recipes.make("small-random", folder)
    return folder


@pytest.fixture
def versions(cluster: Cluster, folder: Path) -> Iterator[Any]:
    usual = document_of("dev.yaml", app="chattts", route="/")
    usual["http_options"]["port"] = cluster.port

    def set_routes(**user_config: Any) -> None:
        deploy(usual, document(folder, user_config))

    set_routes(weights={V1: 1})
    yield set_routes
    deploy(usual)


def speak(cluster: Cluster, model: str = "chattts", **fields: Any) -> requests.Response:
    body = {"input": "Hello there.", "response_format": "pcm", "seed": 4, "model": model, "cache": "no-store", **fields}
    return requests.post(cluster.url(f"{ROUTE}/v1/audio/speech"), json=body, timeout=60)


def state(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.health(ROUTE)["versions"]
    return found


def test_two_versions_side_by_side_and_no_request_fails_while_weights_move(cluster: Cluster, versions: Any):
    one, other = (speak(cluster, version) for version in (V1, V2))
    assert (one.status_code, other.status_code) == (200, 200)
    assert one.content != other.content, "two models, two voices"
    assert (one.headers["X-Model-Version"], other.headers["X-Model-Version"]) == (V1, V2)
    assert speak(cluster).content == one.content

    replies: list[requests.Response] = []
    over = threading.Event()

    def keep_asking() -> None:
        number = 0
        while not over.is_set():
            number += 1
            replies.append(speak(cluster, user=f"u{number % 20}"))

    asking = threading.Thread(target=keep_asking)
    pids = cluster.replicas("versions", "")
    asking.start()
    versions(weights={V1: 1, V2: 1}, shadow={"version": V2, "share": 1.0})
    wait_until(lambda: state(cluster)[V2]["share"] == 0.5, 30.0)
    heard = {user: speak(cluster, user=user).headers["X-Model-Version"] for user in map(str, range(12))}
    assert set(heard.values()) == {V1, V2}
    assert all(speak(cluster, user=user).headers["X-Model-Version"] == version for user, version in heard.items())
    wait_until(lambda: total(scrape(cluster), "ray_chattts_shadow_total", version=V2, result="compared") > 0, 40.0)
    versions(weights={V2: 1})
    wait_until(lambda: state(cluster)[V2]["share"] == 1.0, 30.0)
    over.set()
    asking.join(60)
    assert [reply.status_code for reply in replies] == [200] * len(replies)
    assert {reply.content for reply in replies} == {one.content, other.content}
    assert set(pids) <= set(cluster.replicas("versions", "")), "nothing was restarted"

    listed = {card["id"]: card for card in requests.get(cluster.url(f"{ROUTE}/v1/models"), timeout=10).json()["data"]}
    assert listed["chattts"]["versions"] == {V1: 0.0, V2: 1.0}

    # The probes find that a version has lost its replicas; its listeners are heard by the other one.
    versions(weights={V1: 2, V2: 1}, probe={"period_s": 0.2, "bad": 1, "good": 2})
    wait_until(lambda: state(cluster)[V1]["share"] < 1.0, 30.0)
    cluster.kill_replica("versions", f"AcousticModel-{V2}")
    wait_until(lambda: state(cluster)[V2]["state"].startswith("no answer"), 30.0)
    assert state(cluster)[V1]["share"] == 1.0
    assert all(speak(cluster, user=str(user)).headers["X-Model-Version"] == V1 for user in range(8))
    wait_until(lambda: state(cluster)[V2]["state"] == "in_service", 60.0)
