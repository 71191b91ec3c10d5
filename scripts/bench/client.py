"""Client: requests utterances from a system at given times and records what arrives.

In:    a Load and a Speak function, such as that of any OpenAI-compatible server
Out:   Timelines, one per request that was sent
Owns:  the clock of a load, one HTTP session per `http_speaker`
Never: a field beyond OpenAI's endpoint, unless it comes from `extra`
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import requests

from scripts.bench.timeline import AUDIBLE, Timeline
from scripts.bench.workload import Load, Utterance

SPEECH = "/v1/audio/speech"
BYTES_PER_SAMPLE = 2
POLL_S = 0.005
IDLE_TIMEOUT_S = 60.0


class Refused(Exception):
    """An answer with another status than 200."""

    def __init__(self, status: int, retry_after_s: float | None, text: str = "") -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status
        self.retry_after_s = retry_after_s


OnSent = Callable[[], None]
"""call it once the request has been sent"""
Speak = Callable[[Utterance, bool, OnSent], AsyncGenerator[bytes, None]]
"""(utterance, streamed, on_sent) -> pieces of 16-bit samples; raises Refused"""
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A speech server."""

    url: str
    """without /v1"""
    model: str = "chattts"
    voice: str = "default"
    key: str = "none"
    extra: Callable[[Utterance, bool], dict[str, object]] = lambda utterance, streamed: {}
    """(utterance, streamed) -> fields beyond OpenAI's, or in place of them"""

    def body(self, utterance: Utterance, *, streamed: bool = True) -> dict[str, object]:
        """Returns the body of a request."""
        standard = {"model": self.model, "voice": self.voice, "input": utterance.text, "response_format": "pcm"}
        return standard | self.extra(utterance, streamed)


async def drive(load: Load, speak: Speak, clock: Clock = time.perf_counter) -> list[Timeline]:
    """Runs a load to its end. The clock has to be that of the event loop, or one that runs as fast [s]."""
    began = clock()
    timelines: list[Timeline] = []
    enough = asyncio.Event()

    def now() -> float:
        return clock() - began

    async def request(index: int, due_s: float) -> Timeline:
        utterance = load.utterances[index]
        line = Timeline(index=index, audio_s=utterance.audio_s, due_s=due_s)
        timelines.append(line)
        await listen(line, utterance, speak, now, streamed=load.streamed, timeout_s=load.timeout_s)
        if sum(other.complete for other in timelines) == load.completions:
            enough.set()
        return line

    async def client(waiting: list[int]) -> None:
        while waiting:
            line = await request(waiting.pop(0), now())
            if load.in_real_time:
                await asyncio.sleep(max(0.0, line.played_s - now()))

    async def one_time_client(index: int) -> None:
        due_s = load.arrivals_s[index]
        await asyncio.sleep(max(0.0, due_s - now()))
        await request(index, due_s)

    order = list(range(len(load.utterances)))
    closed = load.clients is not None
    clients = [client(order) for _ in range(load.clients or 0)] if closed else [one_time_client(index) for index in order]
    tasks = [asyncio.create_task(work) for work in clients]
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


async def listen(
    line: Timeline, utterance: Utterance, speak: Speak, clock: Clock, *, streamed: bool = True, timeout_s: float = 600.0
) -> None:
    """Records one request in `line`, from sending it to its end. A failure is recorded too."""
    digest = hashlib.md5()

    def mark_sent() -> None:
        line.sent_s = clock()

    mark_sent()
    try:
        async with asyncio.timeout(timeout_s), aclosing(speak(utterance, streamed, mark_sent)) as pieces:
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
            line.complete = bool(line.arrivals) and not half
    except Refused as refusal:
        line.status, line.retry_after_s, line.error = refusal.status, refusal.retry_after_s, str(refusal)
    except asyncio.CancelledError:
        line.disconnected = True
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


@asynccontextmanager
async def http_speaker(endpoint: Endpoint) -> AsyncIterator[Speak]:
    """Opens a session and yields its `Speak` function."""
    trace = aiohttp.TraceConfig()

    async def chunk_sent(session: object, context: SimpleNamespace, params: object) -> None:
        context.trace_request_ctx()  # the clock starts with the body: connecting is not the server's time

    trace.on_request_chunk_sent.append(chunk_sent)
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    # Every round requests the same utterances again, and none may come from a cache.
    headers = {"Authorization": f"Bearer {endpoint.key}", "Cache-Control": "no-store"}
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, trace_configs=[trace], read_bufsize=1 << 20
    ) as session:

        async def speak(utterance: Utterance, streamed: bool, on_sent: OnSent) -> AsyncGenerator[bytes, None]:
            body = endpoint.body(utterance, streamed=streamed)
            async with session.post(endpoint.url + SPEECH, json=body, trace_request_ctx=on_sent) as reply:
                if reply.status != 200:
                    retry_after = reply.headers.get("Retry-After", "")
                    raise Refused(reply.status, float(retry_after) if retry_after.isdigit() else None, await reply.text())
                async for piece in reply.content.iter_any():
                    yield piece

        yield speak


def health(url: str) -> dict[str, Any]:
    """Returns the body of GET /health."""
    body: dict[str, Any] = requests.get(f"{url}/health", timeout=30).json()
    return body


def activity(health: dict[str, Any]) -> dict[str, int]:
    """Returns what is under way in a service: all 0 at rest."""
    engines, admission = health["acoustic"], health["admission"]
    counts = {"slots": "slots_used", "waiting": "waiting"}
    return {name: sum(engine[count] for engine in engines) for name, count in counts.items()} | {
        name: admission[name] for name in ("in_flight", "receiving")
    }


def wait_until_idle(url: str) -> float:
    """Returns the seconds until no slot is in use and no request is in flight.

    Raises:
        TimeoutError: some are after IDLE_TIMEOUT_S.
    """
    began = time.perf_counter()
    while any(activity(health(url)).values()):
        time.sleep(POLL_S)
        if time.perf_counter() - began > IDLE_TIMEOUT_S:
            raise TimeoutError(f"requests are in flight for {IDLE_TIMEOUT_S:g} s: {activity(health(url))}")
    return time.perf_counter() - began
