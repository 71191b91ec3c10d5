"""Load: a service above its capacity, with idle sockets, with slow readers. `python -m scripts.chaos.load URL --out load.json`

In:    the address of a running service
Out:   JSON: goodput, refusals and their times, promises kept, first audio before and afterwards
Owns:  when clients come, and how many
Never: a client that waits for the one before: arrivals are drawn, and come whether there is room or not
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from scripts.bench.processes import kind_of, resident_bytes, title
from scripts.bench.record import hardware
from scripts.chaos.clients import DEADLINE_S, IdleSocket, Reply, Target
from scripts.chaos.cores import Cores
from scripts.chaos.soak import service_processes
from scripts.launch.open_files import raise_limit

CLIENTS = 8  # whose work, one request after the other, is the capacity
MEASURE_S = 15.0
PROBES = 12
OPENING = 100  # sockets at the same moment
REST_S = 5.0  # after a load, until everything should be as before


async def first_audio(target: Target) -> float:
    """Returns the median time to the head of a reply of a client alone [s]."""
    return statistics.median([(await target.speak()).head_s for _ in range(PROBES)])


async def capacity(target: Target, clients: int = CLIENTS, seconds: float = MEASURE_S) -> tuple[float, float]:
    """Returns seconds of audio per second, and replies per second, of clients that ask one after the other."""
    replies: list[Reply] = []
    until = time.monotonic() + seconds

    async def ask() -> None:
        while time.monotonic() < until:
            replies.append(await target.speak())

    began = time.monotonic()
    await asyncio.gather(*(ask() for _ in range(clients)))
    took = time.monotonic() - began
    return sum(reply.audio_s for reply in replies) / took, sum(reply.audio_s > 0 for reply in replies) / took


async def overload(target: Target, times: float, seconds: float, seed: int) -> dict[str, Any]:
    """Returns what became of so many times the capacity."""
    alone_s = await first_audio(target)
    audio_rate, reply_rate = await capacity(target)
    draws, tasks = random.Random(seed), list[asyncio.Task[Reply]]()
    with Cores(target.url) as cores:
        began, at = time.monotonic(), 0.0
        while (at := at + draws.expovariate(times * reply_rate)) < seconds:
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            tasks.append(asyncio.create_task(target.speak()))
        late_s = time.monotonic() - began - seconds
        replies = await asyncio.gather(*tasks)
        took = time.monotonic() - began
    await asyncio.sleep(REST_S)
    after_s = await first_audio(target)
    heard = [reply for reply in replies if reply.status == 200]
    refused = [reply for reply in replies if reply.status not in (0, 200)]
    return {
        "capacity_audio_s_per_s": round(audio_rate, 2),
        "capacity_replies_per_s": round(reply_rate, 2),
        "offered_replies_per_s": round(len(replies) / seconds, 2),
        "generator_late_s": round(late_s, 2),
        "requests": len(replies),
        "heard": len(heard),
        "cut": sum(reply.audio_s == 0 for reply in heard),
        "no_answer": sum(reply.status == 0 for reply in replies),
        "goodput_of_capacity": round(sum(reply.audio_s for reply in replies) / took / audio_rate, 3),
        "refused": dict(Counter(str(reply.status) for reply in refused)),
        "refused_in_our_envelope": sum(reply.is_ours for reply in refused),
        "refusal_p50_ms": _percentile([reply.head_s for reply in refused], 0.5),
        "refusal_p95_ms": _percentile([reply.head_s for reply in refused], 0.95),
        "promises_kept": round(sum(reply.head_s <= DEADLINE_S for reply in heard) / max(1, len(heard)), 4),
        "first_audio_alone_ms": round(1e3 * alone_s, 1),
        "first_audio_5_s_later_ms": round(1e3 * after_s, 1),
        "cores": cores.by_kind,
    }


async def burst(target: Target, size: int, rounds: int) -> dict[str, Any]:
    """Returns the times of refusals where so many ask at the same moment."""
    replies: list[Reply] = []
    for _ in range(rounds):
        replies += await asyncio.gather(*(target.speak() for _ in range(size)))
        await asyncio.sleep(2.0)
    refused = [reply.head_s for reply in replies if reply.status not in (0, 200)]
    return {
        "size": size,
        "rounds": rounds,
        "statuses": dict(Counter(str(reply.status) for reply in replies)),
        "refusal_p50_ms": _percentile(refused, 0.5),
        "refusal_p95_ms": _percentile(refused, 0.95),
    }


async def idle_sockets(target: Target, count: int, seconds: float) -> dict[str, Any]:
    """Returns how many conversations that say nothing are held so long, and what a listener beside them notices."""
    alone_s, opened = await first_audio(target), list[IdleSocket | None]()
    began = time.monotonic()
    try:
        for _ in range(0, count, OPENING):
            opened += await asyncio.gather(*(target.open_socket() for _ in range(OPENING)))
        opening_s = time.monotonic() - began
        memory = service_memory_mib(target.url)
        with Cores(target.url) as cores:
            await asyncio.sleep(seconds)
        beside = [await target.speak() for _ in range(PROBES)]
        held = sum(client is not None and client.is_open for client in opened)
    finally:
        for client in filter(None, opened):
            client.close()
    await asyncio.sleep(REST_S)
    return {
        "asked": count,
        "opened": sum(client is not None for client in opened),
        "held": held,
        "opening_s": round(opening_s, 1),
        "beside": dict(Counter(str(reply.status) for reply in beside)),
        "first_audio_alone_ms": round(1e3 * alone_s, 1),
        "first_audio_beside_ms": _percentile([reply.head_s for reply in beside if reply.status == 200], 0.5),
        "first_audio_afterwards_ms": round(1e3 * await first_audio(target), 1),
        "memory_mib": memory,
        "cores": cores.by_kind,
    }


def service_memory_mib(url: str) -> dict[str, float]:
    """Returns the resident memory of the service by kind of process [MiB]."""
    found = Counter[str]()
    for each in service_processes(url):
        found[kind_of(title(each.pid))] += resident_bytes(each.pid)
    return {kind: round(size / (1 << 20), 1) for kind, size in sorted(found.items())}


async def slow_readers(target: Target, count: int, seconds: float) -> dict[str, Any]:
    """Returns what becomes of readers that take 2 kB a second, and of a listener beside them, who asks until he is heard."""
    alone_s = await first_audio(target)
    began = time.monotonic()
    reading = [asyncio.create_task(target.reads_slowly(seconds)) for _ in range(count)]
    heard_after_s, still_reading = None, 0
    for _ in range(round(seconds)):
        await asyncio.sleep(1.0)
        if (await target.speak()).status == 200:
            heard_after_s, still_reading = round(time.monotonic() - began, 1), sum(not task.done() for task in reading)
            break
    await asyncio.sleep(max(0.0, began + seconds / 2 - time.monotonic()))
    beside = [await target.speak() for _ in range(PROBES)]
    statuses = Counter(map(str, await asyncio.gather(*reading)))
    await asyncio.sleep(5.0)
    heard = [reply.head_s for reply in beside if reply.status == 200]
    return {
        "readers": count,
        "statuses": dict(statuses),
        "listener_heard_after_s": heard_after_s,
        "still_reading_then": still_reading,
        "beside": dict(Counter(str(reply.status) for reply in beside)),
        "first_audio_alone_ms": round(1e3 * alone_s, 1),
        "first_audio_beside_ms": _percentile(heard, 0.5),
        "first_audio_afterwards_ms": round(1e3 * await first_audio(target), 1),
    }


def _percentile(values: list[float], share: float) -> float | None:
    """Returns milliseconds; None where there is nothing to say."""
    return round(1e3 * sorted(values)[min(len(values) - 1, int(share * len(values)))], 1) if values else None


async def scenarios(options: argparse.Namespace) -> dict[str, Any]:
    """Runs those that were asked for."""
    target, report = Target(options.url), {"machine": hardware(), "config": options.config}
    if options.burst:
        report["burst"] = await burst(target, options.burst, rounds=3)
    if options.overload_s:
        report["overload"] = await overload(target, options.times, options.overload_s, options.seed)
    if options.sockets:
        report["idle_sockets"] = await idle_sockets(target, options.sockets, options.sockets_s)
    if options.readers:
        report["slow_readers"] = await slow_readers(target, options.readers, options.readers_s)
    return report


def main() -> int:
    """Runs and reports."""
    parser = argparse.ArgumentParser(prog="python -m scripts.chaos.load", description="More than a service can do.")
    parser.add_argument("url", help="of a running service, such as http://127.0.0.1:8000")
    parser.add_argument("--times", type=float, default=10.0, help="of the measured capacity")
    parser.add_argument("--overload-s", type=float, default=60.0, help="seconds of that; 0: none")
    parser.add_argument("--burst", type=int, default=300, help="requests at the same moment; 0: none")
    parser.add_argument("--sockets", type=int, default=10_000, help="idle conversations; 0: none")
    parser.add_argument("--sockets-s", type=float, default=60.0, help="seconds for which they are held")
    parser.add_argument("--readers", type=int, default=1000, help="slow readers; 0: none")
    parser.add_argument("--readers-s", type=float, default=30.0, help="seconds for which they read")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", default="", help="what the report says about the service's configuration")
    parser.add_argument("--out", type=Path, help="a file for the report; default: stdout")
    options = parser.parse_args()
    list(raise_limit({}, with_haproxy=False))
    text = json.dumps(asyncio.run(scenarios(options)), indent=1) + "\n"
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
