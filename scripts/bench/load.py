"""Load: requests utterances from a system at given times and records what arrives.

In:    a Load, and a Speak function
Out:   Timelines, one per request that was sent
Owns:  the clock of one load
Never: which system it is: the same code runs inside an engine's process and against an HTTP server
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
    """The system refused the request."""

    def __init__(self, status: int, retry_after_s: float | None) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.retry_after_s = retry_after_s


Sent = Callable[[], None]
"""call it once the request has been sent"""
Speak = Callable[[Utterance, bool, Sent], AsyncGenerator[bytes, None]]
"""(utterance, streamed, sent) -> pieces of 16-bit samples; raises Refused"""


@dataclass(frozen=True, slots=True)
class Load:
    """What is requested, and when."""

    utterances: tuple[Utterance, ...]
    clients: int | None = None
    """closed loop: number of clients, each of which sends its next request once the last is answered; None: open loop"""
    arrivals_s: tuple[float, ...] = ()
    """open loop: when each utterance is requested"""
    completions: int | None = None
    """the load ends with this many complete answers: the other clients then disconnect"""
    in_real_time: bool = False
    """closed loop: a client plays an answer to its end before it sends its next request"""
    streamed: bool = True
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.clients is None and len(self.arrivals_s) != len(self.utterances):
            raise ValueError(f"{len(self.arrivals_s)} arrivals for {len(self.utterances)} utterances")


async def drive(load: Load, speak: Speak) -> list[Timeline]:
    """Runs a load to its end."""
    began = time.perf_counter()
    timelines: list[Timeline] = []
    enough = asyncio.Event()

    def clock() -> float:
        return time.perf_counter() - began

    async def one(index: int, due_s: float) -> Timeline:
        utterance = load.utterances[index]
        line = Timeline(index=index, audio_s=utterance.audio_s, due_s=due_s)
        timelines.append(line)
        await listen(line, utterance, load, speak, clock)
        if sum(other.complete for other in timelines) == load.completions:
            enough.set()
        return line

    async def client(waiting: list[int]) -> None:
        while waiting:
            line = await one(waiting.pop(0), clock())
            if load.in_real_time:
                await asyncio.sleep(max(0.0, line.played_s - clock()))

    async def one_time_client(index: int) -> None:
        due_s = load.arrivals_s[index]
        await asyncio.sleep(max(0.0, due_s - clock()))
        await one(index, due_s)

    order = list(range(len(load.utterances)))
    asking = (
        [client(order) for _ in range(load.clients)]
        if load.clients is not None
        else [one_time_client(index) for index in order]
    )
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
    """Records one request in `line`, from sending it to its end."""
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
                if utterance.leaves_after is not None and line.received_s >= utterance.leaves_after * utterance.audio_s:
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
    """Splits off the first byte of a sample whose second byte has not arrived."""
    end = len(data) - len(data) % BYTES_PER_SAMPLE
    return data[:end], data[end:]
