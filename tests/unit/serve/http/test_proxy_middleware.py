"""What Serve's proxy lets through: no steering headers, harmless request ids, headers of a bounded size."""

import asyncio
import json

import pytest

from serve.http import proxy_middleware as edge


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
