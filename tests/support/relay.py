"""Relay: a connection to a server that can be cut, as the death of the server cuts it, and be there again on the same port."""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator

ACCEPT_S = 0.05


class Relay:
    """Passes bytes both ways between whoever connects and one port of this machine."""

    def __init__(self, port: int, bytes_per_s: float | None = None) -> None:
        """
        Args:
            bytes_per_s: to whoever connects; None: as fast as the machine.
        """
        self._to, self._bytes_per_s = port, bytes_per_s
        self.passed = 0
        """bytes to whoever connects"""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_over = False
        self._thread = self._begin()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Nobody listens any more, and every connection is reset."""
        self._is_over = True
        self._thread.join()
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        """It is there again."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._is_over = False
        self._thread = self._begin()

    def _begin(self) -> threading.Thread:
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        while not self._is_over:
            if not select.select([self._listener], [], [], ACCEPT_S)[0]:
                continue
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._to))
            except ConnectionRefusedError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            for ends in ((client, server), (server, client)):
                way = {"is_reply": ends[0] is server}
                threading.Thread(target=self._pass, args=ends, kwargs=way, daemon=True).start()

    def _pass(self, here: socket.socket, there: socket.socket, *, is_reply: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := here.recv(4096 if self._bytes_per_s else 65536):
                there.sendall(piece)
                if is_reply:
                    self.passed += len(piece)
                    time.sleep(len(piece) / self._bytes_per_s if self._bytes_per_s else 0)
        for end in (here, there):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(here)
        here.close()


@contextlib.contextmanager
def relay(port: int, bytes_per_s: float | None = None) -> Iterator[Relay]:
    """A relay to a port, until the block ends."""
    opened = Relay(port, bytes_per_s)
    try:
        yield opened
    finally:
        opened.cut()
