"""What Serve's proxy lets through: no steering headers, harmless request ids, headers of a bounded size."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from serve.http import proxy_middleware as edge

ROOT = Path(__file__).resolve().parents[4]


def headers_behind_the_edge(*headers: tuple[bytes, bytes]) -> dict[bytes, bytes]:
    seen = {}

    async def inner(scope, receive, send):
        seen.update(scope["headers"])

    asyncio.run(edge.middlewares()[-1].cls(inner)({"type": "http", "headers": list(headers)}, None, None))
    return seen


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
    seen = headers_behind_the_edge((name, b"1"), (b"accept", b"*/*"))
    assert name not in seen
    assert seen[b"accept"] == b"*/*"


def test_request_ids_pass_only_when_harmless():
    assert headers_behind_the_edge((b"x-request-id", b"mine.1"))[b"x-request-id"] == b"mine.1"
    assert headers_behind_the_edge((b"x-request-id", b"a,b"))[b"x-request-id"] != b"a,b"
    assert len(headers_behind_the_edge()[b"x-request-id"]) == 32


def test_headers_beyond_any_use_are_refused_before_anything_reads_them():
    sent = []

    async def send(message):
        sent.append(message)

    async def never(scope, receive, send):
        raise AssertionError("it reached the routes")

    scope = {"type": "http", "path": "/", "headers": [(b"x-filler", b"y" * edge.MOST_HEADER_BYTES)]}
    asyncio.run(edge.middlewares()[-1].cls(never)(scope, None, send))
    assert sent[0]["status"] == 431
    assert json.loads(sent[1]["body"])["error"]["code"] == "headers_too_large"
    assert headers_behind_the_edge((b"x-filler", b"y" * (edge.MOST_HEADER_BYTES - 100)))


WHAT_IT_LOADS = """
import sys
import ray.serve._private.proxy
import uvicorn.protocols.http.auto, uvicorn.protocols.websockets.auto, uvicorn.server

before = set(sys.modules)
import serve.http.proxy_middleware

print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.slow
def test_serves_proxy_loads_little_for_it():
    """One module more of the service's brings half of it: 50 MB in a process that only passes requests on."""
    done = subprocess.run([sys.executable, "-c", WHAT_IT_LOADS], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    doors = {f"serve.http.{name}" for name in ("deepgram", "elevenlabs", "neighbours")}
    doors |= {"serve.http.deepgram.errors", "serve.http.elevenlabs.errors", "serve.http.neighbours.kokoro_errors"}
    own = {f"serve.http.{name}" for name in ("close_codes", "early_refusal", "error_envelope", "error_reply", "sender")}
    own |= {"serve.http.uvicorn_protocols", "serve.access", "serve.access.pace"}
    floor = {"pipeline", "pipeline.errors", "serve", "serve.errors", "serve.http"}
    assert set(loaded) == {"serve.http.proxy_middleware"} | own | doors | floor
