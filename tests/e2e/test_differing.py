"""Two replicas of one version, of which one could not compile: they are named, and no reply is made of both."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.cluster import FLAT
from tests.support.started import Started, short_folder, started
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nightly

CHANGES = {
    "checkpoint: demo": "checkpoint: small-random",
    "- name: AcousticModel\n        num_replicas: 1": "- name: AcousticModel\n        num_replicas: 2",
    "num_cpus: 0.8": "num_cpus: 0.4",  # two of them fit into the same machine
}
TWIN = {"input": "Many words follow one another here.", "response_format": "pcm", "seed": 5, "cache": "no-store", **FLAT}
REPLIES = 12
REPLACED_S = 120.0
TOO_OLD = "#!/bin/sh\necho \"error: unrecognized command-line option '-std=c++20'\" >&2\nexit 1\n"


def health_of(service: Started) -> dict[str, Any]:
    return requests.get(f"{service.url}/health", timeout=10).json()


def replicas_of(service: Started) -> set[int]:
    return {found.pid for found in service.processes() if "ray::ServeReplica:chattts:AcousticModel" in found.command()}


def kinds_of(service: Started) -> set[bytes]:
    """What one request sounds like, asked often enough to come to both replicas."""
    replies = [requests.post(f"{service.url}/v1/audio/speech", json=TWIN, timeout=100) for _ in range(REPLIES)]
    assert {reply.status_code for reply in replies} == {200}
    return {reply.content for reply in replies}


def replaced(service: Started, pid: int) -> int:
    """Kills a replica; returns the process that stands in for it."""
    others = replicas_of(service) - {pid}
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(replicas_of(service) - others - {pid}) == 1, REPLACED_S)
    (found,) = replicas_of(service) - others - {pid}
    return found


def test_a_replica_that_could_not_compile_is_named_until_it_is_like_the_other(tmp_path: Path):
    tools, real = tmp_path / "tools", shutil.which("c++")
    assert real is not None
    tools.mkdir()
    compiler = tools / "c++"
    compiler.write_text(right := f'#!/bin/sh\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    with (
        short_folder() as folder,
        started(home=tmp_path, folder=folder, changes=CHANGES, PATH=f"{tools}{os.pathsep}{os.environ['PATH']}") as service,
    ):
        service.wait_until_ready()
        wait_until(lambda: len(health_of(service)["acoustic"]) == 2, REPLACED_S)
        (alike,) = kinds_of(service)
        assert "differing_replicas" not in health_of(service)

        compiler.write_text(TOO_OLD)
        shutil.rmtree(tmp_path / "native")
        odd = replaced(service, min(replicas_of(service)))
        wait_until(lambda: "differing_replicas" in health_of(service), REPLACED_S)
        (differing,) = health_of(service)["differing_replicas"].values()
        assert list(differing.values()) == [1, 1]
        kinds = kinds_of(service)
        assert alike in kinds
        assert len(kinds) == 2, "each replica says it its own way, and no reply is made of both"
        wait_until(lambda: "replicas of AcousticModel differ" in service.said())

        compiler.write_text(right)
        replaced(service, odd)
        wait_until(lambda: "replicas of AcousticModel are alike again" in service.said(), REPLACED_S)
        wait_until(lambda: len(health_of(service)["acoustic"]) == 2, REPLACED_S)
        assert kinds_of(service) == {alike}
        assert "differing_replicas" not in health_of(service)
