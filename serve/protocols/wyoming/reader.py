"""Wyoming reader: events of a client, none longer than it may be, and the end of a client that is refused.

In:    a stream of bytes
Out:   Events of the wyoming package; ApiError
Never: a buffer as large as a client claims that its event is; an event that takes for ever to arrive
"""

import asyncio
from contextlib import suppress
from typing import cast

from wyoming.event import Event, async_read_event

from serve.errors import ApiError, ErrorSpec, bad_request
from serve.http.uvicorn_protocols import LINGER_S, MOST_BEHIND_REPLY

LINE_BYTES = 64 << 10
"""of the line with which an event begins; the stream of a connection is limited to it"""


async def linger(stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ends the stream to a client that is refused, and drops up to MOST_BEHIND_REPLY bytes that it sends within LINGER_S: a
    connection that is closed over unread bytes is reset, and its client may lose the error."""
    rest = MOST_BEHIND_REPLY
    with suppress(OSError, TimeoutError):
        writer.write_eof()
        async with asyncio.timeout(LINGER_S):
            while rest > 0 and (piece := await stream.read(LINE_BYTES)):
                rest -= len(piece)


class CappedReader:
    """Where the package reads events from: as a StreamReader, with limits on the lengths that an event claims."""

    def __init__(self, stream: asyncio.StreamReader, most_bytes: int, timeout_s: float) -> None:
        """
        Args:
            most_bytes: of each part of an event behind its line.
            timeout_s: in which each such part must arrive [s].
        """
        self._stream = stream
        self._most_bytes = most_bytes
        self._timeout_s = timeout_s
        self.size = 0
        """of the event that was read last [bytes]"""

    async def next(self) -> Event | None:
        """Returns the next event; None at the end of the stream.

        Raises:
            ApiError: what came is no event, too large or too slow: nothing behind it can be read.
        """
        self.size = 0
        try:
            event = await async_read_event(cast(asyncio.StreamReader, self))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        except (AttributeError, KeyError, TypeError, RecursionError):
            raise _no_event() from None
        if event is None and not self._stream.at_eof():
            raise _no_event()
        if event is not None and not (isinstance(event.type, str) and isinstance(event.data, dict)):
            raise _no_event()
        return event

    async def readline(self) -> bytes:
        """As StreamReader's."""
        line = await self._stream.readline()
        self.size += len(line)
        return line

    async def readexactly(self, count: object) -> bytes:
        """As StreamReader's, of a number that a client claims.

        Raises:
            ApiError: 413, 408
        """
        if not isinstance(count, int) or isinstance(count, bool):
            raise _no_event()
        if count > self._most_bytes:
            message = f"an event has {count} bytes; the limit is {self._most_bytes}"
            raise bad_request("body_too_large", message, status=413)
        self.size += count
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._stream.readexactly(count)
        except TimeoutError:
            message = f"the event was not complete after {self._timeout_s:g} s (limits.body_timeout_s)"
            raise ApiError(message, ErrorSpec(408, "invalid_request_error", "body_timeout", True)) from None


def _no_event() -> ApiError:
    return bad_request("invalid_event", "this is no event: a line of JSON with its type, then as many bytes as it says")
