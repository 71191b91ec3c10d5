"""A partition: a machine that lives and cannot be reached. No packet comes back, so no connection is refused or reset.

The second machine is a network namespace: Ray's processes there share this one's disk and cores, not its network.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
import ray
import requests
from ray import serve

from scripts.chaos.deploying import deploy
from serve.commands.launch.processes import end_session, sessions_with
from tests.support.cluster import ENVIRONMENT, document_of
from tests.support.network import OURS, THEIRS, another_machine, set_link
from tests.support.ports import free_port
from tests.support.recovery import recovered
from tests.support.service import FLAT, LONG
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nightly

BACK_S = 300.0
START_S = 120.0
IMPATIENT = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
BODY = {"input": LONG[:1500], "response_format": "pcm", "seed": 5, "deadline_ms": 240_000, "cache": "no-store", **FLAT}
WHERE = {"Ingress": "ingress", "TextNormalizer": "ingress", "AcousticModel": "voice", "Vocoder": "ingress"}


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
        return requests.post(f"http://127.0.0.1:{self.port}/v1/audio/speech", json=BODY, timeout=300, **options)

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
            deployment["ray_actor_options"] = {"num_cpus": 0.1, "resources": {WHERE[deployment["name"]]: 1}}
            if WHERE[deployment["name"]] == "voice":
                deployment |= {"num_replicas": 2, "max_replicas_per_node": 1}
        deploy(document)
        yield machines


def test_streams_of_an_unreachable_machine_go_on_elsewhere_and_it_may_come_back(pair: Pair):
    wait_until(lambda: pair.voices() == 2, BACK_S)
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
    wait_until(lambda: pair.voices() == 1, BACK_S)
    assert pair.speak().content == twin
    set_link(up=True)
    pair.join()  # Ray has written the machine off: its node ended itself, and an operator or Kubernetes starts another
    wait_until(lambda: pair.voices() == 2, BACK_S)
    recovered("F-35", time.monotonic() - parted)
    assert [pair.speak().content for _ in range(4)] == [twin] * 4
