"""Census: what a service holds: slots, places, processes, files, threads, shared memory, records. Taken twice, it shows a leak.

In:    nodes
Out:   Census, and sentences on what there is more of than before
Owns:  nothing
Never: a judgement while work is under way
"""

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import requests

from scripts.chaos.nodes import APP, HAPROXY, PROC, Nodes

TITLES = (
    *(f"ray::ServeReplica:{APP}:{name}" for name in ("Ingress", "TextNormalizer", "AcousticModel", "Vocoder")),
    *("ray::ServeController", "ray::ProxyActor", "ray::HAProxyManager", HAPROXY),
    *("pipeline.text.isolation.worker", "gcs_server", "raylet/raylet"),
)
MORE_FILES, MORE_THREADS = 24, 24  # per process: connections to those who are new, and pools that have grown to their size
ANSWER_S = 30


@dataclass(frozen=True, slots=True)
class Census:
    """What there was at one moment."""

    busy: dict[str, int]
    """slots, waiting sequences, requests and bodies inside: all 0 at rest"""
    processes: dict[str, int]
    """by kind"""
    files: dict[str, int]
    """most open files of one process, by kind"""
    threads: dict[str, int]
    """most threads of one process, by kind"""
    memory_mib: dict[str, int]
    """most resident memory of one process, by kind"""
    shared_memory: int
    """files of /dev/shm that these processes hold open"""
    records: dict[str, int]
    """voices and jobs in the store"""
    zombies: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def take(nodes: Nodes) -> Census:
    """Returns what there is now."""
    found: dict[str, list[int]] = {title: [each.pid for each in nodes.processes(title)] for title in TITLES}
    everyone = {pid for pids in found.values() for pid in pids}
    parents = everyone | {os.getpid()}
    return Census(
        busy=busy(nodes),
        processes={title: len(pids) for title, pids in found.items()},
        files={title: max(map(_open_files, pids), default=0) for title, pids in found.items()},
        threads={title: max((_status(pid, "Threads") for pid in pids), default=0) for title, pids in found.items()},
        memory_mib={title: max((_status(pid, "VmRSS") // 1024 for pid in pids), default=0) for title, pids in found.items()},
        shared_memory=sum(_shared(pid) for pid in everyone),
        records=records(nodes),
        zombies=sum(_is_zombie_of(entry, parents) for entry in os.listdir(PROC) if entry.isdigit()),
    )


def busy(nodes: Nodes) -> dict[str, int]:
    """Returns what is under way: all 0 at rest."""
    health = requests.get(f"{nodes.url}/health", timeout=ANSWER_S).json()
    engines = health["acoustic"]
    return {
        "slots": sum(engine["slots_used"] for engine in engines),
        "waiting": sum(engine["waiting"] for engine in engines),
        "in_flight": health["admission"]["in_flight"],
        "receiving": health["admission"]["receiving"],
    }


def is_at_strength(nodes: Nodes) -> bool:
    """True if every replica answers and nothing is under way."""
    with suppress(requests.RequestException, ValueError, KeyError):
        health = requests.get(f"{nodes.url}/health", timeout=ANSWER_S).json()
        ready = requests.get(f"{nodes.url}/ready", timeout=ANSWER_S).status_code == 200
        full = len(health["acoustic"]) == len(health["vocoder"]) == len(nodes.voices)
        return ready and full and not any(busy(nodes).values())
    return False


def records(nodes: Nodes) -> dict[str, int]:
    """Returns how many records of each kind the store holds."""
    voices = requests.get(f"{nodes.url}/v1/audio/voices", timeout=ANSWER_S).json()
    jobs = requests.get(f"{nodes.url}/v1/audio/jobs?limit=100", timeout=ANSWER_S).json()
    return {"voices": len(voices.get("data", voices.get("voices", []))), "jobs": len(jobs["data"])}


def leaks(before: Census, after: Census) -> list[str]:
    """Returns a sentence for everything that there is more of than there should be."""
    found = [f"{count} {what} still taken" for what, count in after.busy.items() if count]
    for title, count in after.processes.items():
        if count != before.processes[title]:
            found.append(f"{count} processes of {title}, {before.processes[title]} before")
        if after.files[title] > before.files[title] + MORE_FILES:
            found.append(f"{after.files[title]} open files of {title}, {before.files[title]} before")
        if after.threads[title] > before.threads[title] + MORE_THREADS:
            found.append(f"{after.threads[title]} threads of {title}, {before.threads[title]} before")
    if after.records != before.records:
        found.append(f"records in the store: {after.records}, {before.records} before")
    if after.shared_memory > before.shared_memory + len(TITLES):
        found.append(f"{after.shared_memory} files of shared memory, {before.shared_memory} before")
    if after.zombies > before.zombies:
        found.append(f"{after.zombies} zombies, {before.zombies} before")
    return found


def _open_files(pid: int) -> int:
    with suppress(OSError):
        return len(os.listdir(PROC / str(pid) / "fd"))
    return 0


def _shared(pid: int) -> int:
    count = 0
    with suppress(OSError):
        for entry in os.scandir(PROC / str(pid) / "fd"):
            with suppress(OSError):
                count += os.readlink(entry.path).startswith("/dev/shm/")
    return count


def _status(pid: int, name: str) -> int:
    with suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    return 0


def _is_zombie_of(entry: str, parents: set[int]) -> bool:
    with suppress(OSError, ValueError):
        state, parent = (PROC / entry / "stat").read_text().rpartition(")")[2].split()[:2]
        return state == "Z" and int(parent) in parents
    return False
