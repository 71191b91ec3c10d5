"""Proxy middleware: removes the headers with which a client could control Serve's routing, before Serve reads them.

In:    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=serve.http.proxy_middleware:middlewares in the environment of Ray's processes
Out:   ASGI middleware around Serve's own HTTP server: the proxy's, or the ingress replica's under direct ingress
Owns:  nothing
Never: bodies; an import that a proxy does not need: it lives beside a service of some 100 MB

Serve reads these headers before any application code runs: its time limit (0 switches it off), its check for clients that
leave (?1 switches it off) and its routing hints. speech_response.py has limits and a check of its own in any case.
Oversized headers are refused here. Headers that never end must be cut by the load balancer in front: no ASGI code sees them.
"""

from collections.abc import Iterable

from ray import serve
from ray.serve.exceptions import RayServeException
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.errors import bad_request
from serve.http import uvicorn_protocols
from serve.http.early_refusal import EarlyRefusal, Gate
from serve.http.error_envelope import ErrorEnvelope
from serve.http.error_reply import named_error_reply, path_in
from serve.http.sender import safe_request_id

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


class StripRoutingHeaders:
    """Drops the headers that control Serve; refuses requests with too many bytes of headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            request_id = safe_request_id(Headers(scope=scope).get("x-request-id"))
            if scope["type"] == "http" and sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEADER_BYTES:
                await named_error_reply(TOO_LARGE, request_id, {"connection": "close"}, path=path_in(scope))(
                    scope, receive, send
                )
                return
            kept = [(name, value) for name, value in scope["headers"] if not is_routing_header(name)]
            added = [(b"x-request-id", request_id.encode())]
            if scope["type"] == "websocket" or has_long_body(kept):
                added.append(WITHOUT_WATCH)
            scope = {**scope, "headers": [*kept, *added]}
        await self._app(scope, receive, send)


def middlewares() -> list[Middleware]:
    """Returns the middleware that Serve puts around its own, the last one outermost; its server has not been started yet."""
    uvicorn_protocols.install()
    return [Middleware(ErrorEnvelope), Middleware(EarlyRefusal, gate=gate_here), Middleware(StripRoutingHeaders)]


def gate_here() -> Gate | None:
    """Returns the gate of the ingress replica in this process; None in a proxy, or while the replica starts."""
    try:
        replica = serve.get_replica_context().servable_object
    except RayServeException:
        return None
    found: Gate | None = getattr(replica, "gate", None)
    return found


def has_long_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True for a body of more than MOST_WATCHED_BYTES, or of a length that is not said."""
    said = {name.lower(): value for name, value in headers}
    length = said.get(b"content-length", b"0")
    return b"transfer-encoding" in said or not length.isdigit() or len(length) > 9 or int(length) > MOST_WATCHED_BYTES


def is_routing_header(name: bytes) -> bool:
    """True if this header would control Serve."""
    plain = name.lower().replace(b"-", b"_")
    return plain in ROUTING_HEADERS or plain.startswith(ROUTING_PREFIX)
