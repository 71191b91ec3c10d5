"""Load: asks a system for utterances, at a pace, and writes down what is heard.

In:    a Load, and a way to speak
Out:   Timelines, one a request that was sent
Owns:  the clock of one load
Never: which system it is: the same code runs beside an engine in its own process and before an HTTP server
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from scripts.bench.timeline import AUDIBLE, Timeline
from scripts.bench.workload import Utterance

BYTES_PER_SAMPLE = 2


class Refused(Exception):
    """The system would not take the request."""

    def __init__(self, status: int, retry_after_s: float | None) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.retry_after_s = retry_after_s


Sent = Callable[[], None]
"""to be called once the request has left"""
Speak = Callable[[Utterance, bool, Sent], AsyncGenerator[bytes, None]]
"""(what, streamed, sent): pieces of 16-bit samples; raises Refused"""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked, and when."""

    utterances: tuple[Utterance, ...]
    clients: int | None = None
    """closed loop: so many ask, each again once it is answered; None: open loop"""
    arrivals_s: tuple[float, ...] = ()
    """open loop: when each utterance is asked for"""
    completions: int | None = None
    """the load ends with so many complete answers: whoever is still under way hangs up"""
    streamed: bool = True
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.clients is None and len(self.arrivals_s) != len(self.utterances):
            raise ValueError(f"{len(self.arrivals_s)} arrivals for {len(self.utterances)} utterances")


async def drive(load: Load, speak: Speak) -> list[Timeline]:
    """Run a load to its end."""
    began = time.perf_counter()
    timelines: list[Timeline] = []
    enough = asyncio.Event()

    def clock() -> float:
        return time.perf_counter() - began

    async def one(index: int, due_s: float) -> None:
        utterance = load.utterances[index]
        line = Timeline(index=index, audio_s=utterance.audio_s, due_s=due_s)
        timelines.append(line)
        await listen(line, utterance, load, speak, clock)
        if sum(other.complete for other in timelines) == load.completions:
            enough.set()

    async def client(waiting: list[int]) -> None:
        while waiting:
            await one(waiting.pop(0), clock())

    async def visitor(index: int) -> None:
        due_s = load.arrivals_s[index]
        await asyncio.sleep(max(0.0, due_s - clock()))
        await one(index, due_s)

    order = list(range(len(load.utterances)))
    asking = [client(order) for _ in range(load.clients)] if load.clients is not None else [visitor(index) for index in order]
    tasks = [asyncio.create_task(work) for work in asking]
    stop = asyncio.create_task(enough.wait())
    all_done = asyncio.gather(*tasks)
    try:
        await asyncio.wait((all_done, stop), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await all_done
    return timelines


async def listen(line: Timeline, utterance: Utterance, load: Load, speak: Speak, clock: Callable[[], float]) -> None:
    """One request, from sending to its end, written into `line`."""
    digest = hashlib.md5()

    def sent() -> None:
        line.sent_s = clock()

    sent()
    try:
        async with asyncio.timeout(load.timeout_s), aclosing(speak(utterance, load.streamed, sent)) as pieces:
            half = b""
            async for piece in pieces:
                now = clock()
                digest.update(piece)
                piece, half = _whole_samples(half + piece)
                line.status = 200
                if not piece:
                    continue
                line.arrivals.append((now, len(piece) // BYTES_PER_SAMPLE))
                if line.audible_s is None and np.abs(np.frombuffer(piece, "<i2").astype(np.int32)).max() > AUDIBLE:
                    line.audible_s = now
                if utterance.leaves_after is not None and line.heard_s >= utterance.leaves_after * utterance.audio_s:
                    line.left = True
                    break
            else:
                line.complete = bool(line.arrivals) and not half
    except Refused as refusal:
        line.status, line.retry_after_s = refusal.status, refusal.retry_after_s
    except asyncio.CancelledError:
        line.left = True
        raise
    except Exception as error:
        line.error = f"{type(error).__name__}: {error}"
    finally:
        line.ended_s = clock()
        line.md5 = digest.hexdigest()


def _whole_samples(data: bytes) -> tuple[bytes, bytes]:
    """Split off the first half of a sample whose second has not come."""
    end = len(data) - len(data) % BYTES_PER_SAMPLE
    return data[:end], data[end:]
