"""Middleware: handles every request before its route does.

In:    ASGI scopes
Out:   the request with its id and its Caller; a refusal of requests without access, of sockets before they open; CORS headers;
       no-store with keys
Never: bodies; a key in a log line
"""

import logging
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.access.api_keys import Key
from serve.access.api_keys import Scope as KeyScope
from serve.access.authentication import SCHEMES, Authenticator, claimed_key
from serve.access.caller import ANONYMOUS_CALLER, Caller
from serve.access.cross_origin import CrossOriginPolicy
from serve.access.single_use_tokens import has_form_of_token
from serve.errors import ApiError
from serve.http.anteroom import KEY_FIELDS, TOKEN_FIELD, Anteroom, SocketLeft, WaitingSocket
from serve.http.error_reply import NOT_STORED, error_reply
from serve.http.protocol import Protocols
from serve.http.route_access import RouteAccessTable
from serve.http.sender import peer_of, safe_request_id
from serve.observability.reply_stats import ReplyObserver

LOG = logging.getLogger("ray.serve.chattts")

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
        if scope.get("method") == "HEAD":
            scope = {**scope, "method": "GET"}  # the server, whose scope this is not, sends no body

        async def send_with_id(message: Message) -> None:
            if self._announce and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


EVENTS = "text/event-stream"


class KeyRevoked(Exception):
    """Ends the connection of a reply whose key was revoked, without a terminator: its client sees an incomplete body."""


class AuthMiddleware:
    """Lets a request through to its route if its key, its Host and its quota allow it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        routes: RouteAccessTable,
        protocols: Protocols,
        authenticator: Callable[[], Authenticator],
        observer: Callable[[], ReplyObserver],
    ) -> None:
        self._app = app
        self._routes = routes
        self._protocols = protocols
        self._authenticator = authenticator
        self._observer = observer
        self._anteroom = Anteroom()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access = self._routes.access_of(scope) if scope["type"] in ("http", "websocket") else None
        if access is None or access.is_probe:
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        is_with_route = False
        added: dict[str, str] = {}  # headers
        is_cut = True  # when the key is revoked
        waiting = WaitingSocket(scope, receive, send, self._protocols)

        async def send_on(message: Message) -> None:
            nonlocal is_cut
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(added)
                is_cut = not headers.get("content-type", "").startswith(EVENTS)  # those say themselves why they end
            caller: Caller | None = state.get("caller")
            if is_cut and message["type"] == "http.response.body" and caller is not None and caller.is_revoked():
                raise KeyRevoked(str(state.get("request_id", "")))
            await waiting.send(message)

        async def to_route(caller: Caller) -> None:
            nonlocal is_with_route
            is_with_route, state["caller"] = True, caller
            await self._app(scope, waiting.receive, send_on)

        try:
            authenticator = self._authenticator()
            scopes = None if access.is_list and authenticator.has_open_lists else access.scopes
            key = await self._key_of(authenticator, scopes, waiting, speaks=access.stream)
            added |= {} if scopes is None else NOT_STORED
            if key is None:
                if access.stores:
                    authenticator.check_storing()
                state["client"] = authenticator.proxies.client_of(Headers(scope=scope), peer_of(scope))
                await to_route(authenticator.anonymous_caller)
                return
            async with authenticator.admitted(key, stream=access.stream) as (caller, rates):
                added |= rates
                await to_route(caller)
        except ApiError as refusal:
            if is_with_route:
                raise
            request_id = str(state.get("request_id", ""))
            LOG.info("refused request=%s code=%s", request_id or "-", refusal.spec.code)
            self._observer().rejected(refusal.spec.code)
            if waiting.is_open:
                await waiting.refuse(refusal, request_id)
                return
            await error_reply(refusal, request_id, protocol=self._protocols.of(scope))(scope, receive, send)
        except SocketLeft:
            pass

    async def _key_of(
        self, authenticator: Authenticator, scopes: frozenset[KeyScope] | None, waiting: WaitingSocket, *, speaks: bool
    ) -> Key | None:
        """Returns the key of a request; None if it needs none. A socket that speaks may say it in its first message.

        Raises:
            ApiError: 401, 403, 429, 503
            SocketLeft
        """
        scope = waiting.scope
        headers, peer = Headers(scope=scope), peer_of(scope)
        opens_page = scope.get("method", "GET") in ("GET", "HEAD")
        try:
            return authenticator.authenticate(headers, peer, scopes, opens_page=opens_page)
        except ApiError as refusal:
            claimed = claimed_key(headers) or ""
            if refusal.spec.code == "invalid_api_key" and has_form_of_token(claimed) and speaks and scopes is not None:
                return await authenticator.key_of_token(claimed, scopes)
            if refusal.spec.code != "missing_api_key" or not (speaks and waiting.may_say_its_key):
                raise
        token = waiting.in_address(TOKEN_FIELD)
        if token is not None and scopes is not None:
            return await authenticator.key_of_token(token, scopes)
        if (secret := waiting.in_address(*KEY_FIELDS)) is None:
            async with self._anteroom.place(authenticator.proxies.client_of(headers, peer)):
                secret = await waiting.key()
        headers = Headers(raw=[*scope["headers"], (b"xi-api-key", secret.encode("latin-1", "replace"))])
        return authenticator.authenticate(headers, peer, scopes, opens_page=opens_page)


class CrossOriginMiddleware:
    """Sends CORS headers to the configured origins; none if no origins are configured."""

    def __init__(self, app: ASGIApp, *, policy: Callable[[], CrossOriginPolicy]) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        policy = self._policy() if scope["type"] == "http" else None
        if policy is None or not policy.origins:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        granted = {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "*"} if policy.allows(origin) else {}
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
