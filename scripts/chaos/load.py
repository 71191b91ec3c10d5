"""Load: a service above its capacity, with idle sockets, with slow readers. `python -m scripts.chaos.load URL --out load.json`

In:    the address of a running service of this machine
Out:   JSON: goodput, refusals and their times, promises kept, first audio before and afterwards
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil

from scripts.bench.client import SPEECH, Endpoint, Speak, drive, http_speaker
from scripts.bench.processes import CoreWatch, by_kind, listening, usage
from scripts.bench.record import hardware
from scripts.bench.timeline import Timeline, audio_rate, percentile, request_rate
from scripts.bench.workload import Load, Utterance, poisson, repeated, together
from serve.commands.launch.open_files import raise_limit

TEXT = "Five one one, two five five. Nine eight seven, six five four."
DEADLINE_S = 15.0
CLIENTS = 8  # whose work, one request after the other, is the capacity
ANSWERS = 80  # of which the capacity is the rate
PROBES = 12
OPENING = 100  # sockets at the same moment
PATIENCE_S = 120.0
BLOCK = 2048  # bytes that a slow reader takes in a second
REST_S = 5.0  # after a load, until everything should be as before
SAMPLE_S = 5.0
DIGITS = 4


def endpoint(url: str) -> Endpoint:
    """Returns the service, asked for audio by a deadline and never from a cache."""
    fields = {"deadline_ms": round(1e3 * DEADLINE_S), "cache": "no-store"}
    return Endpoint(url, extra=lambda utterance, streamed: fields | {"seed": utterance.seed})


async def probe(speak: Speak) -> list[Timeline]:
    """Returns requests one after the other."""
    return await drive(Load(repeated(TEXT, PROBES), clients=1, timeout_s=PATIENCE_S), speak)


async def first_audio_ms(speak: Speak) -> float:
    """Returns the median time to the first audio of a client alone [ms]."""
    return 1e3 * statistics.median(line.ttfb_s for line in await probe(speak))


async def overload(url: str, times: float, seconds: float, seed: int) -> dict[str, Any]:
    """Returns what became of so many times the capacity."""
    async with http_speaker(endpoint(url)) as speak:
        alone_ms = await first_audio_ms(speak)
        saturated = await drive(Load(repeated(TEXT, ANSWERS), clients=CLIENTS), speak)
        count = sum(line.complete for line in saturated)
        audio_capacity, capacity = audio_rate(saturated, count), request_rate(saturated, count)
        arrivals = poisson(times * capacity, seconds, seed)
        with cores(url) as core_figures:
            lines = await drive(Load(repeated(TEXT, len(arrivals)), arrivals_s=tuple(arrivals), timeout_s=PATIENCE_S), speak)
        await asyncio.sleep(REST_S)
        after_ms = await first_audio_ms(speak)
    complete = [line for line in lines if line.complete]
    refusals = [line for line in lines if line.status not in (0, 200)]
    goodput = sum(line.received_s for line in complete) / max(line.ended_s for line in lines)
    return {
        "capacity_audio_s_per_s": audio_capacity,
        "capacity_replies_per_s": capacity,
        "offered_replies_per_s": len(lines) / seconds,
        "generator_late_s": max(line.sent_s - line.due_s for line in lines),
        "requests": len(lines),
        "heard": sum(line.status == 200 for line in lines),
        "cut": sum(line.status == 200 and not line.complete for line in lines),
        "no_answer": sum(line.status == 0 for line in lines),
        "goodput_of_capacity": goodput / audio_capacity,
        "refused": statuses(refusals),
        "refused_in_our_envelope": sum('"error"' in line.error and '"code"' in line.error for line in refusals),
        **refusal_times(refusals),
        "promises_kept": sum(line.ttfb_s <= DEADLINE_S for line in complete) / max(1, len(complete)),
        "first_audio_alone_ms": alone_ms,
        "first_audio_5_s_later_ms": after_ms,
        "cores": core_figures,
    }


async def burst(url: str, size: int, rounds: int) -> dict[str, Any]:
    """Returns the times of refusals where so many ask at the same moment."""
    lines: list[Timeline] = []
    async with http_speaker(endpoint(url)) as speak:
        for _ in range(rounds):
            lines += await drive(together(repeated(TEXT, size)), speak)
            await asyncio.sleep(2.0)
    refusals = [line for line in lines if line.status not in (0, 200)]
    return {"size": size, "rounds": rounds, "statuses": statuses(lines), **refusal_times(refusals)}


async def idle_sockets(url: str, count: int, seconds: float) -> dict[str, Any]:
    """Returns how many conversations without a message stay open so long, and what a listener beside them notices."""
    sessions = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    async with http_speaker(endpoint(url)) as speak:
        alone_ms, began = await first_audio_ms(speak), time.monotonic()
        async with sessions as session:
            sockets: list[asyncio.Task[Any] | None] = []
            for _ in range(0, count, OPENING):
                sockets += await asyncio.gather(*(open_conversation(session, url) for _ in range(OPENING)))
            opening_s, memory = time.monotonic() - began, memory_mib(url)
            with cores(url) as core_figures:
                await asyncio.sleep(seconds)
            beside = await probe(speak)
            open_sockets = sum(socket is not None and not socket.done() for socket in sockets)
            for socket in filter(None, sockets):
                socket.cancel()
        await asyncio.sleep(REST_S)
        afterwards_ms = await first_audio_ms(speak)
    return {
        "asked": count,
        "opened": sum(socket is not None for socket in sockets),
        "held": open_sockets,
        "opening_s": opening_s,
        "first_audio_alone_ms": alone_ms,
        **beside_figures(beside),
        "first_audio_afterwards_ms": afterwards_ms,
        "memory_mib": memory,
        "cores": core_figures,
    }


async def open_conversation(session: aiohttp.ClientSession, url: str) -> asyncio.Task[Any] | None:
    """Returns the end of a conversation without a message, which answers pings until then; None if it was refused."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            socket = await session.ws_connect(f"{url}/v1/audio/conversation")
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
    return asyncio.create_task(socket.receive())


async def slow_readers(url: str, count: int, seconds: float) -> dict[str, Any]:
    """Returns what becomes of readers that take 2 kB a second, and of a listener beside them, who asks until one is heard."""
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=BLOCK)
    async with http_speaker(endpoint(url)) as speak, session:
        alone_ms, began = await first_audio_ms(speak), time.monotonic()
        readers = [asyncio.create_task(read_slowly(session, url, seed, seconds)) for seed in range(count)]
        answered_after_s, still_reading = None, 0
        for _ in range(round(seconds)):
            await asyncio.sleep(1.0)
            (line,) = await drive(together(repeated(TEXT, 1)), speak)
            if line.complete:
                answered_after_s, still_reading = time.monotonic() - began, sum(not reader.done() for reader in readers)
                break
        await asyncio.sleep(max(0.0, began + seconds / 2 - time.monotonic()))
        beside = await probe(speak)
        reader_statuses = Counter(map(str, await asyncio.gather(*readers)))
        await asyncio.sleep(REST_S)
        afterwards_ms = await first_audio_ms(speak)
    return {
        "readers": count,
        "statuses": dict(reader_statuses),
        "listener_heard_after_s": answered_after_s,
        "still_reading_then": still_reading,
        "first_audio_alone_ms": alone_ms,
        **beside_figures(beside),
        "first_audio_afterwards_ms": afterwards_ms,
    }


async def read_slowly(session: aiohttp.ClientSession, url: str, seed: int, seconds: float) -> int:
    """Requests a long text and takes a block a second; returns the status, 0 without an answer."""
    body = endpoint(url).body(Utterance(TEXT * 6, 0, seed))
    try:
        async with asyncio.timeout(seconds + 60), session.post(url + SPEECH, json=body) as reply:
            for _ in range(round(seconds) if reply.status == 200 else 0):
                await reply.content.read(BLOCK)
                await asyncio.sleep(1.0)
            return reply.status
    except (aiohttp.ClientError, OSError, TimeoutError):
        return 0


def beside_figures(lines: Sequence[Timeline]) -> dict[str, Any]:
    """Returns the answers to a listener beside a load, and the first audio of the complete ones."""
    complete = [line.ttfb_s for line in lines if line.complete]
    return {"beside": statuses(lines), "first_audio_beside_ms": 1e3 * percentile(complete, 50) if complete else None}


def statuses(lines: Sequence[Timeline]) -> dict[str, int]:
    """Returns how many answers had each status."""
    return dict(Counter(str(line.status) for line in lines))


def refusal_times(refusals: Sequence[Timeline]) -> dict[str, float | None]:
    """Returns the time to a refusal [ms]; None where there is none."""
    times = [line.ttfb_s for line in refusals]
    return {f"refusal_p{rank}_ms": 1e3 * percentile(times, rank) if times else None for rank in (50, 95)}


def service_processes(url: str) -> list[psutil.Process]:
    """Returns the processes of the service that listens there, without this one."""
    return [process for process in listening(urlsplit(url).port or 80) if process.pid != os.getpid()]


def memory_mib(url: str) -> dict[str, float]:
    """Returns the resident memory of the service by kind of process [MiB]."""
    groups = by_kind(service_processes(url))
    return {kind: sum(usage(process).rss_mib for process in processes) for kind, processes in sorted(groups.items())}


@contextlib.contextmanager
def cores(url: str) -> Iterator[dict[str, dict[str, float]]]:
    """Yields a table that is filled when the block ends: the cores that each kind of process ran on and waited for."""
    figures: dict[str, dict[str, float]] = {}
    watch = CoreWatch(by_kind(service_processes(url)) | {"clients": [psutil.Process()]}, SAMPLE_S)
    psutil.cpu_percent()  # the next call returns the share since this one
    with watch:
        yield figures
    busy = psutil.cpu_percent() / 100 * (os.cpu_count() or 1)
    figures |= watch.samples.means()
    figures["others"] = {"running": max(0.0, busy - sum(use["running"] for use in figures.values()))}


async def scenarios(options: argparse.Namespace) -> dict[str, Any]:
    """Runs those of the command line."""
    url, report = options.url, {"machine": hardware(), "config": options.config}
    if options.burst:
        report["burst"] = await burst(url, options.burst, rounds=3)
    if options.overload_s:
        report["overload"] = await overload(url, options.times, options.overload_s, options.seed)
    if options.sockets:
        report["idle_sockets"] = await idle_sockets(url, options.sockets, options.sockets_s)
    if options.readers:
        report["slow_readers"] = await slow_readers(url, options.readers, options.readers_s)
    return report


def main() -> int:
    """Runs and reports."""
    parser = argparse.ArgumentParser(prog="python -m scripts.chaos.load", description="More than a service can do.")
    parser.add_argument("url", help="of a running service, such as http://127.0.0.1:8000")
    parser.add_argument("--times", type=float, default=10.0, help="of the measured capacity")
    parser.add_argument("--overload-s", type=float, default=60.0, help="seconds of that; 0: none")
    parser.add_argument("--burst", type=int, default=300, help="requests at the same moment; 0: none")
    parser.add_argument("--sockets", type=int, default=10_000, help="idle conversations; 0: none")
    parser.add_argument("--sockets-s", type=float, default=60.0, help="seconds for which they stay open")
    parser.add_argument("--readers", type=int, default=1000, help="slow readers; 0: none")
    parser.add_argument("--readers-s", type=float, default=30.0, help="seconds for which they read")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", default="", help="the service's configuration, in words, for the report")
    parser.add_argument("--out", type=Path, help="a file for the report; default: stdout")
    options = parser.parse_args()
    list(raise_limit({}, with_haproxy=False))
    report = json.dumps(asyncio.run(scenarios(options)))
    rounded = json.loads(report, parse_float=lambda digits: round(float(digits), DIGITS))
    text = json.dumps(rounded, indent=1) + "\n"
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
