"""A WebSocket client without a library: frames that no library sends, and replies that are not read."""

import contextlib
import socket
import struct
import zlib
from collections.abc import Iterator


def frame(payload: bytes, *, op: int = 1, fin: bool = True, compressed: bool = False) -> bytes:
    """A masked frame; the mask is zero. `op`: 0 a fragment, 1 text, 2 binary, 8 close, 9 ping, 10 pong."""
    head = bytes([(0x80 if fin else 0) | (0x40 if compressed else 0) | op])
    size = len(payload)
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 1 << 16:
        head += b"\xfe" + struct.pack(">H", size)
    else:
        head += b"\xff" + struct.pack(">Q", size)
    return head + bytes(4) + payload


def bomb(size: int) -> bytes:
    """A compressed frame that becomes so many bytes."""
    press = zlib.compressobj(9, zlib.DEFLATED, -12)
    return frame((press.compress(b"a" * size) + press.flush(zlib.Z_SYNC_FLUSH))[:-4], compressed=True)


class RawSocket:
    """One connection, its handshake answered."""

    def __init__(self, port: int, path: str, *headers: str, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(20)
        self.socket.connect(("127.0.0.1", port))
        lines = "".join(f"{line}\r\n" for line in headers)
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n{lines}\r\n".encode()
        )
        self.head, self.rest = b"", b""
        while b"\r\n\r\n" not in self.head and (piece := self.socket.recv(4096)):
            self.head += piece
        self.head, _, self.rest = self.head.partition(b"\r\n\r\n")

    @property
    def status(self) -> int:
        return int(self.head.split()[1])

    def send(self, *frames: bytes) -> bool:
        """Sends frames; returns whether the other side took all of them."""
        try:
            for frame in frames:
                self.socket.sendall(frame)
        except OSError:
            return False
        return True

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yields the kind and the payload of each frame until the connection ends."""
        while (head := self._read(2)) is not None:
            size = head[1] & 0x7F
            if size > 125:
                longer = self._read(2 if size == 126 else 8)
                size = int.from_bytes(longer or b"")
            payload = self._read(size)
            if payload is None:
                return
            yield head[0] & 0x0F, payload

    def close_code(self) -> int | None:
        """The code of the close frame; None: the connection ended without one."""
        for kind, payload in self.frames():
            if kind == 8:
                return int.from_bytes(payload[:2])
        return None

    def _read(self, size: int) -> bytes | None:
        with contextlib.suppress(OSError):
            while len(self.rest) < size and (piece := self.socket.recv(65536)):
                self.rest += piece
        if len(self.rest) < size:
            return None
        content, self.rest = self.rest[:size], self.rest[size:]
        return content
