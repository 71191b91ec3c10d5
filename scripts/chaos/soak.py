"""Soak: very many requests of many voices and seeds, each compared with its twin; memory, files and threads over time.

    python -m scripts.chaos.soak http://127.0.0.1:8000 --requests 100000 --state soak.json     # again: it goes on where it was

In:    the address of a running service of this machine, a state that an earlier piece left
Out:   the state, with the digests of the twins and the samples of the processes; a plot beside it
Owns:  the state file
Never: a request without its twin: the first of its kind is heard twice, and all later ones are compared with it
"""

import argparse
import asyncio
import hashlib
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from matplotlib.figure import Figure

from pipeline.durable_file import write_durably
from scripts.launch.processes import Process, listeners, members, processes

TEXTS = ("Five one one.", "Two five five, nine.", "Hello there.", "Nine eight seven six.")
KINDS = 2000  # voices and seeds, one of each to a kind
CLIENTS = 8
SAMPLE_S = 10.0
RETRY_S = 0.5
REFUSALS = (429, 503)
REQUEST_S = 120.0
SETTLED_S = 60.0  # every pool and buffer of a service that has just started is in use by then
HELD = {"rss_mib": "memory [MiB]", "files": "open files", "threads": "threads"}
"""what is sampled of every process -> its label"""


@dataclass
class State:
    """What a soak knows after its pieces so far."""

    done: int = 0
    """requests that were heard to their end and compared"""
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    refused: int = 0
    twins: dict[str, str] = field(default_factory=dict)
    """kind -> SHA-256 of what its first request sounded like, when it was heard again"""
    seconds: float = 0.0
    samples: list[dict[str, Any]] = field(default_factory=list)
    """`at_s`, `done`, and by process `rss_mib`, `files`, `threads`"""


def request_of(kind: int) -> dict[str, Any]:
    """Returns the body of a kind's request: a voice and a seed of its own."""
    text = TEXTS[kind % len(TEXTS)]
    return {"input": text, "voice": f"seed:{kind}", "seed": kind, "response_format": "pcm", "cache": "no-store"}


async def soak(url: str, state: State, requests: int, most_s: float, save: Path) -> None:
    """Goes on until so many requests were made in all, or this piece has taken so long [s]."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        began, before_s = time.monotonic(), state.seconds
        numbers = iter(range(state.done, requests))
        over = asyncio.Event()

        async def hear(kind: int) -> str | None:
            while True:
                try:
                    async with session.post(f"{url}/v1/audio/speech", json=request_of(kind)) as reply:
                        if reply.status == 200:
                            return hashlib.sha256(await reply.read()).hexdigest()
                        if reply.status not in REFUSALS:
                            state.failed.append(f"kind {kind}: {reply.status} {(await reply.text())[:200]}")
                            return None
                except (aiohttp.ClientError, TimeoutError) as error:
                    state.failed.append(f"kind {kind}: {error!r}")
                    return None
                state.refused += 1
                await asyncio.sleep(RETRY_S)

        async def client() -> None:
            for number in numbers:
                if time.monotonic() - began > most_s:
                    return
                kind = number * 7919 % KINDS  # a prime: neighbours differ, and every kind comes as often
                heard = await hear(kind)
                twin = state.twins.get(str(kind))
                if twin is None and (twin := await hear(kind)) is not None:  # the first: heard again, beside whoever is there
                    state.twins[str(kind)] = twin
                if None not in (heard, twin) and heard != twin:  # None: it failed, which is counted already
                    state.wrong.append(f"kind {kind}, request {number}")
                state.done += 1

        async def watch() -> None:
            found = service_processes(url)
            while not over.is_set():
                state.seconds = before_s + time.monotonic() - began
                state.samples.append({"at_s": round(state.seconds, 1), "done": state.done, **sample(found)})
                write_state(save, state)
                for _ in range(round(SAMPLE_S)):
                    if not over.is_set():
                        await asyncio.sleep(1.0)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        over.set()
        await watching
    write_state(save, state)


def service_processes(url: str) -> list[Process]:
    """Returns the processes of the service that listens there: Ray's and its replicas."""
    port = urlsplit(url).port or 80
    holders = [found.pid for found in listeners() if found.port == port]
    sessions = {found.session for found in processes() if found.pid in holders}
    return [found for session in sessions for found in members(session)]


def sample(found: list[Process]) -> dict[str, dict[str, float]]:
    """Returns resident memory [MiB], open files and threads, by process."""
    memory, files, threads = dict[str, float](), dict[str, float](), dict[str, float]()
    for each in found:
        name = each.command().split("ray::")[-1].split()[0].rpartition("/")[2] if each.command() else each.name
        name = f"{name.removeprefix('ServeReplica:')} {each.pid}"
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{each.pid}/status").read_text().splitlines())
            memory[name] = round(int(status["VmRSS"].split()[0]) / 1024, 1)
            threads[name] = int(status["Threads"])
            files[name] = len(list(Path(f"/proc/{each.pid}/fd").iterdir()))
        except (OSError, KeyError):
            continue  # it has ended, or is no process with memory
    return {"rss_mib": memory, "files": files, "threads": threads}


def read_state(path: Path) -> State:
    """Returns what earlier pieces left; a new state if there is none."""
    return State(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else State()


def write_state(path: Path, state: State) -> None:
    write_durably(path, (json.dumps(asdict(state)) + "\n").encode(), mode=0o644)


def of_one_service(samples: list[dict[str, Any]], after_s: float = 0.0) -> list[dict[str, Any]]:
    """Returns the samples of the service that was watched longest, without those of its first `after_s` [s].

    A later piece may ask a service that was started anew: it shares no process with the one before.
    """
    services: list[list[dict[str, Any]]] = []
    for one in samples:
        if not services or not services[-1][-1]["rss_mib"].keys() & one["rss_mib"].keys():
            services.append([])
        services[-1].append(one)
    longest = max(services, key=lambda service: service[-1]["at_s"] - service[0]["at_s"], default=[])
    return [one for one in longest if one["at_s"] - longest[0]["at_s"] >= after_s]


def drift_percent_an_hour(state: State, after_s: float) -> float | None:
    """Returns the growth of the sum of all memory per hour, by least squares, after a service's first `after_s` [%/h]."""
    points = [(one["at_s"], sum(one["rss_mib"].values())) for one in of_one_service(state.samples, after_s)]
    if len(points) < 10:
        return None
    mean_t, mean_m = (sum(values) / len(points) for values in zip(*points, strict=True))
    slope = sum((t - mean_t) * (m - mean_m) for t, m in points) / sum((t - mean_t) ** 2 for t, _ in points)
    return round(float(100 * slope * 3600 / mean_m), 2)


def summary(state: State) -> dict[str, Any]:
    """Returns what there is to say without the digests and the samples; sums are those of all processes of one service."""
    watched = of_one_service(state.samples, SETTLED_S)
    held = {name: [round(sum(one[name].values())) for one in watched] for name in HELD}
    return {
        "requests": state.done,
        "kinds": len(state.twins),
        "wrong": len(state.wrong),
        "failed": len(state.failed),
        "refused": state.refused,
        "hours": round(state.seconds / 3600, 3),
        "memory_percent_an_hour_after_the_first": drift_percent_an_hour(state, 3600),
        **{
            name: {"after_a_minute": values[0], "last": values[-1], "most": max(values)}
            for name, values in held.items()
            if values
        },
    }


def plot(state: State, path: Path) -> None:
    """Draws memory, files and threads of all processes together over time."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    hours = [one["at_s"] / 3600 for one in state.samples]
    axes = figure.subplots(3, 1, sharex=True)
    for axis, (name, label) in zip(axes, HELD.items(), strict=True):
        sums = [sum(one[name].values()) for one in state.samples]
        axis.plot(hours, sums)
        axis.set_ylabel(label)
        axis.set_ylim(0, 1.1 * max(sums))
        axis.grid(visible=True, alpha=0.3)
    axes[-1].set_xlabel("hours")
    axes[0].set_title(f"{state.done} requests of {len(state.twins)} voices and seeds, {len(state.wrong)} with other bytes")
    figure.savefig(path, dpi=90)


def main() -> int:
    """Runs a piece; exit code 1 if a request had other bytes than its twin, or failed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.chaos.soak", description="Very many requests, each compared.")
    parser.add_argument("url", help="of a running service of this machine, such as http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=100_000, help="in all pieces together")
    parser.add_argument("--minutes", type=float, default=1e9, help="of this piece, at most")
    parser.add_argument("--state", type=Path, required=True, help="a file: what is known so far; a plot is drawn beside it")
    parser.add_argument("--out", type=Path, help="a file for the summary, which is printed in any case")
    options = parser.parse_args()
    state = read_state(options.state)
    asyncio.run(soak(options.url, state, options.requests, options.minutes * 60, options.state))
    plot(state, options.state.with_suffix(".png"))
    text = json.dumps(summary(state), indent=1) + "\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    return int(bool(state.wrong or state.failed))


if __name__ == "__main__":
    sys.exit(main())
