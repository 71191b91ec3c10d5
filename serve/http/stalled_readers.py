"""Stalled readers: lets go of a client that takes nothing of its reply, whatever the reply is.

In:    ASGI messages of every route, and of every refusal
Out:   the same messages, long bodies in pieces; ReaderStalled for who writes to a client that takes nothing
Never: a time limit while nothing waits to be sent: a stream of events may be silent for hours; a task for a client that reads

ASGI's `send` waits until the piece before has left, and the kernel takes the next one once much of its buffer is free again:
that can be a minute for a player that reads as fast as it plays. So whoever took LEAST_BYTES within the limit has time again.
Over a whole reply a client takes MEAN_BYTES in that time, or is let go too: it would keep its place for days.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.errors import ReaderStalled
from serve.http.uvicorn_protocols import cut_connection, untaken_bytes

LOG = logging.getLogger("ray.serve.chattts")

PIECE_BYTES = 128 * 1024
LEAST_BYTES = 16 * 1024
"""that a client takes within the limit"""
MEAN_BYTES = 32 * 1024
"""that it takes on average, while a reply waits for it: 9 kbit/s with a limit of 30 s"""
GRACE = 8
"""limits that a reply has waited, before the average counts"""


class StalledReaders:
    """ASGI middleware that limits the time of each `send`."""

    def __init__(self, app: ASGIApp, *, limit_s: Callable[[], float]) -> None:
        """
        Args:
            limit_s: limits.stall_timeout_s.
        """
        self._app = app
        self._limit_s = limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        limited = LimitedSend(send, self._limit_s)
        try:
            await self._app(scope, receive, limited)
        except Exception:
            if not limited.has_stalled:
                raise
            LOG.info("cut request=%s: its client reads nothing", scope.get("state", {}).get("request_id", "-"))
        finally:
            if limited.has_stalled and scope["type"] == "http":  # who reads a socket again is told by its close code
                cut_connection()


class LimitedSend:
    """ASGI's `send` with a limit of its time."""

    def __init__(self, send: Send, limit_s: Callable[[], float]) -> None:
        """Args:
        limit_s: as of StalledReaders.
        """
        self.has_stalled = False
        self._send = send
        self._limit_s = limit_s
        self._written = 0
        self._waited = 0.0  # limits
        self._delivered = 0.0  # bytes meanwhile, of which haste counts for GRACE limits

    async def __call__(self, message: Message) -> None:
        """Sends a message.

        Raises:
            ReaderStalled: the client read nothing for too long.
        """
        for piece in pieces_of(message):
            rest = until_it_waits(self._send(piece))
            if rest is not None and not await self._is_over_in_time(rest, size_of(piece)):
                self.has_stalled = True
                raise ReaderStalled(
                    f"the client read less than {LEAST_BYTES} bytes in {self._limit_s():g} s (limits.stall_timeout_s), or less "
                    f"than {MEAN_BYTES} on average"
                )
            self._written += size_of(piece)

    async def _is_over_in_time(self, awaitable: Awaitable[None], size: int) -> bool:
        """Awaits the end of a message; returns whether it came before its client had taken too little for too long. May be
        awaited by several tasks in turn.

        Args:
            size: of the message, which is written at its end [bytes].
        """
        limit_s, loop = self._limit_s(), asyncio.get_running_loop()
        work, is_slow = asyncio.ensure_future(awaitable), False
        delivered = self._written - untaken_bytes()
        try:
            while not (work.done() or is_slow):
                began, before = loop.time(), delivered
                await asyncio.wait((work,), timeout=limit_s)
                is_done = work.done()
                delivered = self._written + size * is_done - untaken_bytes()
                self._waited += min(1.0, (loop.time() - began) / limit_s) if is_done else 1.0
                self._delivered = min(self._delivered + delivered - before, MEAN_BYTES * (self._waited + GRACE))
                is_slow = delivered - before < LEAST_BYTES and not is_done
                is_slow |= self._waited > GRACE and self._delivered < MEAN_BYTES * self._waited
        finally:
            work.cancel()
        if work.done():
            work.result()
        return not is_slow


def size_of(message: Message) -> int:
    """Returns the bytes of a message, or its characters, which is enough here."""
    return len(message.get("body") or message.get("bytes") or message.get("text") or b"")


def pieces_of(message: Message) -> Iterator[Message]:
    """Yields a message, or a long body in pieces with its end in a message of its own."""
    body: bytes = message.get("body", b"")
    if message["type"] != "http.response.body" or len(body) <= PIECE_BYTES:
        yield message
        return
    for place in range(0, len(body), PIECE_BYTES):
        yield {**message, "body": body[place : place + PIECE_BYTES], "more_body": True}
    yield {**message, "body": b""}


class _Rest:
    """What is left of an awaitable that waits for something."""

    def __init__(self, steps: Generator[Any, Any, None], waits_for: Any) -> None:
        self._steps = steps
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        steps, waits_for = self._steps, self._waits_for
        while True:
            thrown: BaseException | None = None
            try:
                yield waits_for
            except BaseException as error:
                thrown = error
            try:
                waits_for = next(steps) if thrown is None else steps.throw(thrown)
            except StopIteration:
                return


def until_it_waits(awaitable: Awaitable[None]) -> Awaitable[None] | None:
    """Runs an awaitable until it has to wait; returns the rest of it, None if it has ended.

    The rest may be awaited by another task, so the part before must not have asked which task runs it, as asyncio.timeout
    does. Neither uvicorn nor Serve nor a middleware of this project does that in `send`.
    """
    steps = awaitable.__await__()
    try:
        return _Rest(steps, next(steps))
    except StopIteration:
        return None
