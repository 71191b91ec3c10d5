"""What Serve's proxy lets through: no steering headers, harmless request ids, headers of a bounded size."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray.serve._private.http_util import (
    configure_http_options_with_defaults,
    parse_disconnect_disabled_header,
    start_asgi_http_server,
)
from ray.serve.config import HTTPOptions
from starlette.types import Receive, Scope, Send

from serve.protocols import proxy_middleware as edge
from serve.protocols.outer_middleware import MOST_HEADER_BYTES
from tests.support.haproxy import listens
from tests.support.ports import free_port
from tests.support.raw_socket import RawSocket, frame
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[4]


def headers_behind_the_edge(*headers: tuple[bytes, bytes]) -> dict[bytes, bytes]:
    passed = {}

    async def inner(scope, receive, send):
        passed.update(scope["headers"])

    asyncio.run(edge.middlewares()[-1].cls(inner)({"type": "http", "headers": list(headers)}, None, None))
    return passed


@pytest.mark.parametrize(
    "name",
    [
        b"x-request-timeout-seconds",
        b"X-Request-Disconnect-Disabled",
        b"x-session-id",
        b"X_Session_Id",
        b"serve_multiplexed_model_id",
        b"serve-multiplexed-model-id",
        b"x-ray-anything",
    ],
)
def test_steering_headers_do_not_pass(name):
    passed = headers_behind_the_edge((name, b"1"), (b"accept", b"*/*"))
    assert name not in passed
    assert passed[b"accept"] == b"*/*"


@pytest.mark.parametrize(
    ("header", "is_watched"),
    [
        ((b"accept", b"*/*"), True),
        ((b"content-length", b"65536"), True),
        ((b"content-length", b"65537"), False),
        ((b"Content-Length", b"9" * 30), False),
        ((b"Transfer-Encoding", b"chunked"), False),
    ],
)
def test_a_body_that_may_be_long_is_not_read_ahead(header: tuple[bytes, bytes], is_watched: bool):
    assert parse_disconnect_disabled_header(headers_behind_the_edge(header)) is not is_watched


def test_request_ids_pass_only_when_harmless():
    assert headers_behind_the_edge((b"x-request-id", b"mine.1"))[b"x-request-id"] == b"mine.1"
    assert headers_behind_the_edge((b"x-request-id", b"a,b"))[b"x-request-id"] != b"a,b"
    assert len(headers_behind_the_edge()[b"x-request-id"]) == 32


def test_headers_beyond_any_use_are_refused_before_anything_reads_them():
    messages = []

    async def send(message):
        messages.append(message)

    async def never(scope, receive, send):
        raise AssertionError("it reached the routes")

    scope = {"type": "http", "path": "/", "headers": [(b"x-filler", b"y" * MOST_HEADER_BYTES)]}
    asyncio.run(edge.middlewares()[-1].cls(never)(scope, None, send))
    assert messages[0]["status"] == 431
    assert json.loads(messages[1]["body"])["error"]["code"] == "headers_too_large"
    assert headers_behind_the_edge((b"x-filler", b"y" * (MOST_HEADER_BYTES - 100)))


WHAT_IT_LOADS = """
import sys
import ray.serve._private.proxy
import uvicorn.protocols.http.auto, uvicorn.protocols.websockets.auto, uvicorn.server

before = set(sys.modules)
import serve.protocols.proxy_middleware

print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.slow
def test_serves_proxy_loads_little_for_it():
    """One module more of the service's brings half of it: 50 MB in a process that only passes requests on."""
    done = subprocess.run([sys.executable, "-c", WHAT_IT_LOADS], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    names = ("deepgram", "elevenlabs", "openai", "others")
    protocols = {f"serve.protocols.{name}" for name in (*names, "outer_middleware", "proxy_middleware", "registry")}
    protocols |= {"serve.protocols", *(f"serve.protocols.{name}.protocol" for name in names)}
    own = {f"serve.http.{name}" for name in ("close_codes", "error_reply", "protocol", "sender")}
    own |= {"serve.http.uvicorn_protocols", "serve.access", "serve.access.pace", "termios"}
    floor = {"pipeline", "pipeline.errors", "serve", "serve.errors", "serve.http"}
    assert set(loaded) == own | protocols | floor


def test_serves_own_server_offers_no_compression_and_reads_nothing_ahead_of_a_socket():
    scopes: list[dict[str, Any]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(dict(scope["headers"]))
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        await send({"type": "websocket.close", "code": 1000})

    async def serve() -> tuple[bytes, int | None]:
        options = configure_http_options_with_defaults(HTTPOptions(host="127.0.0.1", port=free_port()))
        options.middlewares.extend(edge.middlewares())
        running, server = await start_asgi_http_server(app, options, event_loop=asyncio.get_running_loop())
        try:
            return await asyncio.wait_for(asyncio.to_thread(talk, options.port), 60)
        finally:
            server.should_exit = True
            await running

    def talk(port: int) -> tuple[bytes, int | None]:
        wait_until(lambda: listens(port))
        raw = RawSocket(port, "/", "Sec-WebSocket-Extensions: permessage-deflate", "X-Request-Disconnect-Disabled: ?0")
        with raw.socket:
            raw.send(frame(b"x" * ((1 << 20) + 1)))
            return raw.head, raw.close_code()

    head, code = asyncio.run(serve())
    assert b"extensions" not in head.lower()
    assert code == 1009
    assert parse_disconnect_disabled_header(scopes[0]), "Serve's own watch would read all messages ahead"
