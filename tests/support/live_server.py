"""A real uvicorn on a real socket around create_api: in-process transports hide truncation and disconnects."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import requests
import uvicorn
from starlette.types import ASGIApp

from serve.http.services import Services
from serve.protocols.api import create_api

CANARY = "canary-7f3a"  # what a client sends and no error may repeat
POST = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@dataclass
class Live:
    """A running server."""

    port: int
    services: Services

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def speak(self, **fields: Any) -> requests.Response:
        body = {"input": "Hello there.", "response_format": "pcm", **fields}
        return requests.post(f"{self.url}/v1/audio/speech", json=body, timeout=60)

    def post(self, raw: bytes, **headers: str) -> requests.Response:
        kind = {"Content-Type": "application/json"}
        return requests.post(f"{self.url}/v1/audio/speech", data=raw, headers={**kind, **headers}, timeout=60)

    def connect(self, body: bytes, head: str = "") -> socket.socket:
        """A raw connection with the request sent."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        client.sendall(f"{POST}{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return client


async def _nothing() -> None:
    """Closes nothing."""


class _Server(uvicorn.Server):
    """Ends its connections when it stops. uvicorn leaves those that are open to its loop, which is closed before they are."""

    def __init__(self, config: uvicorn.Config, close: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._close = close

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for task in tuple(self.server_state.tasks):
            task.cancel()
        await asyncio.wait([asyncio.ensure_future(self._close()), *self.server_state.tasks], timeout=10)
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0.01)  # the loop closes them in its next turns


@contextlib.contextmanager
def serving(
    services: Services,
    certificate: str | None = None,
    *,
    wrap: Callable[[ASGIApp], ASGIApp] | None = None,
    close: Callable[[], Awaitable[None]] = _nothing,
) -> Iterator[Live]:
    """Serve until the block ends.

    Args:
        certificate: file of a key and its certificate, for TLS.
        wrap: goes around the application.
        close: closes what the application has opened in the server's loop.
    """
    app: ASGIApp = create_api(lambda: services)
    app = app if wrap is None else wrap(app)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off", ssl_certfile=certificate)
    config.load()
    if config.ssl is not None:
        # A synchronous client reads in one thread and writes in another. Python 3.11 does not guard its TLS object, and a
        # session ticket that is read while the request is written loses the request: 7 of 1,200 connections, and a crash.
        config.ssl.num_tickets = 0
    server = _Server(config, close)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Live(port, services)
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(timeout=60)


def error_of(reply: requests.Response) -> dict[str, Any]:
    """The envelope, checked."""
    assert reply.headers["Content-Type"] == "application/json"
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    assert error["request_id"] == reply.headers["X-Request-ID"]
    assert CANARY not in reply.text
    assert reply.json().keys() == {"error"}
    return error


def read_all(client: socket.socket) -> bytes:
    """Everything until the other side closes; closes this side."""
    received = bytearray()
    with client, contextlib.suppress(ConnectionResetError):
        while piece := client.recv(65536):
            received += piece
    return bytes(received)
