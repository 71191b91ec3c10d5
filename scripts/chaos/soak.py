"""Soak: very many requests of many voices and seeds, each compared with its twin; memory, files and threads over time.

    python -m scripts.chaos.soak http://127.0.0.1:8000 --requests 100000 --state soak.json     # again: it goes on where it was

In:    the address of a running service of this machine, a state that an earlier piece left
Out:   the state, with the digests of the twins and the samples of the processes
Owns:  the state file
Never: a request without its twin: the first of its kind is sent twice, and all later ones are compared with it
"""

import argparse
import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil

from pipeline.durable_file import write_durably
from scripts.bench.client import Endpoint, http_speaker, listen
from scripts.bench.processes import Usage, listening, title, usage
from scripts.bench.timeline import REFUSALS, Timeline
from scripts.bench.workload import Utterance

TEXTS = ("Five one one.", "Two five five, nine.", "Hello there.", "Nine eight seven six.")
KINDS = 2000  # a voice and a seed of its own to each
CLIENTS = 8
SAMPLE_S = 10.0
RETRY_S = 0.5
REQUEST_S = 120.0
SETTLED_S = 60.0  # every pool and buffer of a service that has just started is in use by then
LEAST_SAMPLES = 10


@dataclass
class State:
    """What a soak knows after its pieces so far."""

    done: int = 0
    """requests that were received to their end and compared"""
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    refused: int = 0
    twins: dict[str, str] = field(default_factory=dict)
    """kind -> digest of the audio of its first request, when it was sent again"""
    seconds: float = 0.0
    samples: list[dict[str, Any]] = field(default_factory=list)
    """`at_s`, `done`, and by process `rss_mib`, `files`, `threads`"""


def fields(utterance: Utterance, streamed: bool) -> dict[str, object]:
    """Returns the fields of a kind's request: a voice and a seed of its own."""
    return {"voice": f"seed:{utterance.seed}", "seed": utterance.seed, "cache": "no-store"}


async def soak(url: str, state: State, requests: int, most_s: float, path: Path) -> None:
    """Goes on until so many requests were sent in all, or this piece has run for so long [s]."""
    began, before_s = time.monotonic(), state.seconds
    numbers = iter(range(state.done, requests))
    over = asyncio.Event()

    async def client() -> None:
        for number in numbers:
            if time.monotonic() - began > most_s:
                return
            kind = number * 7919 % KINDS  # a prime: neighbours differ, and every kind comes as often
            digest = await digest_of(kind)
            twin = state.twins.get(str(kind))
            if twin is None and (twin := await digest_of(kind)) is not None:  # sent again, beside whoever is there
                state.twins[str(kind)] = twin
            if None not in (digest, twin) and digest != twin:  # None: it failed, which is counted already
                state.wrong.append(f"kind {kind}, request {number}")
            state.done += 1

    async def digest_of(kind: int) -> str | None:
        utterance = Utterance(TEXTS[kind % len(TEXTS)], 0, kind)
        while True:
            line = Timeline(kind)
            await listen(line, utterance, speak, time.monotonic, timeout_s=REQUEST_S)
            if line.complete:
                return line.md5
            if line.status not in REFUSALS:
                state.failed.append(f"kind {kind}: {line.error[:200] or 'an incomplete answer'}")
                return None
            state.refused += 1
            await asyncio.sleep(RETRY_S)

    async def watch() -> None:
        processes = listening(urlsplit(url).port or 80)
        while not over.is_set():
            state.seconds = before_s + time.monotonic() - began
            state.samples.append({"at_s": round(state.seconds, 1), "done": state.done, **sample(processes)})
            write_state(path, state)
            for _ in range(round(SAMPLE_S)):
                if not over.is_set():
                    await asyncio.sleep(1.0)

    async with http_speaker(Endpoint(url, extra=fields)) as speak:
        watching = asyncio.create_task(watch())
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        over.set()
        await watching
    write_state(path, state)


def sample(processes: list[psutil.Process]) -> dict[str, dict[str, float]]:
    """Returns resident memory [MiB], open files and threads, by process."""
    usages = {f"{name_of(process)} {process.pid}": usage(process) for process in processes}
    running = {name: use for name, use in usages.items() if use.rss_mib}
    return {figure: {name: getattr(use, figure) for name, use in running.items()} for figure in Usage._fields}


def name_of(process: psutil.Process) -> str:
    """Returns the last part of a program's path, or what Ray runs in it."""
    program = (title(process).split("ray::")[-1].split() or [""])[0]
    return program.rpartition("/")[2].removeprefix("ServeReplica:")


def read_state(path: Path) -> State:
    """Returns what earlier pieces left; a new state if there is none."""
    return State(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else State()


def write_state(path: Path, state: State) -> None:
    """Writes the state, whole or not at all."""
    write_durably(path, (json.dumps(asdict(state)) + "\n").encode(), mode=0o644)


def of_longest_service(samples: list[dict[str, Any]], after_s: float = 0.0) -> list[dict[str, Any]]:
    """Returns the samples of the service that was watched longest, without those of its first `after_s` [s].

    A later piece may ask a service that was started anew: it shares no process with the one before.
    """
    services: list[list[dict[str, Any]]] = []
    for entry in samples:
        if not services or not services[-1][-1]["rss_mib"].keys() & entry["rss_mib"].keys():
            services.append([])
        services[-1].append(entry)
    longest = max(services, key=lambda service: service[-1]["at_s"] - service[0]["at_s"], default=[])
    return [entry for entry in longest if entry["at_s"] - longest[0]["at_s"] >= after_s]


def drift_percent_an_hour(state: State, after_s: float) -> float | None:
    """Returns the growth of the sum of all memory per hour, by least squares, after a service's first `after_s` [%/h]."""
    points = [(entry["at_s"] / 3600, sum(entry["rss_mib"].values())) for entry in of_longest_service(state.samples, after_s)]
    if len(points) < LEAST_SAMPLES:
        return None
    hours, sizes = np.array(points).T
    return round(float(100 * np.polyfit(hours, sizes, 1)[0] / sizes.mean()), 2)


def summary(state: State) -> dict[str, Any]:
    """Returns the figures without the digests and the samples; sums are those of all processes of one service."""
    watched = of_longest_service(state.samples, SETTLED_S)
    sums = {name: [round(sum(entry[name].values())) for entry in watched] for name in Usage._fields if watched}
    return {
        "requests": state.done,
        "kinds": len(state.twins),
        "wrong": len(state.wrong),
        "failed": len(state.failed),
        "refused": state.refused,
        "hours": round(state.seconds / 3600, 3),
        "memory_percent_an_hour_after_the_first": drift_percent_an_hour(state, 3600),
        **{name: {"after_a_minute": values[0], "last": values[-1], "most": max(values)} for name, values in sums.items()},
    }


def main() -> int:
    """Runs a piece; exit code 1 if a request had other bytes than its twin, or failed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.chaos.soak", description="Very many requests, each compared.")
    parser.add_argument("url", help="of a running service of this machine, such as http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=100_000, help="in all pieces together")
    parser.add_argument("--minutes", type=float, default=1e9, help="of this piece, at most")
    parser.add_argument("--state", type=Path, required=True, help="a file: what is known so far")
    parser.add_argument("--out", type=Path, help="a file for the summary, which is printed in any case")
    options = parser.parse_args()
    state = read_state(options.state)
    asyncio.run(soak(options.url, state, options.requests, options.minutes * 60, options.state))
    text = json.dumps(summary(state), indent=1) + "\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    return int(bool(state.wrong or state.failed))


if __name__ == "__main__":
    sys.exit(main())
