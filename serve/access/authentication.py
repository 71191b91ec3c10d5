"""Authenticator: who is let in, before any route sees the request.

In:    headers and the peer's address
Out:   a Caller on the request, its permit held until the reply is over; or 401, 403, 429
Owns:  nothing but what the quotas count
Never: Ray, bodies; a key in a message, a log or a tag

Without any key in the store only clients of this machine are served, unless `keys.open` says otherwise; other sites' pages in
this machine's browsers are none of them (cross_origin.py). What a proxy claims about its client (X-Forwarded-For and its
kin) can close the gate and never opens it.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from pipeline.errors import StoreUnavailable
from pipeline.ewma import Ewma
from pipeline.types import Lane
from serve.access.api_keys import LOST, Key, KeyRing, Quota, Scope
from serve.access.cross_origin import CrossOriginPolicy
from serve.access.quotas import LocalQuotas, QuotaDecision, Quotas
from serve.config.hosts import is_local_host, is_loopback
from serve.errors import ApiError, ErrorSpec, to_api_error
from serve.observability.reply_stats import ReplyObserver

LOG = logging.getLogger("ray.serve.chattts")

EWMA_WEIGHT = 0.2  # of the newest stream in the mean time of one
FIRST_STAY_S = 2.0  # until the first stream has ended

ANONYMOUS = "anonymous"
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "x-forwarded-host", "via")

MESSAGES = {
    "rate_limited": "this key's requests a second are used up",
    "too_many_concurrent_requests": "this key has as many requests under way as it may",
    "quota_exceeded": "this key's quota of characters a day or of audio a minute is used up",
}


@dataclass(frozen=True, slots=True)
class RouteAccess:
    """What a route asks of a key."""

    scopes: frozenset[Scope] | None = None
    """any of them; None: nothing at all, no key either"""
    stream: bool = False
    """whether the model works while it lasts"""


PROBES = ("/live", "/ready")
OPEN_PATHS = ("/", *PROBES, "/health", "/source", "/source.tar.gz", "/docs", "/openapi.json")
OPEN = RouteAccess()
ANY = RouteAccess(frozenset(Scope))


def need(method: str, path: str) -> RouteAccess:
    """The one table of routes and scopes. A path nobody knows takes a key, so that new routes are closed until listed."""
    if path in OPEN_PATHS:
        return OPEN
    if path == "/admin" or path.startswith("/admin/"):
        return RouteAccess(frozenset({Scope.ADMIN}))
    if path.startswith("/v1/audio/voices"):
        if path.endswith(("/preview", "/score")):
            return RouteAccess(frozenset({Scope.VOICES}), stream=True)
        makes = method == "POST" and path != "/v1/audio/voices/random"
        return ANY if method in ("GET", "HEAD") else RouteAccess(frozenset({Scope.VOICES}), stream=makes)
    if path == "/v1/text/refine":
        return RouteAccess(frozenset({Scope.SPEECH}), stream=True)
    if path.startswith(("/v1/text/", "/v1/lexicons")) or path == "/v1/audio/speech/plan":
        return RouteAccess(frozenset({Scope.TEXT}))
    if path.startswith("/v1/audio/"):
        return RouteAccess(frozenset({Scope.SPEECH}), stream=method == "POST")
    return ANY


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """Who asks, as the routes see it."""

    id: str = ANONYMOUS
    """of the key: for logs, shares and tenants"""
    lanes: Collection[Lane] = tuple(Lane)
    quota: Quota | None = None
    """None: nothing is counted"""
    quotas: Quotas = field(default_factory=LocalQuotas)

    def lane(self, wished: str | None) -> Lane:
        """The lane of a request: the one it wishes, else standard, else the most urgent one it may use.

        Raises:
            ApiError: 403
        """
        if wished is None:
            return Lane.STANDARD if Lane.STANDARD in self.lanes else next(lane for lane in Lane if lane in self.lanes)
        if wished not in self.lanes:
            raise ApiError(
                f"key {self.id} may not use this lane; it may use {', '.join(self.lanes)}",
                ErrorSpec(403, "permission_error", "lane_not_allowed", False),
                param="priority",
            )
        return Lane(wished)

    async def charge_characters(self, characters: int) -> None:
        """Take characters of the day.

        Raises:
            ApiError: 429
        """
        if self.quota is not None:
            decision = await self.quotas.charge_characters(self.id, self.quota, characters)
            if decision.refusal:
                raise refused(decision, self.quota, retry_helps=False)

    def record_audio(self, audio_s: float) -> None:
        """Audio was made for it."""
        if self.quota is not None:
            self.quotas.record_audio(self.id, self.quota, audio_s)


ANONYMOUS_CALLER = Caller()


def caller_of(request: Request) -> Caller:
    """Who asks; set by AuthMiddleware."""
    caller: Caller = getattr(request.state, "caller", ANONYMOUS_CALLER)
    return caller


class Authenticator:
    """Keys, quotas, and what holds without keys."""

    def __init__(
        self,
        ring: KeyRing | None = None,
        quotas: Quotas | None = None,
        *,
        is_open: bool | None = None,
        is_local_peer: Callable[[str], bool] | None = None,
        origins: CrossOriginPolicy | None = None,
    ) -> None:
        """
        Args:
            ring: None: there are no keys and never will be.
            is_open: clients without a key are served wherever they come from; None: from this machine, while there is none.
            is_local_peer: whether a peer's address is this machine's.
            origins: which hosts and web pages count as this machine's; None: none beside its own.
        """
        self._ring = ring
        self._quotas: Quotas = quotas or LocalQuotas()
        self._is_open = is_open
        self._is_local_peer = is_local_peer or is_loopback
        self.origins = origins or CrossOriginPolicy()
        self._stay_s = Ewma(EWMA_WEIGHT, FIRST_STAY_S)

    def key_of(self, headers: Headers, peer: str) -> Key | None:
        """The key a request brings; None where none is needed.

        Raises:
            ApiError: 401; 503 while nobody knows which keys there are.
        """
        claimed = claimed_key(headers)
        ring = self._ring
        if ring is not None and not ring.is_known and not (self._is_open and claimed is None):
            raise to_api_error(
                StoreUnavailable("which keys there are could not be read yet (keys.store); /health and the log say why")
            )
        if ring is None or ring.is_empty:
            if ring is not None and ring.are_lost and not self._is_open:
                raise to_api_error(StoreUnavailable(LOST))
            if self._is_open or (self._is_open is None and self._comes_from_here(headers, peer)):
                return None
            raise unauthorised(
                "no_keys_configured",
                "this service has no keys yet and serves its own machine only: make one with "
                "`chattts-serve keys add NAME`, or state keys.open: true where another door stands in front",
            )
        if claimed is None:
            if self._is_open:
                return None
            raise unauthorised("missing_api_key", "send a key: Authorization: Bearer ck-..., xi-api-key or X-API-Key")
        key = ring.find(claimed)
        if key is None:
            raise unauthorised("invalid_api_key", "no such key; it may have been revoked")
        return key

    def check_browser(self, method: str, path: str, headers: Headers, peer: str) -> None:
        """Refuse what another site's page sends through a browser of this machine, where being of this machine is enough.

        Raises:
            ApiError: 403
        """
        ring = self._ring
        without_keys = self._is_open is None and (ring is None or (ring.is_known and ring.is_empty))
        if without_keys and self._comes_from_here(headers, peer):
            self.origins.check(headers, opens_page=method in ("GET", "HEAD") and path in OPEN_PATHS)

    def caller_key(self, method: str, path: str, needed: RouteAccess, scope: AsgiScope, headers: Headers) -> Key | None:
        """The key a request is allowed by, None when it needs none; scope is ASGI's.

        Raises:
            ApiError: 401, 403, 503
        """
        client = scope.get("client")
        peer = client[0] if client else ""
        self.check_browser(method, path, headers, peer)
        if needed.scopes is None:
            return None
        key = self.key_of(headers, peer)
        if key is not None:
            check_scope(key, needed.scopes)
        return key

    def _comes_from_here(self, headers: Headers, peer: str) -> bool:
        return self._is_local_peer(peer) and not any(name in headers for name in FORWARDED)

    @asynccontextmanager
    async def admitted(self, key: Key, *, stream: bool) -> AsyncIterator[tuple[Caller, dict[str, str]]]:
        """One request of a key, counted; with `stream` its permit is held until the block ends.

        Yields:
            the caller, and the headers that say where its rate stands.

        Raises:
            ApiError: 429
        """
        quota = key.record.quota
        permit = secrets.token_hex(8) if stream else None
        began = asyncio.get_running_loop().time()
        try:
            decision = await self._quotas.acquire(key.id, quota, permit)
            if decision.refusal:
                permit = None  # it holds none
                if decision.refusal == "too_many_concurrent_requests":
                    decision = QuotaDecision(
                        decision.refusal, self._stay_s.value / (quota.streams or 1), decision.remaining, decision.reset_s
                    )
                raise refused(decision, quota)
            yield Caller(key.id, key.record.lanes, quota, self._quotas), rate_headers(decision, quota)
        finally:
            if permit is not None:
                self._quotas.release(key.id, permit)
                self._stay_s.add(asyncio.get_running_loop().time() - began)


class AuthMiddleware:
    """ASGI middleware: the gate in front of every route."""

    def __init__(self, app: ASGIApp, *, gate: Callable[[], tuple[Authenticator, ReplyObserver]]) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        method, path = scope.get("method", "GET"), scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        if path in PROBES and kind == "http":
            await self._app(scope, receive, send)  # probes call a replica by whatever address it has
            return
        needed = need(method, path) if kind == "http" else RouteAccess(frozenset({Scope.SPEECH}), stream=True)
        gate, watch = self._gate()
        state = scope.setdefault("state", {})
        started = False

        async def send_on(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            key = gate.caller_key(method, path, needed, scope, Headers(scope=scope))
            if key is None:
                state["caller"] = ANONYMOUS_CALLER
                await self._app(scope, receive, send_on)
                return
            async with gate.admitted(key, stream=needed.stream) as (caller, rates):
                state["caller"] = caller

                async def send_with_rate(message: Message) -> None:
                    if message["type"] == "http.response.start":
                        MutableHeaders(scope=message).update(rates)
                    await send_on(message)

                await self._app(scope, receive, send_with_rate)
        except ApiError as refusal:
            if started:
                raise
            LOG.info("refused request=%s code=%s", state.get("request_id", "-"), refusal.spec.code)
            watch.rejected(refusal.spec.code)
            if kind == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": refusal.spec.code})
                return
            reply = JSONResponse(refusal.body(str(state.get("request_id", ""))), refusal.spec.status, refusal.reply_headers())
            await reply(scope, receive, send)


def claimed_key(headers: Headers) -> str | None:
    """What the client sends as its key."""
    bearer = headers.get("authorization", "")
    if bearer[:7].lower() == "bearer ":
        return bearer[7:].strip()
    return headers.get("xi-api-key") or headers.get("x-api-key") or None


def check_scope(key: Key, scopes: frozenset[Scope]) -> None:
    """Raises:
    ApiError: 403, the key may do none of them.
    """
    if not scopes & set(key.record.scopes):
        wanted = " or ".join(sorted(scopes))
        raise ApiError(
            f"key {key.id} lacks the scope {wanted}; it has {', '.join(key.record.scopes)}",
            ErrorSpec(403, "permission_error", "scope_missing", False),
        )


def unauthorised(code: str, message: str) -> ApiError:
    """401"""
    return ApiError(message, ErrorSpec(401, "authentication_error", code, False), headers={"WWW-Authenticate": "Bearer"})


def refused(decision: QuotaDecision, quota: Quota, *, retry_helps: bool = True) -> ApiError:
    """429"""
    kind = ErrorSpec(429, "rate_limit_error", decision.refusal, retry_helps, max(decision.retry_after_s, 0.001))
    return ApiError(MESSAGES[decision.refusal], kind, headers=rate_headers(decision, quota))


def rate_headers(decision: QuotaDecision, quota: Quota) -> dict[str, str]:
    """Where the rate of requests stands, in the usual headers and in OpenAI's."""
    if decision.remaining is None:
        return {}
    limit, remaining, reset_s = str(quota.burst), str(max(0, decision.remaining)), decision.reset_s
    return {
        "RateLimit-Limit": limit,
        "RateLimit-Remaining": remaining,
        "RateLimit-Reset": str(max(1, round(reset_s + 0.5))),
        "x-ratelimit-limit-requests": limit,
        "x-ratelimit-remaining-requests": remaining,
        "x-ratelimit-reset-requests": f"{reset_s:.3f}s",
    }


def local_peer_check(*, listens: str | None, behind_proxy: bool, own: Collection[str]) -> Callable[[str], bool]:
    """Which peers are clients of this machine.

    Args:
        listens: the host the service listens on; None: not known.
        behind_proxy: every peer is Serve's HAProxy, which does not say for whom it asks: then only a service that listens on
            loopback alone knows that its clients are of this machine. The peer counts all the same, since replicas of that
            mode can be reached beside the proxy.
        own: the addresses of this machine beside loopback, from which its HAProxy may come.
    """
    if behind_proxy and not (listens is not None and is_local_host(listens)):
        return lambda peer: False
    if behind_proxy:
        return lambda peer: is_loopback(peer) or peer in own
    return is_loopback
