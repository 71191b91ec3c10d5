"""Connection: the server's side of one reply. Speech goes on while a client reads slowly, as long as there is room.

In:    the status, the headers and the pieces of one reply
Out:   ASGI messages in the same order; when the rest of a reply is held here
Owns:  what one reply holds for a client that has not taken it; UnreadBytes, what all replies of a replica hold
Never: the time that a client may take for a piece (stalled_readers.py); a task or a timer for a client that reads in time

ASGI's `send` returns once its buffer has room again. If it does so at once, nothing else happens here. If it has to wait, the
rest of it becomes a task, and what follows waits behind it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType

from starlette.types import Message, Send

from pipeline.errors import SynthesisError
from serve.config.app_config import UNREAD_BYTES_PER_REPLY, UNREAD_SHARES, LimitsConfig
from serve.errors import not_finished
from serve.http.stalled_readers import PIECE_BYTES, until_it_waits


class UnreadBytes:
    """How much one ingress replica holds for clients that read slowly."""

    def __init__(self, capacity: int, *, least: int = UNREAD_BYTES_PER_REPLY) -> None:
        """
        Args:
            capacity: of all replies together [bytes].
            least: what a reply counts beside its bytes; it bounds their number [bytes].
        """
        self.capacity = capacity
        self.least = least
        self.total = 0
        """never above the capacity [bytes]"""
        self._changed = asyncio.Event()

    def take(self, size: int, of_reply: int) -> bool:
        """Counts so many more bytes, if there is room for them.

        Args:
            of_reply: what is counted for the same reply already.
        """
        if of_reply + size > self.capacity // UNREAD_SHARES or self.total + size > self.capacity:
            return False
        self.total += size
        return True

    def give_back(self, size: int) -> None:
        """Counts so many bytes less, and wakes those who wait for room."""
        self.total -= size
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    async def changed(self) -> None:
        """Waits until a reply holds less, or has ended."""
        await self._changed.wait()


class Connection:
    """The server's side of one reply: an asynchronous context, which ends with nothing held.

    If it is left by an error, what was written before is sent first.
    """

    def __init__(self, send: Send, limits: LimitsConfig, unread: UnreadBytes) -> None:
        self.has_begun = False
        """whether the status has been sent, or waits for a slow client"""
        self.is_broken = False
        """whether nothing more can be written"""
        self.also: Mapping[str, str] = {}
        """headers of the protocol that is spoken, beside those of every reply"""
        self.when_complete: Callable[[], object] = lambda: None
        """called when the reply is complete, and what the client has not taken of it is held here"""
        self._send = send
        self._limits = limits
        self._unread = unread
        self._ends_at: float | None = None
        self._held_bytes = 0  # bytes that are counted in _unread
        self._waiting: deque[tuple[Message, int]] = deque()  # with their sizes
        self._sending: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    async def __aenter__(self) -> None:
        self._ends_at = asyncio.get_running_loop().time() + self._limits.total_timeout_s

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception) and not self.is_broken:
                self.when_complete()
                with suppress(SynthesisError):
                    await self._all_sent()
        finally:
            sending = self._sending
            if sending is not None:
                sending.cancel()
                await asyncio.wait((sending,))
            self._drop()

    async def begin(self, headers: Mapping[str, str], status: int = 200) -> None:
        """Sends the status and the headers.

        Raises:
            ReaderStalled, DeadlineExceeded: as write().
        """
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in {**headers, **self.also}.items()]
        self.has_begun = True
        await self._write({"type": "http.response.start", "status": status, "headers": raw}, 0)

    async def write(self, data: bytes) -> None:
        """Sends a piece of the body; returns once it is sent, or held for a client that reads slowly.

        Raises:
            ReaderStalled: the client read nothing for stall_timeout_s.
            DeadlineExceeded: the reply is not finished after total_timeout_s.
        """
        for place in range(0, len(data), PIECE_BYTES):
            piece = data[place : place + PIECE_BYTES]
            await self._write({"type": "http.response.body", "body": piece, "more_body": True}, len(piece))

    async def end(self) -> None:
        """Sends the end of the body; returns once everything is sent.

        Raises:
            ReaderStalled, DeadlineExceeded: as write().
        """
        await self._write({"type": "http.response.body", "body": b"", "more_body": False}, 0)
        self.when_complete()
        await self._all_sent()

    async def _write(self, message: Message, size: int) -> None:
        """Sends a message, or holds it behind those that wait; with no room left it waits itself."""
        while self._sending is not None:
            if self._hold(size):
                self._waiting.append((message, size))
                return
            await self._unread.changed()
        self._check()
        rest = until_it_waits(self._send(message))
        if rest is None:
            return
        self._sending = asyncio.create_task(self._send_all(rest))
        while self._sending is not None and not self._hold(self._unread.least):
            await self._unread.changed()
        self._check()

    async def _send_all(self, first: Awaitable[None]) -> None:
        """Sends what has begun and what waits behind it, until nothing waits any more."""
        try:
            await self._in_time(first)
            while self._waiting:
                message, size = self._waiting[0]
                await self._in_time(self._send(message))
                self._waiting.popleft()
                self._held_bytes -= size
                self._unread.give_back(size)
        except Exception as error:
            self.is_broken, self._failure = True, error
        finally:
            self._drop()

    async def _all_sent(self) -> None:
        if self._sending is not None:
            await asyncio.wait((self._sending,))
        self._check()

    def _hold(self, size: int) -> bool:
        is_held = self._unread.take(size, self._held_bytes)
        self._held_bytes += size if is_held else 0
        return is_held

    def _drop(self) -> None:
        """Holds nothing more."""
        size, self._held_bytes, self._sending = self._held_bytes, 0, None
        self._waiting.clear()
        self._unread.give_back(size)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _in_time(self, sending: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout_at(self._ends_at):
                await sending
        except TimeoutError:
            raise not_finished(self._limits.total_timeout_s) from None
