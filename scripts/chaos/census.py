"""Census: what a service holds: slots, places, processes, files, threads, shared memory, records. Taken twice, it shows a leak.

In:    nodes
Out:   Census, and sentences on what there is more of than before
Never: a judgement while work is under way
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import requests

from scripts.bench.client import activity, health
from scripts.bench.processes import Usage, usage
from scripts.chaos.nodes import APP, HAPROXY, Nodes

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
    """files of /dev/shm that these processes have open"""
    records: dict[str, int]
    """voices and jobs in the store"""
    zombies: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def take(nodes: Nodes) -> Census:
    """Returns what there is now."""
    groups = {title: nodes.processes(title) for title in TITLES}
    most = {title: _most([usage(process) for process in group]) for title, group in groups.items()}
    pids = {process.pid for group in groups.values() for process in group}
    return Census(
        busy=activity(health(nodes.url)),
        processes={title: len(group) for title, group in groups.items()},
        files={title: use.files for title, use in most.items()},
        threads={title: use.threads for title, use in most.items()},
        memory_mib={title: round(use.rss_mib) for title, use in most.items()},
        shared_memory=sum(map(_shared, pids)),
        records=records(nodes),
        zombies=sum(
            process.info["status"] == psutil.STATUS_ZOMBIE and process.info["ppid"] in pids | {os.getpid()}
            for process in psutil.process_iter(["status", "ppid"])
        ),
    )


def is_at_strength(nodes: Nodes) -> bool:
    """True if every replica answers and nothing is under way."""
    with suppress(requests.RequestException, ValueError, KeyError):
        state = health(nodes.url)
        ready = requests.get(f"{nodes.url}/ready", timeout=ANSWER_S).status_code == 200
        full = len(state["acoustic"]) == len(state["vocoder"]) == len(nodes.voices)
        return ready and full and not any(activity(state).values())
    return False


def records(nodes: Nodes) -> dict[str, int]:
    """Returns how many records of each kind the store has."""
    voices = requests.get(f"{nodes.url}/v1/audio/voices", timeout=ANSWER_S).json()
    jobs = requests.get(f"{nodes.url}/v1/audio/jobs?limit=100", timeout=ANSWER_S).json()
    return {"voices": len(voices.get("data", voices.get("voices", []))), "jobs": len(jobs["data"])}


def leaks(before: Census, after: Census) -> list[str]:
    """Returns a sentence for everything that there is more of than there should be."""
    sentences = [f"{count} {name} still taken" for name, count in after.busy.items() if count]
    for title, count in after.processes.items():
        if count != before.processes[title]:
            sentences.append(f"{count} processes of {title}, {before.processes[title]} before")
        if after.files[title] > before.files[title] + MORE_FILES:
            sentences.append(f"{after.files[title]} open files of {title}, {before.files[title]} before")
        if after.threads[title] > before.threads[title] + MORE_THREADS:
            sentences.append(f"{after.threads[title]} threads of {title}, {before.threads[title]} before")
    if after.records != before.records:
        sentences.append(f"records in the store: {after.records}, {before.records} before")
    if after.shared_memory > before.shared_memory + len(TITLES):
        sentences.append(f"{after.shared_memory} files of shared memory, {before.shared_memory} before")
    if after.zombies > before.zombies:
        sentences.append(f"{after.zombies} zombies, {before.zombies} before")
    return sentences


def _most(usages: Sequence[Usage]) -> Usage:
    """Returns the most of each figure; zeros where there is no process."""
    return Usage(*(max(column) for column in zip(Usage(0.0, 0, 0), *usages, strict=True)))


def _shared(pid: int) -> int:
    count = 0
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):  # Ray unlinks its files, and psutil names no unlinked file
            with suppress(OSError):
                count += os.readlink(entry.path).startswith("/dev/shm/")
    return count
