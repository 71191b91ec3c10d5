"""Load: a service above its capacity, with idle sockets, with slow readers. `python -m scripts.chaos.load URL --out load.json`

In:    the address of a running service
Out:   JSON: goodput, refusals and their times, promises kept, first audio before and afterwards
Owns:  the clients, on sockets of their own: what they cost the machine is little beside the service
Never: a client that waits for the one before: arrivals are drawn, and come whether there is room or not
"""

import argparse
import asyncio
import json
import random
import resource
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TEXT = "Five one one, two five five. Nine eight seven, six five four."
DEADLINE_S = 15.0
RATE = 48_000  # bytes of pcm a second
CLIENTS = 8  # whose work, one request after the other, is the capacity
MEASURE_S = 15.0
PROBES = 12
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client saw."""

    status: int
    """0: the connection was not taken, or ended without a status"""
    head_s: float
    """from sending to the status line"""
    audio_s: float
    """seconds of audio in a body that came to its end; 0 otherwise"""
    is_ours: bool = True
    """whether a refusal has our envelope"""


class Target:
    """A service, asked over plain sockets."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self._seeds = iter(range(1, 1 << 30))

    def request(self, text: str = TEXT) -> bytes:
        """Returns the bytes of a request that no cache answers."""
        fields = {"input": text, "seed": next(self._seeds) % 50, "response_format": "pcm", "cache": "no-store"}
        body = json.dumps({**fields, "deadline_ms": round(1e3 * DEADLINE_S)}).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def speak(self) -> Reply:
        """Asks, and listens to the end."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(self.host, self.port)
                try:
                    writer.write(self.request())
                    head = await reader.readuntil(b"\r\n\r\n")
                    head_s = time.perf_counter() - began
                    body = await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return Reply(0, time.perf_counter() - began, 0.0)
        status = int(head.split()[1])
        if status != 200:
            return Reply(status, head_s, 0.0, b'"error"' in body and b'"code"' in body)
        is_whole = body.endswith(b"0\r\n\r\n")
        return Reply(status, head_s, len(body) / RATE if is_whole else 0.0)

    async def holds_socket(self) -> asyncio.StreamWriter | None:
        """Returns an open conversation that says nothing; None if it was refused."""
        try:
            async with asyncio.timeout(30):
                reader, writer = await asyncio.open_connection(self.host, self.port)
                writer.write(f"GET /v1/audio/conversation HTTP/1.1\r\nHost: {self.host}\r\n{UPGRADE}\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                return writer if b" 101 " in head.splitlines()[0] else None
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return None

    async def reads_slowly(self, seconds: float) -> int:
        """Asks for a long text and takes 2 kB a second; returns the status."""
        try:
            async with asyncio.timeout(seconds + 60):
                reader, writer = await asyncio.open_connection(self.host, self.port, limit=2048)
                try:
                    writer.write(self.request(TEXT * 6))
                    status = int((await reader.readuntil(b"\r\n\r\n")).split()[1])
                    for _ in range(round(seconds) if status == 200 else 0):
                        await reader.read(2048)
                        await asyncio.sleep(1.0)
                    return status
                finally:
                    writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return 0


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
    draws, tasks, began = random.Random(seed), [], time.monotonic()
    at = 0.0
    while (at := at + draws.expovariate(times * reply_rate)) < seconds:
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        tasks.append(asyncio.create_task(target.speak()))
    late_s = time.monotonic() - began - seconds
    replies = await asyncio.gather(*tasks)
    took = time.monotonic() - began
    await asyncio.sleep(5.0)
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


async def idle_sockets(target: Target, count: int) -> dict[str, Any]:
    """Returns how many conversations that say nothing are taken, and what a listener beside them notices."""
    alone_s, held = await first_audio(target), list[asyncio.StreamWriter | None]()
    try:
        for _ in range(0, count, 100):
            held += await asyncio.gather(*(target.holds_socket() for _ in range(100)))
        beside_s = await first_audio(target)
    finally:
        for writer in filter(None, held):
            writer.close()
    await asyncio.sleep(5.0)
    return {
        "asked": count,
        "held": sum(writer is not None for writer in held),
        "first_audio_alone_ms": round(1e3 * alone_s, 1),
        "first_audio_beside_ms": round(1e3 * beside_s, 1),
        "first_audio_afterwards_ms": round(1e3 * await first_audio(target), 1),
    }


async def slow_readers(target: Target, count: int, seconds: float) -> dict[str, Any]:
    """Returns what becomes of readers that take 2 kB a second, and of a listener beside them."""
    alone_s = await first_audio(target)
    reading = [asyncio.create_task(target.reads_slowly(seconds)) for _ in range(count)]
    await asyncio.sleep(seconds / 2)
    beside = [await target.speak() for _ in range(PROBES)]
    statuses = Counter(map(str, await asyncio.gather(*reading)))
    await asyncio.sleep(5.0)
    heard = [reply.head_s for reply in beside if reply.status == 200]
    return {
        "readers": count,
        "statuses": dict(statuses),
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
    target, report = Target(options.url), dict[str, Any]()
    if options.burst:
        report["burst"] = await burst(target, options.burst, rounds=3)
    if options.overload_s:
        report["overload"] = await overload(target, options.times, options.overload_s, options.seed)
    if options.sockets:
        report["idle_sockets"] = await idle_sockets(target, options.sockets)
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
    parser.add_argument("--readers", type=int, default=1000, help="slow readers; 0: none")
    parser.add_argument("--readers-s", type=float, default=30.0, help="seconds for which they read")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a file for the report; default: stdout")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    text = json.dumps(asyncio.run(scenarios(options)), indent=1) + "\n"
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
