"""Processes: parents, environments, processor time and memory of the machine's processes, from /proc.

In:    process ids
Out:   what Linux reports about them; nothing for one that has ended
Owns:  nothing
Never: a signal
"""

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

REPLICA = re.compile(r"ray::ServeReplica:[^:]+:(\w+)")
TEXT_WORKER = "pipeline.text.isolation"
HAPROXY = "/haproxy "


class Stat(NamedTuple):
    """Some fields of /proc/PID/stat."""

    parent: int
    born: int
    """clock ticks after the machine's start"""
    cpu_s: float
    """processor time that it has used [s]"""


def stat(pid: int) -> Stat:
    """Returns parent, birth and processor time of a process.

    Raises:
        OSError: the process has ended.
    """
    # The name stands in brackets and may hold anything; state, parent and 18 others follow it.
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return Stat(parent=int(words[1]), born=int(words[19]), cpu_s=cpu_s)


def parents() -> dict[int, int]:
    """Returns the parent of every process."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            found[pid] = stat(pid).parent
    return found


def environment(pid: int) -> list[bytes]:
    """Returns the environment of a process as NAME=value; empty if it cannot be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def cpu_s(pid: int) -> float:
    """Returns the processor time that a process has used [s]; 0 if it has ended."""
    try:
        return stat(pid).cpu_s
    except OSError:
        return 0.0


def core_use(pid: int) -> tuple[float, float]:
    """Returns the time that all threads of a process have run, and have waited for a core [s]; zeros if it has ended."""
    ran = waited = 0
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                numbers = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
                ran, waited = ran + int(numbers[0]), waited + int(numbers[1])
    return ran / 1e9, waited / 1e9


def title(pid: int) -> str:
    """Returns the command line of a process, which Ray replaces by what it runs; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def kind_of(process: str) -> str:
    """Returns what a process of the service is called in a report, by its title: its deployment, HAProxy, or Ray."""
    if (replica := REPLICA.search(process)) is not None:
        return replica[1]
    if TEXT_WORKER in process:
        return "TextNormalizer"
    return "HAProxy" if HAPROXY in process else "Ray"


def resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process [bytes]; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
