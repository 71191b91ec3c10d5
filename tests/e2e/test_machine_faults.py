"""A machine in trouble: no room on its disk, no inodes, no descriptors, no memory; listeners that vanish from the network.

One service, with a disk of its own, that another network reaches. Each fault is verified from outside before it is judged.
"""

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.disks import mounted
from tests.support.network import another_machine, set_link, slow_relay
from tests.support.recovery import recovered
from tests.support.service import FLAT, LONG, is_idle
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
    """A service of serve.commands.launch.start on disks of its own, and how another network reaches it."""

    prefix: list[str]
    address: str
    disk: Path

    def speak(self, **fields: object) -> requests.Response:
        return requests.post(f"{self.url}/v1/audio/speech", json=TWIN | fields, timeout=100)

    def health(self) -> dict[str, Any]:
        return requests.get(f"{self.url}/health", timeout=10).json()

    def keeps(self, name: str) -> requests.Response:
        """Whether something new is written down."""
        entries = {f"word{number}": f"reading number {number}" for number in range(200)}
        return requests.put(f"{self.url}/v1/lexicons/{name}", json={"entries": entries}, timeout=30)

    def pid(self, deployment: str) -> int:
        return self.process_titled(f"ray::ServeReplica:chattts:{deployment}").pid

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


@contextlib.contextmanager
def filled(disk: Path, fill: Callable[[Path], None]) -> Iterator[None]:
    """A disk with no room, by files of ours that go again."""
    folder = disk / "filler"
    folder.mkdir()
    try:
        with contextlib.suppress(OSError):
            fill(folder)
        yield
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def with_bytes(folder: Path) -> None:
    with (folder / "bytes").open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def with_inodes(folder: Path) -> None:
    for number in range(1_000_000):
        (folder / str(number)).touch()


@pytest.mark.parametrize("fill", [with_bytes, with_inodes])
def test_on_a_full_disk_it_speaks_and_says_what_it_cannot_keep(service: Service, fill: Callable[[Path], None]):
    twin = service.speak().content
    assert service.keeps("before").ok
    with filled(service.disk, fill):
        state = os.statvfs(service.disk)
        assert 0 in (state.f_bavail, state.f_favail), "the disk is full"
        for _ in range(5):
            reply = service.speak()
            assert (reply.status_code, reply.content == twin) == (200, True)
        # Without inodes a file that is there may still grow; and the store keeps some room for itself.
        refused = [reply for reply in (service.keeps(f"more-{number}") for number in range(60)) if not reply.ok]
        assert refused or fill is with_inodes, "something could not be kept"
        assert {(reply.status_code, reply.json()["error"]["code"]) for reply in refused} <= {
            (507, "store_full"),
            (503, "store_unavailable"),
        }
        assert requests.get(f"{service.url}/v1/lexicons/before", timeout=10).ok
    wait_until(lambda: service.keeps("after").ok, 60.0)
    assert service.speak().content == twin


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


def test_a_replica_that_the_kernel_ends_for_its_memory_is_replaced_and_heard_to_the_end(service: Service):
    group = Path(f"/sys/fs/cgroup/memory/chattts-{os.getpid()}")
    pid = service.pid("AcousticModel")
    twin = service.speak().content
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(1 << 20))  # beyond what it has now
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no limit of memory can be set here: {error}")
    began = time.monotonic()

    def ask(number: int) -> None:
        reply = service.speak(input=LONG, seed=number)
        assert reply.status_code in {200, *REFUSALS}, reply.text

    def has_ended() -> bool:
        return not Path(f"/proc/{pid}").exists()

    answers: list[Future[None]] = []
    with ThreadPoolExecutor(8) as pool:
        while not has_ended() and time.monotonic() - began < 60:
            if all(answer.done() for answer in answers):
                answers += [pool.submit(ask, number) for number in range(16)]
            time.sleep(0.05)
        ended = time.monotonic()
    for answer in answers:
        answer.result()
    if not has_ended():
        (group / "memory.limit_in_bytes").write_text("-1")
        pytest.skip("the kernel does not end a process that reaches its limit here")
    assert int((group / "memory.failcnt").read_text()) > 0, "it was the limit"
    wait_until(lambda: service.speak().content == twin, 100.0)
    recovered("N-8", time.monotonic() - ended)
    group.rmdir()


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


def test_over_a_slow_link_every_byte_arrives(service: Service):
    """A relay that passes on two kilobytes every 10 ms, 1.6 Mbit/s: nothing is lost, and nothing is in a hurry."""
    twin = service.speak()
    with slow_relay(service.port, piece=2048, pause_s=0.01) as port, ThreadPoolExecutor(4) as pool:
        began = time.monotonic()
        url = f"http://127.0.0.1:{port}/v1/audio/speech"
        pending = [pool.submit(requests.post, url, json=TWIN, timeout=200) for _ in range(4)]
        replies = [reply.result() for reply in pending]
        assert time.monotonic() - began >= len(twin.content) / 2048 * 0.01, "it was slow"
    assert [reply.status_code for reply in replies] == [200] * 4
    assert {reply.content for reply in replies} == {twin.content}
