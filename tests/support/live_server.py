"""A real uvicorn on a real socket around create_api: in-process transports hide truncation and disconnects."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def serving(
    services: Services, certificate: str | None = None, *, wrap: Callable[[ASGIApp], ASGIApp] | None = None
) -> Iterator[Live]:
    """Serve until the block ends; with the file of a key and its certificate over TLS; `wrap` goes around the application."""
    app: ASGIApp = create_api(lambda: services)
    app = app if wrap is None else wrap(app)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off", ssl_certfile=certificate)
    config.load()
    if config.ssl is not None:
        # A synchronous client reads in one thread and writes in another. Python 3.11 does not guard its TLS object, and a
        # session ticket that is read while the request is written loses the request: 7 of 1,200 connections, and a crash.
        config.ssl.num_tickets = 0
    server = uvicorn.Server(config)
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
    """Everything until the other side closes."""
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(65536):
            received += piece
    return bytes(received)
