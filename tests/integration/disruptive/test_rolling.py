"""Rolling updates under constant load: a changed setting, other weights, other code. Nobody notices."""

import asyncio
import base64
import copy
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from scripts.chaos.deploying import deploy
from serve.config.app_config import PROJECT
from tests.support.cluster import Cluster, document_of
from tests.support.home_assistant import home_assistant_reads
from tests.support.ports import free_port
from tests.support.service import FLAT, LONG
from tests.support.waiting import wait_until

ROUTE = "/rolling"
CLIENTS = 3
UPDATE_S = 300.0  # replicas are Python processes: on a busy machine they take their time
BODY = {"input": LONG[:160], "response_format": "pcm", "seed": 8, "deadline_ms": 240_000, "cache": "no-store"}


def version(*, code: Path | None = None, **args: Any) -> dict[str, Any]:
    """The application under test, of the code in a folder; the new replica starts before the old one stops."""
    limits = {"first_audio_timeout_s": 240.0, "chunk_timeout_s": 240.0, **args.pop("limits", {})}
    document = document_of("dev.yaml", app="rolling", route=ROUTE, limits=limits, **args)
    for deployment in document["applications"][0]["deployments"]:
        deployment |= {"max_surge_percent": 100, "graceful_shutdown_timeout_s": 120}
        deployment["ray_actor_options"] = {"num_cpus": 0.1}
    if code is not None:
        document["applications"][0]["runtime_env"] = {"env_vars": {"PYTHONPATH": str(code)}}
    return document


def install(folder: Path, release: str) -> Path:
    """An installation of this project with one change: its replicas say a release, wherever they say who they are."""
    for package in ("pipeline", "serve", "configs"):
        shutil.copytree(PROJECT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    path = folder / "serve/stages/replica_context.py"
    changed = path.read_text().replace('return {"replica"', f'return {{"release": "{release}", "replica"')
    assert release in changed
    path.write_text(changed)
    return folder


@pytest.fixture(scope="module")
def update(started: Cluster) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Deploys a version beside the session's own application; returns once it runs."""
    first = document_of("dev.yaml", app="chattts", route="/")
    first["http_options"]["port"] = started.port

    def to(document: dict[str, Any]) -> None:
        deploy(first, document)

    to(version())
    yield to
    deploy(first)


def speak(cluster: Cluster, **fields: Any) -> requests.Response:
    return requests.post(cluster.url(f"{ROUTE}/v1/audio/speech"), json=BODY | fields, timeout=300)


@contextmanager
def talking(cluster: Cluster) -> Iterator[list[tuple[int, bytes]]]:
    """Clients that speak one request after the other, from before an update until after it."""
    replies: list[tuple[int, bytes]] = []
    over = threading.Event()

    def client() -> None:
        while not over.is_set():
            try:
                reply = speak(cluster)
                replies.append((reply.status_code, reply.content))
            except requests.RequestException as error:
                replies.append((0, repr(error).encode()))

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(replies) >= CLIENTS, UPDATE_S)
        yield replies
        so_far = len(replies)
        wait_until(lambda: len(replies) >= so_far + 2 * CLIENTS, UPDATE_S)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def replicas(cluster: Cluster) -> set[str]:
    health = cluster.health(ROUTE)
    return {stats["replica"] for stats in (*health["acoustic"], *health["vocoder"])}


def releases(cluster: Cluster) -> set[str | None]:
    """What replicas of the model say they are; None: this checkout."""
    health = cluster.health(ROUTE)
    return {stats.get("release") for stats in (*health["acoustic"], *health["vocoder"])}


def source(cluster: Cluster) -> str:
    """The digest of the source the ingress offers: its own."""
    digest: str = requests.get(cluster.url(f"{ROUTE}/source"), timeout=30).json()["sha256"]
    return digest


@pytest.mark.parametrize("changed", ["configuration", "weights"])
def test_no_request_fails_while_everything_is_replaced(
    cluster: Cluster, update: Callable[[dict[str, Any]], None], changed: str, demo_root: Path, tmp_path: Path
):
    expected = speak(cluster)
    assert expected.status_code == 200
    before = replicas(cluster)
    if changed == "configuration":
        document = version(limits={"max_text_chars": 200})
    else:
        # The same numbers under another name: the audio must not change, the processes must.
        shutil.copytree(demo_root, tmp_path / "weights")
        document = version(pipeline={"checkpoint": str(tmp_path / "weights")})
    with talking(cluster) as replies:
        update(document)
        wait_until(lambda: replicas(cluster) and not replicas(cluster) & before, UPDATE_S)
    assert {status for status, _ in replies} == {200}
    assert {audio for _, audio in replies} == {expected.content}
    if changed == "configuration":
        assert speak(cluster, input="x" * 300).status_code != 200, "the new limit counts"


@pytest.mark.timeout(1200)  # every process of the application starts anew, twice, beside three that speak
def test_no_request_fails_while_the_code_is_replaced(
    cluster: Cluster, update: Callable[[dict[str, Any]], None], tmp_path: Path
):
    """Two ways: a folder of its own for a release, named in the file; and files changed in place."""
    expected = speak(cluster)
    assert expected.status_code == 200
    offered = source(cluster)
    with talking(cluster) as replies:
        update(version(code=install(tmp_path / "two", "two")))
        wait_until(lambda: releases(cluster) == {"two"}, UPDATE_S)
        assert source(cluster) != offered, "the ingress is new as well"
        before = replicas(cluster)
        install(tmp_path / "two", "three")
        update(version(code=tmp_path / "two"))
        assert replicas(cluster) == before, "an unchanged file is no update to Serve"
        update(version(code=tmp_path / "two", limits={"max_text_chars": 4001}))
        wait_until(lambda: releases(cluster) == {"three"}, UPDATE_S)
    assert {status for status, _ in replies} == {200}
    assert {audio for _, audio in replies} == {expected.content}


def test_a_stream_is_heard_to_its_end_while_its_replicas_are_taken_away(
    cluster: Cluster, update: Callable[[dict[str, Any]], None]
):
    update(version())
    long = {"input": LONG, "stream": True, **FLAT}
    whole = speak(cluster, **long)
    with requests.post(cluster.url(f"{ROUTE}/v1/audio/speech"), json=BODY | long, stream=True, timeout=300) as reply:
        pieces = reply.iter_content(4096)
        audio = next(pieces)
        before = replicas(cluster)
        update(copy.deepcopy(version(limits={"max_text_chars": 4000})))
        wait_until(lambda: replicas(cluster) and not replicas(cluster) & before, UPDATE_S)
        audio += b"".join(pieces)
    assert audio == whole.content


def test_a_conversation_is_told_to_come_back_and_loses_nothing_that_was_flushed(
    cluster: Cluster, update: Callable[[dict[str, Any]], None]
):
    update(version())
    expected, parts = speak(cluster).content, 3
    with talk(cluster) as silent, talk(cluster) as client, ThreadPoolExecutor() as pool:
        events = begun(client)
        updated = pool.submit(update, version(limits={"max_text_chars": 3999}))
        with suppress(ConnectionClosed):
            while True:
                events.append(json.loads(client.recv(timeout=UPDATE_S)))
                kinds = [message["type"] for message in events]
                if "going_away" not in kinds and kinds.count("finished") > parts - 3:
                    say_part(client)
                    parts += 1
        assert json.loads(silent.recv(timeout=UPDATE_S))["type"] == "going_away"
        with suppress(ConnectionClosed):
            silent.recv(timeout=UPDATE_S)
        updated.result()
    assert "finished" in kinds[kinds.index("going_away") :], "it is told before the end, while there is time"
    assert audio_of(events) == parts * expected, "what was flushed is spoken to its end"
    assert client.close_code == silent.close_code == 1001


def test_a_conversation_goes_on_while_the_acoustic_model_alone_is_replaced(
    cluster: Cluster, update: Callable[[dict[str, Any]], None]
):
    """Its socket stays, since its ingress does; parts before, during and after have the bytes of HTTP."""
    update(version())
    expected = speak(cluster).content
    with talk(cluster) as client, ThreadPoolExecutor() as pool:
        events = begun(client)
        before = {stats["replica"] for stats in cluster.health(ROUTE)["acoustic"]}
        document = version()
        (acoustic,) = [
            deployment for deployment in document["applications"][0]["deployments"] if deployment["name"] == "AcousticModel"
        ]
        acoustic["ray_actor_options"] = {"num_cpus": 0.11}
        updated = pool.submit(update, document)
        parts = 3
        while not updated.done() or parts == 3:
            say_part(client)
            parts += 1
            while [message["type"] for message in events].count("finished") < parts:
                events.append(json.loads(client.recv(timeout=UPDATE_S)))
        updated.result()
        assert not before & {stats["replica"] for stats in cluster.health(ROUTE)["acoustic"]}
    assert "going_away" not in {message["type"] for message in events}
    assert audio_of(events) == parts * expected


def test_home_assistant_notices_no_update(cluster: Cluster, update: Callable[[dict[str, Any]], None]):
    """Each message has a connection of its own, and none of them is refused or cut."""
    port = free_port()
    update(version(wyoming={"port": port}))
    replies: list[bytes | None] = []
    over = threading.Event()

    def client() -> None:
        while not over.is_set():
            replies.append(asyncio.run(home_assistant_reads(port, BODY["input"], None)))

    before = replicas(cluster)
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client) for _ in range(CLIENTS)]
        try:
            wait_until(lambda: len(replies) >= CLIENTS, UPDATE_S)
            update(version(wyoming={"port": port}, limits={"max_text_chars": 3998}))
            wait_until(lambda: replicas(cluster) and not replicas(cluster) & before, UPDATE_S)
            so_far = len(replies)
            wait_until(lambda: len(replies) >= so_far + 2 * CLIENTS, UPDATE_S)
        finally:
            over.set()
        for future in clients:
            future.result()
    assert all(spoken and len(spoken) > 10_000 for spoken in replies)


def talk(cluster: Cluster) -> ClientConnection:
    """A socket to the application under test."""
    return connect(cluster.url(f"{ROUTE}/v1/audio/conversation").replace("http", "ws"))


def begun(client: ClientConnection) -> list[dict[str, Any]]:
    """Flushes three parts, each of which is spoken when nothing is unplayed; returns what comes until it speaks."""
    speech = {name: value for name, value in BODY.items() if name != "input"}
    client.send(json.dumps({"type": "open", "speech": speech, "lead_s": 0}))
    for _ in range(3):
        say_part(client)
    events = [json.loads(client.recv(timeout=240))]
    while events[-1]["type"] != "audio":
        events.append(json.loads(client.recv(timeout=240)))
    return events


def say_part(client: ClientConnection) -> None:
    client.send(json.dumps({"type": "text", "text": BODY["input"]}))
    client.send(json.dumps({"type": "flush"}))


def audio_of(events: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(message["audio"]) for message in events if message["type"] == "audio")
