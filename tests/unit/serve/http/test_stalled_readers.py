"""Stalled readers over a real server: whatever the reply is, who takes nothing of it is let go, and nobody else is."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message
from starlette.websockets import WebSocket

from pipeline.errors import ReaderStalled
from serve.http import stalled_readers
from serve.http.stalled_readers import GRACE, LEAST_BYTES, MEAN_BYTES, LimitedSend, StalledReaders
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import Live, read_all, serving
from tests.support.raw_socket import RawSocket
from tests.support.waiting import wait_until

LIMIT_S = 0.4
SIZE = 24 << 20  # more than the kernel's buffers take
ENDED: list[str] = []
KINDS = ("whole", "file", "json", "pieces", "events", "socket")


async def reply(request: Request) -> Response:
    kind = request.path_params["kind"]

    async def pieces() -> AsyncIterator[bytes]:
        try:
            for _ in range(SIZE >> 14):
                yield bytes(1 << 14)
        finally:
            ENDED.append(kind)

    async def silence() -> AsyncIterator[bytes]:
        for _ in range(2):
            yield b"data: x\n\n"
            await asyncio.sleep(3 * LIMIT_S)

    match kind:
        case "whole":
            return Response(bytes(SIZE))
        case "json":
            return JSONResponse("x" * SIZE)
        case "file":
            return FileResponse(request.app.state.file)
        case "silence":
            return StreamingResponse(silence(), media_type="text/event-stream")
    return StreamingResponse(pieces(), media_type="text/event-stream" if kind == "events" else None)


async def talk(websocket: WebSocket) -> None:
    await websocket.accept()
    try:
        while True:
            await websocket.send_bytes(bytes(1 << 16))
    finally:
        ENDED.append("socket")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    app = Starlette(routes=[Route("/{kind}", reply), WebSocketRoute("/socket", talk)])
    app.state.file = tmp_path_factory.mktemp("file") / "zeros"
    Path(app.state.file).write_bytes(bytes(SIZE))
    with serving(make_services(Speaker()), wrap=lambda _: StalledReaders(app, limit_s=lambda: LIMIT_S)) as server:
        yield server


def requested(live: Live, kind: str, receive_bytes: int = 4096) -> socket.socket:
    if kind == "socket":
        return RawSocket(live.port, "/socket", receive_bytes=4096).socket
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(60)
    client.connect(("127.0.0.1", live.port))
    client.sendall(f"GET /{kind} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    return client


def is_open(live: Live, client: socket.socket) -> bool:
    """Whether the server still has the connection."""
    here, there = (f"{port:04X}" for port in (live.port, client.getsockname()[1]))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any((row[1][-4:], row[2][-4:], row[3]) == (here, there, "01") for row in rows)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "socket"])
@pytest.mark.parametrize("size", [0, 1])
def test_a_client_that_reads_nothing_or_byte_by_byte_is_cut(live: Live, kind: str, size: int) -> None:
    with requested(live, kind) as client:
        assert client.recv(16).startswith(b"HTTP/1.1 200")
        ends_at = time.monotonic() + 60
        while is_open(live, client) and time.monotonic() < ends_at:
            client.recv(size)
            time.sleep(0.02)
        assert not is_open(live, client)


def test_the_route_of_a_socket_whose_client_takes_nothing_ends(live: Live) -> None:
    ENDED.clear()
    with requested(live, "socket"):
        wait_until(lambda: ENDED == ["socket"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "socket"])
def test_a_reader_that_takes_its_time_has_everything(live: Live, kind: str) -> None:
    """The kernel takes no more of it for longer than the limit."""
    with requested(live, kind, 1 << 16) as client:
        received = b""
        for _ in range(12):
            received += client.recv(1 << 14)
            time.sleep(LIMIT_S / 8)
        assert len(received + read_all(client)) > SIZE


@pytest.mark.parametrize(
    ("first", "then", "limits"),
    [
        (LEAST_BYTES - 1, 0, 1),
        (LEAST_BYTES, LEAST_BYTES, GRACE + 1),
        (LEAST_BYTES, MEAN_BYTES * 3 // 4, GRACE + 1),
        (MEAN_BYTES, MEAN_BYTES, None),
        (1 << 24, LEAST_BYTES, 2 * GRACE + 2),  # haste buys little
        (MEAN_BYTES, LEAST_BYTES - 1, 2),
    ],
)
def test_a_client_below_the_least_rate_is_cut(
    monkeypatch: pytest.MonkeyPatch, first: int, then: int, limits: int | None
) -> None:
    """Bytes that are taken in each limit; in how many limits that is too little. The clock does not matter."""
    looks = 0

    async def reply() -> None:
        is_free = asyncio.Event()

        def untaken() -> int:
            nonlocal looks
            looks += 1
            if looks > 3 * GRACE:
                is_free.set()
            return (1 << 40) - min(looks - 1, 1) * first - max(0, looks - 2) * then

        async def send(message: Message) -> None:
            await is_free.wait()

        monkeypatch.setattr(stalled_readers, "untaken_bytes", untaken)
        await LimitedSend(send, lambda: 0.001)({"type": "http.response.body", "body": b""})

    with pytest.raises(ReaderStalled) if limits is not None else nullcontext():
        asyncio.run(reply())
    assert limits in (looks - 1, None)


def test_a_stream_that_says_nothing_for_long_is_not_cut(live: Live) -> None:
    with requested(live, "silence") as client:
        assert read_all(client).count(b"data: x") == 2
