"""Three nodes: stages stand where their resources are; one leaves, one dies, the head's memory dies; the service goes on.

The nodes are Ray's own processes of three machines on one. It comes before the tests that share a cluster, and leaves none.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import ray
import requests
from ray import serve
from ray.cluster_utils import Cluster as Machines
from ray.serve.context import _get_global_client

from scripts.chaos.deploying import deploy
from serve.commands.launch.processes import end_session, sessions_with
from serve.commands.operate.leave_node import leave
from serve.config.app_config import PROJECT
from tests.support.cluster import ENVIRONMENT, document_of
from tests.support.network import OURS, THEIRS, another_machine, set_link
from tests.support.ports import free_port
from tests.support.recovery import recovered
from tests.support.service import FLAT, LONG
from tests.support.services import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nightly

CLIENTS = 4
BACK_S = 300.0  # replicas start anew: on a busy machine that takes its time
MEMORY = 100 << 20  # of each node's object store
SENTENCE = "Here speaks one of two machines, and the other one says the very same. " * 2
BODY = {"input": SENTENCE, "response_format": "pcm", "seed": 5, "deadline_ms": 240_000, "cache": "no-store"}
WHERE = {"Ingress": "ingress", "TextNormalizer": "ingress", "AcousticModel": "voice", "Vocoder": "voice"}


@dataclass
class Nodes:
    """A head, which takes the requests, and two machines with voices."""

    machines: Machines
    voices: list[Any]
    port: int

    def add_voice(self) -> Any:
        """Another machine with a voice."""
        folder = os.environ["RAY_TMPDIR"]
        return self.machines.add_node(num_cpus=4, resources={"voice": 2}, object_store_memory=MEMORY, temp_dir=folder)

    def speak(self) -> requests.Response:
        return requests.post(f"http://127.0.0.1:{self.port}/v1/audio/speech", json=BODY, timeout=300)

    def running(self, deployment: str) -> Counter[str]:
        """Running replicas by node."""
        client = _get_global_client()
        assert client is not None
        replicas = client.get_serve_details()["applications"]["nodes"]["deployments"][deployment]["replicas"]
        return Counter(replica["node_id"] for replica in replicas if replica["state"] == "RUNNING")


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Behind Ray's GCS, as in the production overlay."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def nodes(redis_server: RedisServer) -> Iterator[Nodes]:
    # Short: Ray puts sockets below it, and a socket's path may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    (folder / "ray").mkdir()  # Ray notes the head's address there and does not make it
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT | {"RAY_TMPDIR": str(folder), "RAY_REDIS_ADDRESS": f"127.0.0.1:{redis_server.port}"})
    common = {"object_store_memory": MEMORY, "temp_dir": str(folder)}
    machines = Machines()
    try:
        machines.add_node(num_cpus=4, include_dashboard=False, resources={"ingress": 4}, **common)
        voices = [machines.add_node(num_cpus=4, resources={"voice": 2}, **common) for _ in range(2)]
        ray.init(address=machines.address, namespace="serve", log_to_driver=False)
        document = document_of(
            "dev.yaml", app="nodes", route="/", limits={"first_audio_timeout_s": 240.0, "chunk_timeout_s": 240.0}
        )
        document["http_options"]["port"] = port = free_port()
        for deployment in document["applications"][0]["deployments"]:
            options = {"num_cpus": 0.1, "resources": {WHERE[deployment["name"]]: 1}}
            deployment |= {"ray_actor_options": options, "graceful_shutdown_timeout_s": 120}
            if WHERE[deployment["name"]] == "voice":
                # One of each on each: neither machine has room for two of one kind beside the other.
                deployment |= {"num_replicas": 2, "max_replicas_per_node": 1}
        deploy(document)
        yield Nodes(machines, voices, port)
    finally:
        serve.shutdown()
        ray.shutdown()
        machines.shutdown()
        os.environ.clear()
        os.environ.update(before)


@dataclass
class Heard:
    """What clients got: whole replies, refusals, cuts."""

    whole: list[bytes] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    cut: int = 0


@contextmanager
def talking(nodes: Nodes) -> Iterator[Heard]:
    """Clients that speak one request after the other, from before something happens until after it."""
    results, over = Heard(), threading.Event()

    def client() -> None:
        while not over.is_set():
            try:
                reply = nodes.speak()
            except requests.RequestException:
                results.cut += 1  # a body without its end: the client can tell
                continue
            if reply.status_code == 200:
                results.whole.append(reply.content)
            else:
                results.refused.append(reply.status_code)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(results.whole) >= CLIENTS, BACK_S)
        yield results
        so_far = len(results.whole)
        wait_until(lambda: len(results.whole) >= so_far + 3 * CLIENTS, BACK_S)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_stages_stand_where_their_resources_are(nodes: Nodes):
    ingress_node = nodes.machines.head_node.node_id
    voices = {node.node_id for node in nodes.voices}
    assert set(nodes.running("Ingress")) == set(nodes.running("TextNormalizer")) == {ingress_node}
    for deployment in ("AcousticModel", "Vocoder"):
        assert nodes.running(deployment) == dict.fromkeys(voices, 1)


@pytest.mark.timeout(900)
def test_a_machine_that_leaves_under_load_cuts_nothing(nodes: Nodes):
    expected = nodes.speak()
    assert expected.status_code == 200
    fresh, (staying, leaving) = nodes.add_voice(), nodes.voices
    with talking(nodes) as results:
        command = [sys.executable, "-m", "serve.commands.operate.leave_node", "--node", leaving.node_id, "--grace", "400"]
        command += ["--address", nodes.machines.address]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=450)
        assert done.returncode == 0, done.stderr
        for deployment in ("AcousticModel", "Vocoder"):
            assert nodes.running(deployment) == {staying.node_id: 1, fresh.node_id: 1}, deployment
        nodes.machines.remove_node(leaving)
    assert (results.cut, results.refused) == (0, [])
    assert set(results.whole) == {expected.content}
    nodes.voices[:] = [staying, fresh]


def test_the_first_machine_cannot_leave(nodes: Nodes):
    with pytest.raises(ValueError, match="carries the cluster"):
        leave(nodes.machines.head_node.node_id, 1.0)
    with pytest.raises(ValueError, match="is no node of this cluster"):
        leave("ab" * 28, 1.0)


def test_a_node_that_dies_under_load_cuts_what_it_spoke_and_nothing_else(nodes: Nodes, capsys):
    expected = nodes.speak()
    assert expected.status_code == 200
    with talking(nodes) as results:
        dead, survivor = nodes.voices[1], nodes.voices[0].node_id
        nodes.machines.remove_node(dead, allow_graceful=False)
        died = time.monotonic()
        wait_until(lambda: set(nodes.running("AcousticModel")) == set(nodes.running("Vocoder")) == {survivor}, BACK_S)
        known_s = time.monotonic() - died
        recovered("F-10", known_s)
    with capsys.disabled():
        print(f"\n  node killed: noticed after {known_s:.1f} s, {results.cut} cut, {len(results.refused)} refused")
    assert set(results.whole) == {expected.content}, "what ends well is whole, whichever machine spoke it"
    assert set(results.refused) <= {429, 503, 504}, "who is refused is told so"
    later = [nodes.speak() for _ in range(6)]
    assert {reply.status_code for reply in later} == {200}
    assert {reply.content for reply in later} == {expected.content}


def test_a_new_node_brings_the_second_replicas_back(nodes: Nodes):
    fresh = nodes.add_voice()
    wait_until(lambda: fresh.node_id in nodes.running("AcousticModel"), BACK_S)
    wait_until(lambda: fresh.node_id in nodes.running("Vocoder"), BACK_S)
    assert nodes.speak().status_code == 200


def test_a_gcs_that_dies_comes_back_with_its_memory_and_nobody_notices(nodes: Nodes):
    """Ray's own memory of the cluster, in a Redis. While it is away nothing is started or replaced; speech goes on."""
    expected = nodes.speak().content
    head = nodes.machines.head_node
    with talking(nodes) as results:
        head.kill_gcs_server()
        died = time.monotonic()
        so_far = len(results.whole)
        wait_until(lambda: len(results.whole) >= so_far + CLIENTS, BACK_S)
        assert not head.all_processes.get("gcs_server"), "it is away all the while"
        head.start_gcs_server()
        dead = nodes.voices[0]
        nodes.machines.remove_node(dead, allow_graceful=False)
        wait_until(lambda: dead.node_id not in nodes.running("AcousticModel"), BACK_S)
        nodes.voices[0] = nodes.add_voice()
        wait_until(lambda: nodes.voices[0].node_id in nodes.running("AcousticModel"), BACK_S)
        recovered("F-11", time.monotonic() - died)
    assert set(results.whole) == {expected}
    assert set(results.refused) <= {429, 503, 504}, "of the machine that went afterwards"


# A partition: a machine that lives and cannot be reached. No packet comes back, so no connection is refused or reset.


REACHABLE_S = 300.0
START_S = 120.0
IMPATIENT = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
LONG_BODY = {"input": LONG[:1500], "response_format": "pcm", "seed": 5, "deadline_ms": 240_000, "cache": "no-store", **FLAT}
UNREACHABLE = {"Ingress": "ingress", "TextNormalizer": "ingress", "AcousticModel": "voice", "Vocoder": "ingress"}


@dataclass
class Pair:
    """The ingress with one voice here, another voice there."""

    port: int
    folder: Path
    prefix: list[str]
    gcs: str

    def join(self) -> None:
        """Ray on the other machine, as its operator starts it."""
        options = ["--address", self.gcs, "--node-ip-address", THEIRS, "--num-cpus", "4", "--resources", '{"voice": 1}']
        self._ray([*self.prefix], [*options, "--object-store-memory=100000000"])

    def lead(self) -> None:
        options = ["--head", "--node-ip-address", OURS, "--port", self.gcs.rpartition(":")[2], "--num-cpus", "4"]
        options += [
            "--resources",
            '{"ingress": 4, "voice": 1}',
            "--include-dashboard=false",
            f"--temp-dir={self.folder / 'ray'}",
        ]
        self._ray([], [*options, "--object-store-memory=100000000"])

    def speak(self, **options: object) -> requests.Response:
        return requests.post(f"http://127.0.0.1:{self.port}/v1/audio/speech", json=LONG_BODY, timeout=300, **options)

    def reaches_us(self) -> bool:
        """Whether a connection from the other machine to this one's GCS comes about."""
        code = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2)"
        command = [*self.prefix, sys.executable, "-c", code, *self.gcs.split(":")]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def voices(self) -> int:
        return len(requests.get(f"http://127.0.0.1:{self.port}/health", timeout=30).json()["acoustic"])

    def _ray(self, prefix: list[str], options: list[str]) -> None:
        command = [*prefix, str(Path(sys.executable).parent / "ray"), "start", *options, "--disable-usage-stats"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_S, start_new_session=True)
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def two_machines() -> Iterator[Pair]:
    with another_machine() as (prefix, address):
        if address != OURS:
            pytest.skip("no network namespaces here")
        folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        with mock.patch.dict(os.environ, ENVIRONMENT | IMPATIENT | {"RAY_TMPDIR": str(folder)}):
            pair = Pair(free_port(), folder, prefix, f"{OURS}:{free_port()}")
            try:
                pair.lead()
                pair.join()
                ray.init(address=pair.gcs, namespace="serve", log_to_driver=False, _node_ip_address=OURS)
                yield pair
            finally:
                set_link(up=True)
                serve.shutdown()
                ray.shutdown()
                for session in sessions_with(f"RAY_TMPDIR={folder}") - {os.getsid(0)}:
                    end_session(session, 0.0)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with two_machines() as machines:
        document = document_of(
            "dev.yaml", app="pair", route="/", limits={"first_audio_timeout_s": 240.0, "chunk_timeout_s": 240.0}
        )
        document["http_options"]["port"] = machines.port
        for deployment in document["applications"][0]["deployments"]:
            deployment["ray_actor_options"] = {"num_cpus": 0.1, "resources": {UNREACHABLE[deployment["name"]]: 1}}
            if UNREACHABLE[deployment["name"]] == "voice":
                deployment |= {"num_replicas": 2, "max_replicas_per_node": 1}
        deploy(document)
        yield machines


def test_streams_of_an_unreachable_machine_go_on_elsewhere_and_it_may_come_back(pair: Pair):
    wait_until(lambda: pair.voices() == 2, REACHABLE_S)
    assert pair.reaches_us()
    twin = pair.speak().content
    replies = [pair.speak(stream=True) for _ in range(4)]
    pieces = [reply.iter_content(4096) for reply in replies]
    streams = [[next(piece)] for piece in pieces]
    set_link(up=False)
    parted = time.monotonic()
    assert not pair.reaches_us()
    for got, piece in zip(streams, pieces, strict=True):
        got += piece
    assert [b"".join(got) for got in streams] == [twin] * 4, "nobody was cut"
    wait_until(lambda: pair.voices() == 1, REACHABLE_S)
    assert pair.speak().content == twin
    set_link(up=True)
    pair.join()  # Ray has written the machine off: its node ended itself, and an operator or Kubernetes starts another
    wait_until(lambda: pair.voices() == 2, REACHABLE_S)
    recovered("F-35", time.monotonic() - parted)
    assert [pair.speak().content for _ in range(4)] == [twin] * 4
