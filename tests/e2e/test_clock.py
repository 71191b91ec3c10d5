"""A clock that jumps, for every process of the service: hours forward, hours back, in the middle of streams."""

import contextlib
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from serve.config.app_config import PROJECT
from tests.support.recovery import recovered
from tests.support.service import FLAT, LONG
from tests.support.services import needed_program
from tests.support.started import Started, started
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nightly

HOURS = 3
BODY = {"input": LONG[:600], "response_format": "pcm", "seed": 5, "cache": "no-store", **FLAT}


class Clock:
    """The wall clock of the processes that are started with it; the monotonic one goes on."""

    def __init__(self, folder: Path) -> None:
        library, self._file = folder / "jumping_clock.so", folder / "clock"
        compiler = needed_program("gcc", "g++")
        source = PROJECT / "tests/support/jumping_clock.c"
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"], check=True)
        self._file.write_bytes(bytes(8))
        self.variables = {"LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(self._file)}

    def set(self, hours: int) -> None:
        """From now on so many hours from the right time."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("<q", 3600 * hours))


@pytest.fixture(scope="module")
def clock(folder: Path) -> Clock:
    return Clock(folder)


@pytest.fixture(scope="module")
def service(home: Path, folder: Path, clock: Clock) -> Iterator[Started]:
    changes = {"checkpoint: demo": "checkpoint: small-random"}
    with started(home=home, folder=folder, changes=changes, **clock.variables) as begun:
        begun.wait_until_ready()
        yield begun


def hours_of(service: Started) -> int:
    """How wrong the service's clock is, by the date of a record that it makes."""
    job = requests.post(f"{service.url}/v1/audio/jobs", json={"input": "One."}, timeout=30)
    assert job.ok, job.text
    return round((job.json()["created_at"] - time.time()) / 3600)


def test_a_jump_of_hours_cuts_no_stream_and_ends_no_replica(service: Started, clock: Clock):
    def speak() -> requests.Response:
        return requests.post(f"{service.url}/v1/audio/speech", json=BODY, timeout=100)

    twin = speak().content
    replicas = sorted(process.pid for process in service.processes() if "ray::ServeReplica" in process.command())
    for hours in (HOURS, -HOURS, 0):
        with requests.post(f"{service.url}/v1/audio/speech", json=BODY, stream=True, timeout=100) as reply:
            pieces = reply.iter_content(4096)
            audio = [next(pieces)]
            clock.set(hours)
            wait_until(lambda hours=hours: hours_of(service) == hours, 30.0)
            jumped = time.monotonic()
            audio += pieces
        assert b"".join(audio) == twin
        for _ in range(3):
            assert speak().content == twin
        recovered("F-23", time.monotonic() - jumped)
        with contextlib.suppress(requests.RequestException):
            assert requests.get(f"{service.url}/ready", timeout=10).status_code == 200
    assert sorted(process.pid for process in service.processes() if "ray::ServeReplica" in process.command()) == replicas
