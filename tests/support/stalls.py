"""Stalls: how long a hostile client keeps a server from answering others, measured from another process.

The measure is processor time of the whole server process, not the clock: between a question and its answer, on a machine that
does other things too. CPU_MS of it in one piece is the most that anybody may cost everybody else.
"""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.stall_server import PROCESS_TIME

CPU_MS = 50.0
CLOCK_MS = 250.0
ATTEMPTS = 3
SMALL, MIDDLE = 1_000, 32_000
"""sizes that every attack is tried with, beside its largest [bytes]"""
QUESTION = f"GET {PROCESS_TIME} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@dataclass(frozen=True, slots=True)
class Stall:
    """The longest wait of the probe."""

    cpu_ms: float
    """processor time of the server between a question and its answer"""
    clock_ms: float


@dataclass(frozen=True, slots=True)
class StallServer:
    """A running server."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stall_of(self, attack: Callable[[], None]) -> Stall:
        """Returns the longest stall while `attack` runs."""
        with _Probe(self) as probe:
            attack()
        return Stall(max(probe.cpu_ns) / 1e6, max(probe.clock_ns) / 1e6)

    def least_stall_of(self, attack: Callable[[], None], *, by_clock: bool = False) -> Stall:
        """Returns the first stall within the limits, or the last of ATTEMPTS: a busy machine makes single ones longer."""
        for _ in range(ATTEMPTS):
            stall = self.stall_of(attack)
            if stall.cpu_ms <= CPU_MS and (not by_clock or stall.clock_ms <= CLOCK_MS):
                break
        return stall


@dataclass(frozen=True, slots=True)
class Attack:
    """What one client does."""

    name: str
    strike: Callable[[StallServer, int], None]
    """with so many bytes"""
    largest: int
    """size of the largest that is allowed [bytes]"""


@contextlib.contextmanager
def stall_server(folder: Path) -> Iterator[StallServer]:
    """Runs tests.support.stall_server until the block ends."""
    command = (sys.executable, "-m", "tests.support.stall_server", str(folder))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield StallServer(int(process.stdout.readline()), process.pid)
        finally:
            process.kill()


class _Probe:
    """Asks the server all the time."""

    def __init__(self, server: StallServer) -> None:
        self.cpu_ns: list[int] = []
        self.clock_ns: list[int] = []
        self._clock = (~server.pid << 3) | 2  # Linux: the processor time of a process
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=120)
        self._answers = self._socket.makefile("rb")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "_Probe":
        self._ask()
        self.cpu_ns.clear()
        self.clock_ns.clear()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._ask()
        self._answers.close()
        self._socket.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._ask()

    def _ask(self) -> None:
        cpu_ns, clock_ns = time.clock_gettime_ns(self._clock), time.monotonic_ns()
        self._socket.sendall(QUESTION)
        size = 0
        while (line := self._answers.readline()) != b"\r\n":
            assert line, "the server has ended"
            if line.lower().startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        self.cpu_ns.append(int(self._answers.read(size)) - cpu_ns)
        self.clock_ns.append(time.monotonic_ns() - clock_ns)
