"""Middleware: handles every request before its route does.

In:    ASGI scopes
Out:   the request with its id and its Caller; a refusal of requests without access; CORS headers; no-store with keys
Owns:  nothing
Never: Ray, bodies; a key in a log line
"""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.access.authentication import SCHEMES, Authenticator
from serve.access.caller import ANONYMOUS_CALLER, Caller
from serve.access.cross_origin import CrossOriginPolicy
from serve.errors import ApiError
from serve.http.close_codes import POLICY_VIOLATION
from serve.http.deepgram import errors as deepgram
from serve.http.elevenlabs import errors as elevenlabs
from serve.http.elevenlabs.frames import context_in
from serve.http.error_reply import NOT_STORED, error_reply, path_in
from serve.http.route_access import RouteAccessTable
from serve.http.sender import peer_of, safe_request_id
from serve.observability.reply_stats import ReplyObserver

LOG = logging.getLogger("ray.serve.chattts")

FIRST_MESSAGE_S = 1.0  # a refused client's time to name its context: LiveKit's waits for ever for one that it is not told of

# The wildcards stand for requests without cookies, the only ones there are here; Authorization has to be named beside them.
PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": "Authorization, *",
    "Access-Control-Max-Age": "600",
}


class RequestIdMiddleware:
    """Gives every request an id: the client's own if it is harmless, else a new one."""

    def __init__(self, app: ASGIApp, *, announce: bool) -> None:
        """
        Args:
            announce: whether replies carry the id in X-Request-ID.
        """
        self._app = app
        self._announce = announce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = safe_request_id(Headers(scope=scope).get("x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if self._announce and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class KeyRevoked(Exception):
    """Ends the connection of a reply whose key was revoked, without a terminator: its client sees an incomplete body."""


class AuthMiddleware:
    """Lets a request through to its route if its key, its Host and its quota allow it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        routes: RouteAccessTable,
        authenticator: Callable[[], Authenticator],
        observer: Callable[[], ReplyObserver],
    ) -> None:
        self._app = app
        self._routes = routes
        self._authenticator = authenticator
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access = self._routes.access_of(scope) if scope["type"] in ("http", "websocket") else None
        if access is None or access.is_probe:
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        started = False
        added: dict[str, str] = {}  # headers

        async def send_on(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(added)
            caller: Caller | None = state.get("caller")
            if message["type"] == "http.response.body" and caller is not None and caller.is_revoked():
                raise KeyRevoked(str(state.get("request_id", "")))
            await send(message)

        try:
            authenticator = self._authenticator()
            scopes = None if access.is_list and authenticator.has_open_lists else access.scopes
            key = authenticator.authenticate(
                Headers(scope=scope), peer_of(scope), scopes, opens_page=scope.get("method", "GET") in ("GET", "HEAD")
            )
            added |= {} if scopes is None else NOT_STORED
            if key is None:
                state["caller"] = authenticator.anonymous_caller
                await self._app(scope, receive, send_on)
                return
            async with authenticator.admitted(key, stream=access.stream) as (caller, rates):
                state["caller"] = caller
                added |= rates
                await self._app(scope, receive, send_on)
        except ApiError as refusal:
            if started:
                raise
            request_id = str(state.get("request_id", ""))
            LOG.info("refused request=%s code=%s", request_id or "-", refusal.spec.code)
            self._observer().rejected(refusal.spec.code)
            if scope["type"] == "websocket":
                await refuse_socket(refusal, request_id, scope, receive, send)
                return
            await error_reply(refusal, request_id, path=path_in(scope))(scope, receive, send)


class CrossOriginMiddleware:
    """Sends CORS headers to the configured origins; none if no origins are configured."""

    def __init__(self, app: ASGIApp, *, policy: Callable[[], CrossOriginPolicy]) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = self._policy().origins if scope["type"] == "http" else frozenset()
        if not origins:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        granted = {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "*"} if origin in origins else {}
        if granted and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            reply = Response(status_code=204, headers={**granted, **PREFLIGHT, "Vary": "Origin"})
            await reply(scope, receive, send)
            return

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                reply_headers = MutableHeaders(scope=message)
                reply_headers.add_vary_header("Origin")
                reply_headers.update(granted)
            await send(message)

        await self._app(scope, receive, send_with_cors)


async def refuse_socket(refusal: ApiError, request_id: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Accepts a WebSocket, says why it is refused, and closes it: a refused handshake could not say it."""
    path = path_in(scope)
    message = {"type": "refused", "status": refusal.spec.status, **refusal.body(request_id)}
    if elevenlabs.is_spoken_at(path):
        message = elevenlabs.message_of(refusal, request_id)
    if deepgram.is_spoken_at(path):
        message = deepgram.message_of(refusal, request_id, ends=True)
    asked = subprotocol_of(scope)
    await send({"type": "websocket.accept", **({} if asked is None else {"subprotocol": asked})})
    await send({"type": "websocket.send", "text": json.dumps(message)})
    if elevenlabs.has_contexts(path):
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_MESSAGE_S):
                while (heard := await receive())["type"] == "websocket.connect":
                    pass
            if heard["type"] == "websocket.disconnect":
                return
            message = elevenlabs.message_of(refusal, request_id, context_in(heard.get("text")))
            await send({"type": "websocket.send", "text": json.dumps(message)})
    await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": refusal.spec.code})


def subprotocol_of(scope: Scope) -> str | None:
    """Returns the protocol that a client asks for beside its key, which it expects to be confirmed; None: it asks for none."""
    return next((name for name in scope.get("subprotocols") or () if name in SCHEMES), None)


def request_id_of(request: HTTPConnection) -> str:
    """Returns the id that RequestIdMiddleware put on the request."""
    return str(request.state.request_id)


def caller_of(request: HTTPConnection) -> Caller:
    """Returns the caller that AuthMiddleware put on the request."""
    caller: Caller = getattr(request.state, "caller", ANONYMOUS_CALLER)
    return caller
