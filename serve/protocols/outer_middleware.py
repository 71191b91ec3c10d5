"""Outer middleware: what is done with a request before the application, or Serve around it, reads it.

In:    ASGI scopes
Out:   scopes without the headers with which a client could control Serve; refusals
Never: Ray; bodies; an import that Serve's proxy does not need: it lives beside a service of some 100 MB

Serve reads these headers before any application code runs: its time limit (0 switches it off), its check for clients that
leave (?1 switches it off) and its routing hints. speech_response.py has limits and a check of its own in any case.
Oversized headers are refused here. Headers that never end must be cut by the load balancer in front: no ASGI code sees them.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.errors import SynthesisError
from serve.errors import ApiError, ErrorSpec, bad_request, plain_status
from serve.http.error_reply import named_error_reply
from serve.http.protocol import path_in
from serve.http.sender import peer_of, safe_request_id
from serve.protocols.registry import PROTOCOLS

# Compared with `_` for `-`: Serve accepts both spellings of some of them.
ROUTING_HEADERS = frozenset(
    {
        b"x_request_timeout_seconds",
        b"x_request_disconnect_disabled",
        b"x_session_id",
        b"serve_multiplexed_model_id",
        b"ray_serve_multiplexed_model_id",
        b"x_request_id",  # put back below, made harmless: Serve echoes whatever the client claims
    }
)
ROUTING_PREFIX = b"x_ray_"
WITHOUT_WATCH = (b"x-request-disconnect-disabled", b"?1")
"""of a WebSocket, and of a body that may be long: Serve's watch for clients that leave would read all of it ahead"""
MOST_WATCHED_BYTES = 64 << 10
"""of a body whose client is watched"""

MOST_HEADER_BYTES = 32 << 10
TOO_LARGE = bad_request("headers_too_large", f"the headers are larger than {MOST_HEADER_BYTES} bytes", status=431)
LOG = logging.getLogger("ray.serve.chattts")

KEPT = ("retry-after", "retry-after-ms", "x-request-id")
METHOD, PATH = "POST", "/v1/audio/speech"


class Check(Protocol):
    """A replica that may refuse."""

    async def refusal(self, headers: Headers, peer: str) -> SynthesisError | None:
        """Returns why speech is refused now; None: the route answers."""
        ...

    def passing(self) -> AbstractContextManager[None]:
        """Counts a request that the route answers, until it is answered."""
        ...


class EarlyRefusal:
    """ASGI middleware that refuses speech before Serve handles the request, for a third of the work of its route.

    One process refuses a burst one request after the other, so the cost of each adds to the wait of the last.
    """

    def __init__(self, app: ASGIApp, *, check: Callable[[], Check | None]) -> None:
        """Args:
        check: that of the ingress replica of this process; None where there is none.
        """
        self._app = app
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check = self._check() if is_speech(scope) else None
        if check is None:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = await check.refusal(headers, peer_of(scope))
        if refusal is not None:
            request_id = headers.get("x-request-id", "")
            await named_error_reply(refusal, request_id, protocol=PROTOCOLS.of(scope))(scope, receive, send)
            return
        with check.passing():
            await self._app(scope, receive, send)


def is_speech(scope: Scope) -> bool:
    """True for POST /v1/audio/speech below any route prefix."""
    return scope["type"] == "http" and scope["method"] == METHOD and str(scope["path"]).endswith(PATH)


class ErrorEnvelope:
    """ASGI middleware that turns errors in plain text into JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or path_in(scope).startswith("/-/"):
            await self._app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get("x-request-id", "")
        has_begun = is_replaced = False

        async def send_json(message: Message) -> None:
            nonlocal has_begun, is_replaced
            if message["type"] == "http.response.start":
                has_begun = True
                is_replaced = is_plain_error(message)
                if is_replaced:
                    headers = Headers(raw=message["headers"])
                    retained = {name: headers[name] for name in KEPT if name in headers}
                    refusal, protocol = refusal_of(message["status"]), PROTOCOLS.of(scope)
                    await named_error_reply(refusal, request_id, retained, protocol=protocol)(scope, receive, send)
            if not is_replaced:
                await send(message)

        try:
            await self._app(scope, receive, send_json)
        except Exception as error:
            if has_begun:
                raise
            LOG.exception("request=%s ended by an error outside the application", request_id)
            await named_error_reply(error, request_id, protocol=PROTOCOLS.of(scope))(scope, receive, send)


def is_plain_error(start: Message) -> bool:
    """True if the reply is an error in plain text."""
    return start["status"] >= 400 and Headers(raw=start["headers"]).get("content-type", "text/plain").startswith("text/plain")


def refusal_of(status: int) -> ApiError:
    """Returns the error that a status of Serve stands for."""
    if status in (429, 503):
        return ApiError(
            "the service takes no more requests right now", ErrorSpec(status, "overloaded_error", "overloaded", True, 1.0)
        )
    if status in (408, 504):
        return ApiError("the request took longer than it may", ErrorSpec(status, "server_error", "timeout", True))
    if status >= 500:
        return ApiError(
            "an internal error; its request_id finds it in the log", ErrorSpec(status, "server_error", "internal_error", True)
        )
    return plain_status(status)


class StripRoutingHeaders:
    """Drops the headers that control Serve; refuses requests with too many bytes of headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            request_id = safe_request_id(Headers(scope=scope).get("x-request-id"))
            if scope["type"] == "http" and sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEADER_BYTES:
                closing, protocol = {"connection": "close"}, PROTOCOLS.of(scope)
                await named_error_reply(TOO_LARGE, request_id, closing, protocol=protocol)(scope, receive, send)
                return
            retained = [(name, value) for name, value in scope["headers"] if not is_routing_header(name)]
            added = [(b"x-request-id", request_id.encode())]
            if scope["type"] == "websocket" or has_long_body(retained):
                added.append(WITHOUT_WATCH)
            scope = {**scope, "headers": [*retained, *added]}
        await self._app(scope, receive, send)


def has_long_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True for a body of more than MOST_WATCHED_BYTES, or of a length that is not said."""
    values = {name.lower(): value for name, value in headers}
    length = values.get(b"content-length", b"0")
    return b"transfer-encoding" in values or not length.isdigit() or len(length) > 9 or int(length) > MOST_WATCHED_BYTES


def is_routing_header(name: bytes) -> bool:
    """True if this header would control Serve."""
    plain = name.lower().replace(b"-", b"_")
    return plain in ROUTING_HEADERS or plain.startswith(ROUTING_PREFIX)
