"""What Serve refuses by itself, as clients see it: behind the middleware that Serve puts around its server."""

import asyncio
import json
from typing import Any

import pytest
from ray.serve._private.http_util import RequestIdMiddleware, convert_object_to_asgi_messages
from starlette.types import ASGIApp

from serve.protocols.proxy_middleware import middlewares

BACKPRESSURE = "Request dropped due to backpressure"


def ask(app: ASGIApp, path: str = "/v1/audio/speech", root_path: str = "") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of what `app` answers inside all that Serve puts around it."""
    app = RequestIdMiddleware(app)
    for middleware in middlewares():
        app = middleware.cls(app, **middleware.kwargs)
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    headers = [(b"host", b"localhost"), (b"x-request-id", b"abc")]
    scope = {"type": "http", "method": "POST", "path": root_path + path, "root_path": root_path, "headers": headers}
    asyncio.run(app(scope, receive, send))
    assert [message["type"] for message in messages].count("http.response.start") == 1
    body = b"".join(message.get("body", b"") for message in messages)
    return messages[0]["status"], {name.decode(): value.decode() for name, value in messages[0]["headers"]}, body


def says(obj: Any, status: int, **headers: str) -> ASGIApp:
    """An application that answers as Serve does."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        extra = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        for message in convert_object_to_asgi_messages(obj, status_code=status, extra_headers=extra):
            await send(message)

    return app


@pytest.mark.parametrize(
    ("status", "code", "retry_after"),
    [
        (503, "overloaded", "2"),
        (429, "overloaded", "2"),
        (408, "timeout", None),
        (500, "internal_error", None),
        (404, "not_found", None),
    ],
)
def test_what_serve_refuses_in_plain_text_comes_in_the_envelope(status, code, retry_after):
    plain = says(BACKPRESSURE, status, **({"retry_after": retry_after} if retry_after else {}))
    answered, headers, body = ask(plain)
    error = json.loads(body)["error"]
    assert (answered, error["code"], error["request_id"]) == (status, code, "abc")
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"] == "abc"
    assert headers.get("retry-after") == retry_after
    assert BACKPRESSURE not in body.decode()


def test_a_busy_service_always_sends_retry_after():
    headers = ask(says(BACKPRESSURE, 503))[1]
    assert 1000 <= int(headers["retry-after-ms"]) <= 1500
    assert headers["retry-after"] in ("1", "2")


def test_an_error_outside_the_application_is_a_500_in_the_envelope():
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("secret")

    status, headers, body = ask(broken)
    assert (status, json.loads(body)["error"]["code"]) == (500, "internal_error")
    assert headers["x-request-id"] == "abc"
    assert b"secret" not in body


def test_an_error_after_the_reply_has_begun_stays_what_it_is():
    async def breaks_off(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        ask(breaks_off)


@pytest.mark.parametrize(("obj", "status"), [("plain", 200), ({"error": {"code": "ours"}}, 503)])
def test_other_replies_pass_as_they_are(obj, status):
    answered, _, body = ask(says(obj, status))
    assert answered == status
    assert body == (json.dumps(obj, separators=(",", ":")).encode() if isinstance(obj, dict) else obj.encode())


@pytest.mark.parametrize("root_path", ["", "/tts"])
def test_serves_own_pages_stay_as_its_tools_read_them(root_path):
    status, _, body = ask(says("Route table is not populated yet.", 503), "/-/routes", root_path)
    assert (status, body) == (503, b"Route table is not populated yet.")
