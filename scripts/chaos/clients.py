"""Clients: those of a load, on plain sockets of their own, so that they cost the machine little beside the service.

In:    the address of a running service
Out:   what each client saw
Owns:  its sockets
Never: a library between a client and its socket
"""

import asyncio
import json
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

TEXT = "Five one one, two five five. Nine eight seven, six five four."
DEADLINE_S = 15.0
RATE = 48_000  # bytes of pcm a second
PATIENCE_S = 120.0
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
CLOSE, PING = 0x88, 0x89  # first bytes of frames
PONG = b"\x8a\x80\0\0\0\0"  # masked with zeros; the length is in the second byte


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


class IdleSocket(asyncio.Protocol):
    """A conversation that says nothing, and answers pings."""

    def __init__(self, request: bytes) -> None:
        self.taken = asyncio.get_running_loop().create_future()
        """True once the service has switched to the protocol; False if it has not"""
        self.is_open = False
        self._request = request
        self._received = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self.taken.done():
            head, end, rest = self._received.partition(b"\r\n\r\n")
            if not end:
                return
            self._received, self.is_open = rest, b" 101 " in head.split(b"\r\n")[0]
            self.taken.set_result(self.is_open)
        while len(self._received) >= 2 and len(self._received) >= 2 + self._received[1]:
            frame, self._received = self._received[: 2 + self._received[1]], self._received[2 + self._received[1] :]
            if frame[0] == PING and self._transport is not None:
                self._transport.write(PONG[:1] + bytes([0x80 | frame[1]]) + PONG[2:] + frame[2:])
            elif frame[0] == CLOSE:
                self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if not self.taken.done():
            self.taken.set_result(False)

    def close(self) -> None:
        """Ends the conversation."""
        self.is_open = False
        if self._transport is not None:
            self._transport.close()


class Target:
    """A service, asked over plain sockets."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url, self.host, self.port = url, parts.hostname or "127.0.0.1", parts.port or 80
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

    async def open_socket(self) -> IdleSocket | None:
        """Returns a conversation that says nothing; None if it was refused."""
        request = f"GET /v1/audio/conversation HTTP/1.1\r\nHost: {self.host}\r\n{UPGRADE}\r\n".encode()
        try:
            async with asyncio.timeout(PATIENCE_S):
                _, client = await asyncio.get_running_loop().create_connection(
                    lambda: IdleSocket(request), self.host, self.port
                )
                return client if await client.taken else None
        except (OSError, TimeoutError):
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
