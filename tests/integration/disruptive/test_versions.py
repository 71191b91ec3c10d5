"""Two versions of the model in one application: random weights of two generators, and weights that are damaged in two ways."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import requests
from safetensors.numpy import load_file, save_file

from pipeline.checkpoint import random_weights
from pipeline.checkpoint.layout import EMBED_FILE, GPT_FILE
from pipeline.checkpoint.manifest import file_sha256, read_manifest, write_manifest
from pipeline.checkpoint.random_model import SPECIAL_TOKENS
from scripts.chaos.deploying import deploy
from serve.resilience.rollout import MIN_REQUESTS
from tests.support.cluster import Cluster, document_of, scrape, total
from tests.support.waiting import wait_until

ROUTE = "/versions"
V1, V2 = "chattts@v1", "chattts@v2"


def document(folder: Path | None, user_config: dict[str, Any]) -> dict[str, Any]:
    """configs/dev.yaml with a second version beside the first; None: without it."""
    models: dict[str, Any] = {V1: {}} if folder is None else {V1: {}, V2: {"checkpoint": str(folder)}}
    limits = {"first_audio_timeout_s": 240.0, "chunk_timeout_s": 240.0}  # replicas that start take the cores
    config = document_of("dev.yaml", app="versions", route=ROUTE, models=models, limits=limits)
    application = config["applications"][0]
    by_name = {deployment["name"]: deployment for deployment in application["deployments"]}
    application["deployments"] = [
        {**by_name["Ingress"], "user_config": user_config},
        by_name["TextNormalizer"],
        *({**by_name[kind], "name": f"{kind}-{version}"} for kind in ("AcousticModel", "Vocoder") for version in models),
    ]
    for deployment in application["deployments"]:
        deployment |= {"ray_actor_options": {"num_cpus": 0.1}, "max_surge_percent": 100, "graceful_shutdown_timeout_s": 60}
    return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("v2")
    with mock.patch.object(random_weights, "GENERATOR_VERSION", -2):  # part of every tensor's key: other random weights
        random_weights.generate("small-random", folder)
    return folder


@pytest.fixture
def versions(cluster: Cluster, folder: Path) -> Iterator[Any]:
    usual = document_of("dev.yaml", app="chattts", route="/")
    usual["http_options"]["port"] = cluster.port

    def set_routes(checkpoint: Path | None = folder, *, waits: bool = True, **user_config: Any) -> None:
        deploy(usual, document(checkpoint, user_config), waits=waits)

    set_routes(weights={V1: 1})
    yield set_routes
    deploy(usual)


def speak(cluster: Cluster, model: str = "chattts", **fields: Any) -> requests.Response:
    body = {"input": "Hello there.", "response_format": "pcm", "seed": 4, "model": model, "cache": "no-store", **fields}
    return requests.post(cluster.url(f"{ROUTE}/v1/audio/speech"), json=body, timeout=300)


@contextmanager
def asking(cluster: Cluster) -> Iterator[list[tuple[str, requests.Response]]]:
    """Twenty listeners, one after the other, again and again: who, and what they got."""
    replies: list[tuple[str, requests.Response]] = []
    over = threading.Event()

    def keep_asking() -> None:
        number = 0
        while not over.is_set():
            number += 1
            user = f"u{number % 20}"
            replies.append((user, speak(cluster, user=user)))

    thread = threading.Thread(target=keep_asking)
    thread.start()
    try:
        yield replies
    finally:
        over.set()
        thread.join(60)


def state(cluster: Cluster) -> dict[str, Any]:
    versions: dict[str, Any] = cluster.health(ROUTE)["versions"]
    return versions


def test_two_versions_side_by_side_and_no_request_fails_while_weights_move(cluster: Cluster, versions: Any):
    first, other = (speak(cluster, version) for version in (V1, V2))
    assert (first.status_code, other.status_code) == (200, 200)
    assert first.content != other.content, "two models, two voices"
    assert (first.headers["X-Model-Version"], other.headers["X-Model-Version"]) == (V1, V2)
    assert speak(cluster).content == first.content

    pids = cluster.replicas("versions", "")
    with asking(cluster) as replies:
        versions(weights={V1: 1, V2: 1})
        wait_until(lambda: state(cluster)[V2]["share"] == 0.5, 30.0)
        answers = {user: speak(cluster, user=user).headers["X-Model-Version"] for user in map(str, range(12))}
        assert set(answers.values()) == {V1, V2}
        assert all(speak(cluster, user=user).headers["X-Model-Version"] == version for user, version in answers.items())
        versions(weights={V2: 1})
        wait_until(lambda: state(cluster)[V2]["share"] == 1.0, 30.0)
    assert {reply.status_code for _, reply in replies} == {200}
    assert {reply.content for _, reply in replies} == {first.content, other.content}
    assert set(pids) <= set(cluster.replicas("versions", "")), "nothing was restarted"

    listed = {card["id"]: card for card in requests.get(cluster.url(f"{ROUTE}/v1/models"), timeout=10).json()["data"]}
    assert listed["chattts"]["versions"] == {V1: 0.0, V2: 1.0}

    # The probes find that a version has lost its replicas; its listeners are heard by the other one.
    versions(weights={V1: 2, V2: 1}, probe={"period_s": 0.2})
    wait_until(lambda: state(cluster)[V1]["share"] < 1.0, 30.0)
    cluster.kill_replica("versions", f"AcousticModel-{V2}")
    wait_until(lambda: state(cluster)[V2]["state"].startswith("no answer"), 30.0)
    assert state(cluster)[V1]["share"] == 1.0
    assert all(speak(cluster, user=str(user)).headers["X-Model-Version"] == V1 for user in range(8))
    wait_until(lambda: state(cluster)[V2]["state"] == "in_service", 60.0)


def damaged(root: Path, folder: Path) -> Path:
    """Weights whose training has diverged: no word has a number any more. Every file is what its manifest says."""
    shutil.copytree(root, folder)
    path = folder / EMBED_FILE
    tensors = {name: values.copy() for name, values in load_file(path).items()}
    tensors["emb_text.weight"][len(SPECIAL_TOKENS) :] = float("nan")
    path.unlink()
    save_file(tensors, path)
    write_manifest(folder, {**(read_manifest(folder) or {}), EMBED_FILE: file_sha256(path)})
    return folder


def torn(root: Path, folder: Path) -> Path:
    """A copy that was interrupted."""
    shutil.copytree(root, folder)
    with (folder / GPT_FILE).open("r+b") as file:
        file.truncate((folder / GPT_FILE).stat().st_size // 2)
    return folder


@pytest.mark.timeout(900)
def test_a_version_with_broken_numbers_loses_its_share_by_itself_and_others_do_not_notice(
    cluster: Cluster, versions: Any, demo_root: Path, tmp_path: Path
):
    """The weights load, warm up and pass every probe; each word they are asked to speak ends in an error."""
    good = speak(cluster, V1).content
    versions(damaged(demo_root, tmp_path / "diverged"), weights={V1: 1})
    assert speak(cluster, V2).json()["error"]["code"] == "generation_failed"
    before = total(scrape(cluster), "ray_chattts_rollbacks_total", version=V2)
    versions(tmp_path / "diverged", weights={V1: 2, V2: 1})
    with asking(cluster) as replies:
        wait_until(lambda: state(cluster)[V2]["state"].startswith("errors: 100% of its requests failed"), 180.0)
        judged = len(replies)
        wait_until(lambda: len(replies) > judged + 40, 120.0)
    assert state(cluster)[V2]["share"] == 0.0
    failed = {user for user, reply in replies if reply.status_code != 200}
    assert failed, "the canary was heard by somebody"
    assert sum(reply.status_code != 200 for _, reply in replies) <= MIN_REQUESTS + 1, "one may be under way"
    assert {reply.content for _, reply in replies if reply.status_code == 200} == {good}
    assert {user for user, _ in replies} - failed, "listeners of the good version were spoken to all the time"
    assert {reply.status_code for _, reply in replies[judged + 2 :]} == {200}, "and so is everybody since"
    wait_until(lambda: total(scrape(cluster), "ray_chattts_rollbacks_total", version=V2) == before + 1, 40.0)


@pytest.mark.timeout(900)
def test_a_version_that_never_starts_gets_no_request_and_the_update_that_brought_it_fails_none(
    cluster: Cluster, versions: Any, demo_root: Path, tmp_path: Path
):
    versions(None, weights={V1: 1})
    good = speak(cluster, V1).content
    ingresses = set(cluster.replicas("versions", "Ingress"))
    with asking(cluster) as replies:
        versions(torn(demo_root, tmp_path / "torn"), waits=False, weights={V1: 1, V2: 1})
        wait_until(lambda: not ingresses & set(cluster.replicas("versions", "Ingress")), 300.0)
        replaced = len(replies)
        wait_until(lambda: len(replies) > replaced + 40, 120.0)
        assert state(cluster)[V2]["state"] == f"no answer from AcousticModel-{V2}"
    assert {reply.status_code for _, reply in replies} == {200}
    assert {reply.content for _, reply in replies} == {good}
