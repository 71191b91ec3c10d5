"""Processes: which of them are a service's, of which kind each is, and what they use of memory, files and cores.

In:    an environment variable, the port of a service, processes
Out:   processes by kind; their use, over a load for the cores
Never: a signal
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import psutil

from serve.commands.launch.processes import listeners

REPLICA = re.compile(r"ray::ServeReplica:[^:]+:(\w+)")
TEXT_WORKER = "pipeline.text.isolation"
ONE_PROCESS = "serve.commands.launch.one_process"
HAPROXY = "/haproxy "
PERIOD_S = 0.25  # a sample reads some hundred files; the process of the benchmark, "client", pays for it
MIB = 1 << 20

Groups = Mapping[str, Sequence[psutil.Process]]
"""kind -> its processes"""


def family(variable: str, *roots: int) -> list[psutil.Process]:
    """Returns the processes that were started with NAME=value, those of `roots`, and the descendants of all of them.

    Ray hides some from either search: a title that it sets may overwrite an environment.
    """
    name, _, value = variable.partition("=")
    running = {process.pid: process for process in psutil.process_iter(["ppid", "environ"])}
    marked = {pid for pid, process in running.items() if (process.info["environ"] or {}).get(name) == value}
    members = marked.union(roots)
    while more := {pid for pid, process in running.items() if process.info["ppid"] in members and pid not in members}:
        members |= more
    return [running[pid] for pid in sorted(members & running.keys())]


def listening(port: int) -> list[psutil.Process]:
    """Returns the processes of the session that listens at a port of this machine: those of a service."""
    sessions = {_session(listener.pid) for listener in listeners() if listener.port == port and listener.pid}
    return [process for process in psutil.process_iter() if _session(process.pid) in sessions]


def _session(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None


def title(process: psutil.Process) -> str:
    """Returns the command line of a process, which Ray replaces by what it runs; empty if it has ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()) + " "
    return ""


def kind_of(title: str) -> str:
    """Returns what a process is called in a report, by its title: its deployment, HAProxy, Ray, or all in one."""
    if (replica := REPLICA.search(title)) is not None:
        return replica[1]
    if TEXT_WORKER in title:
        return "TextNormalizer"
    if ONE_PROCESS in title:
        return "OneProcess"
    return "HAProxy" if HAPROXY in title else "Ray"


def by_kind(processes: Iterable[psutil.Process]) -> dict[str, list[psutil.Process]]:
    """Returns the processes of each kind."""
    groups: dict[str, list[psutil.Process]] = {}
    for process in processes:
        groups.setdefault(kind_of(title(process)), []).append(process)
    return groups


class Usage(NamedTuple):
    """What one process has."""

    rss_mib: float
    files: int
    threads: int


def usage(process: psutil.Process) -> Usage:
    """Returns resident memory, open files and threads of a process; zeros if it has ended."""
    with contextlib.suppress(psutil.Error):
        return Usage(process.memory_info().rss / MIB, process.num_fds(), process.num_threads())
    return Usage(0.0, 0, 0)


def cpu_s(process: psutil.Process) -> float:
    """Returns the processor time that a process has used [s]; 0 if it has ended."""
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def core_use(process: psutil.Process) -> tuple[float, float]:
    """Returns the time that all threads of a process have run, and have waited for a core [s]; zeros if it has ended."""
    ran = waited = 0
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            with contextlib.suppress(OSError):  # psutil does not know how long a thread has waited
                numbers = Path(f"/proc/{process.pid}/task/{thread}/schedstat").read_text().split()
                ran, waited = ran + int(numbers[0]), waited + int(numbers[1])
    return ran / 1e9, waited / 1e9


@dataclass(slots=True)
class Samples:
    """Periods of a load. Cores: seconds of processor time per second."""

    times_s: list[float] = field(default_factory=list)
    """the end of each period, since the start"""
    running: dict[str, list[float]] = field(default_factory=dict)
    """kind -> cores it ran on"""
    waiting: dict[str, list[float]] = field(default_factory=dict)
    """kind -> threads of it that waited for a core"""

    def means(self) -> dict[str, dict[str, float]]:
        """Returns on how many cores each kind ran, and how many of its threads waited for one."""
        return {
            kind: {"running": self._mean(values), "waiting": self._mean(self.waiting[kind])}
            for kind, values in self.running.items()
        }

    def _mean(self, values: Sequence[float]) -> float:
        starts = [0.0, *self.times_s]
        total = sum(value * (end - start) for value, start, end in zip(values, starts, self.times_s, strict=False))
        return total / self.times_s[-1]


class CoreWatch:
    """Context manager that samples from its start to its end."""

    def __init__(self, groups: Groups, period_s: float = PERIOD_S) -> None:
        self._groups = groups
        self._period_s = period_s
        self._ended = threading.Event()
        self._thread = threading.Thread()
        self.samples = Samples(running={kind: [] for kind in groups}, waiting={kind: [] for kind in groups})

    def __enter__(self) -> Self:
        self._thread = threading.Thread(
            target=self._watch, args=(time.perf_counter(), self._use()), name="core-watch", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self, began: float, earlier: dict[str, tuple[float, float]]) -> None:
        earlier_s, has_ended = began, False
        while not has_ended:
            has_ended = self._ended.wait(self._period_s)
            now_s, now = time.perf_counter(), self._use()
            self.samples.times_s.append(now_s - began)
            for kind, (ran, waited) in now.items():
                self.samples.running[kind].append(max(0.0, ran - earlier[kind][0]) / (now_s - earlier_s))
                self.samples.waiting[kind].append(max(0.0, waited - earlier[kind][1]) / (now_s - earlier_s))
            earlier_s, earlier = now_s, now

    def _use(self) -> dict[str, tuple[float, float]]:
        sums = {}
        for kind, processes in self._groups.items():
            times = [core_use(process) for process in processes]
            sums[kind] = sum(ran for ran, _ in times), sum(waited for _, waited in times)
        return sums
