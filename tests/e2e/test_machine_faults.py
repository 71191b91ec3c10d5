"""A machine in trouble: no descriptors are left, listeners vanish from the network.

One service, with a disk of its own, that another network reaches. Each fault is verified from outside before it is judged.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.cluster import FLAT, LONG, is_idle
from tests.support.disks import mounted
from tests.support.network import another_machine, set_link
from tests.support.recovery import recovered
from tests.support.started import Started, started
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nightly

STALL_S = 3.0
CHANGES = {
    "checkpoint: demo": "checkpoint: small-random",
    "host: 127.0.0.1": "host: 0.0.0.0",
    "limits: {": f"keys: {{open: true}}\n      limits: {{max_text_chars: 100000, stall_timeout_s: {STALL_S}, ",
}
TWIN = {"input": LONG[:300], "response_format": "pcm", "seed": 5, "cache": "no-store", **FLAT}
ENDLESS = {**TWIN, "input": LONG * 10, "deadline_ms": 100_000}
REFUSALS = {429, 503, 504}
# Listens in another network, as long as it can.
LISTENER = """
import sys, urllib.request
url, body = sys.argv[1:]
request = urllib.request.Request(url + "/v1/audio/speech", body.encode(), {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=300) as reply:
    print("hears" if reply.read(4096) else "nothing", flush=True)
    while reply.read(4096):
        pass
"""


@dataclass
class Service(Started):
    """A service of scripts.launch.start on disks of its own, and how another network reaches it."""

    prefix: list[str]
    address: str
    disk: Path

    def speak(self, **fields: object) -> requests.Response:
        return requests.post(f"{self.url}/v1/audio/speech", json=TWIN | fields, timeout=100)

    def health(self) -> dict[str, Any]:
        return requests.get(f"{self.url}/health", timeout=10).json()

    def pid(self, deployment: str) -> int:
        return self.one(f"ray::ServeReplica:chattts:{deployment}").pid

    def listens_from_elsewhere(self, body: str) -> "subprocess.Popen[str]":
        command = [*self.prefix, sys.executable, "-c", LISTENER, f"http://{self.address}:{self.port}", body]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with (
        another_machine() as (prefix, address),
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as place,
        mounted(Path(place), "size=600m,nr_inodes=6000") as is_disk,
    ):
        if not is_disk:
            pytest.skip("no disk can be mounted here")
        home, folder = Path(place) / "home", Path(place) / "ray"
        home.mkdir()
        with started(home=home, folder=folder, changes=CHANGES) as begun:
            begun.wait_until_ready()
            yield Service(**vars(begun), prefix=prefix, address=address, disk=Path(place))


def test_without_free_descriptors_the_ingress_refuses_and_goes_on(service: Service):
    twin = service.speak().content
    pid = service.pid("Ingress")
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 2, before[1]))

    def ask(_: int) -> tuple[int, bytes]:
        try:
            reply = service.speak()
        except requests.RequestException:
            return 0, b""  # a connection that nobody takes, or a body without its end
        return reply.status_code, reply.content

    try:
        with ThreadPoolExecutor(24) as pool:
            replies = list(pool.map(ask, range(48)))
        assert len(os.listdir(f"/proc/{pid}/fd")) >= used
        assert {status for status, _ in replies} <= {0, 200, 500, *REFUSALS}
        assert {content for status, content in replies if status == 200} <= {twin}
        assert {status for status, _ in replies} != {200}, "descriptors ran out"
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    freed = time.monotonic()
    wait_until(lambda: ask(0) == (200, twin), 60.0)
    recovered("N-7", time.monotonic() - freed)
    assert service.pid("Ingress") == pid


def test_a_listener_that_vanishes_without_a_word_frees_its_place(service: Service):
    """Its machine loses the network: no FIN, no RST, and nothing that is sent is acknowledged."""
    if not service.prefix:
        pytest.skip("no network namespaces here")
    listener = service.listens_from_elsewhere(json.dumps(ENDLESS))
    assert listener.stdout is not None
    assert listener.stdout.readline() == "hears\n"
    assert service.health()["admission"]["in_flight"] == 1
    try:
        set_link(up=False)
        parted = time.monotonic()
        wait_until(lambda: is_idle(service.health()), 60.0)
        recovered("F-17", time.monotonic() - parted)
        assert listener.poll() is None, "it has no idea"
    finally:
        listener.kill()
        listener.wait()
        set_link(up=True)
    assert service.speak().ok
