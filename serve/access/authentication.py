"""Authentication: which requests are allowed, before any route sees them.

In:    headers and the peer's address
Out:   the key, and a Caller whose permit is held until the reply is over; or 401, 403, 429
Owns:  the mean duration of a stream
Never: ASGI, bodies; a key in a message, a log or a tag

Until a key exists, only clients on this machine are served, unless `keys.open` says otherwise; pages of other sites in this
machine's browsers do not count as such clients (cross_origin.py). What a proxy claims about its client (X-Forwarded-For and
similar headers) can deny access but never grant it. Whoever is served without a key has the scopes of `keys.anonymous_scopes`
and no more, on every protocol.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from starlette.datastructures import Headers

from pipeline.errors import StoreUnavailable
from pipeline.ewma import Ewma
from serve.access.api_keys import LOST, Key, KeyRing, Scope
from serve.access.caller import (
    ANONYMOUS,
    ANONYMOUS_CALLER,
    EWMA_WEIGHT,
    FIRST_DURATION_S,
    OPERATOR_WITHOUT_KEYS,
    Caller,
)
from serve.access.cross_origin import CrossOriginPolicy
from serve.access.entrance import Entrance
from serve.access.proxies import Proxies
from serve.access.quotas import LocalQuotas, Quotas
from serve.access.refusals import invalid_key, rate_headers, unauthorised
from serve.access.single_use_tokens import TTL_S, SingleUseTokens, invalid_token
from serve.config.hosts import is_local_host, is_loopback
from serve.config.key_settings import Openness
from serve.errors import ApiError, ErrorSpec, to_api_error

SCHEMES = ("bearer", "token")  # RFC 6750's, and Deepgram's
KEY_HEADERS = ("xi-api-key", "x-api-key", "x-vapi-secret", "api-key")
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "x-forwarded-host", "via")
SEND = "send a key: Authorization: Bearer ck-..., Authorization: Token ck-..., xi-api-key, X-API-Key or X-Vapi-Secret"

ANONYMOUS_SCOPES = frozenset({Scope.SPEECH, Scope.TEXT})


class Authenticator:
    """Checks keys and quotas, and decides what is allowed while there are no keys."""

    def __init__(
        self,
        ring: KeyRing | None = None,
        quotas: Quotas | None = None,
        *,
        is_open: Openness = None,
        anonymous_scopes: Collection[Scope] = ANONYMOUS_SCOPES,
        has_open_lists: bool = False,
        is_local_peer: Callable[[str], bool] | None = None,
        origins: CrossOriginPolicy | None = None,
        proxies: Proxies | None = None,
        single_use: SingleUseTokens | None = None,
    ) -> None:
        """
        Args:
            ring: the keys; None: there are none and never will be.
            is_open: True: requests without a key are served wherever they come from; False: never; "until_first_key": as
                long as no key exists; None: those from this machine, as long as no key exists.
            anonymous_scopes: of requests that are served without a key; admin is never one of them.
            has_open_lists: whether the lists of voices and models need no key.
            is_local_peer: whether the address of a peer is one of this machine.
            origins: which hosts and web pages count as of this machine; None: only its own.
            proxies: whose word about their clients is believed; None: nobody's.
            single_use: tokens that stand for a key once; None: there are none.
        """
        self._ring = ring
        self._quotas: Quotas = quotas or LocalQuotas()
        self._is_open = is_open
        self._anonymous_scopes = frozenset(anonymous_scopes) - {Scope.ADMIN}
        self.has_open_lists = has_open_lists
        self._is_local_peer = is_local_peer or is_loopback
        self.origins = origins or CrossOriginPolicy()
        self.proxies = proxies or Proxies()
        self.single_use = single_use
        self._mean_stream_s = Ewma(EWMA_WEIGHT, FIRST_DURATION_S)

    @property
    def anonymous_caller(self) -> Caller:
        """The client of a request that is served without a key."""
        return OPERATOR_WITHOUT_KEYS if self._serves_its_machine else ANONYMOUS_CALLER

    @property
    def _serves_its_machine(self) -> bool:
        return self._is_open is None and (self._ring is None or (self._ring.is_known and self._ring.is_empty))

    def key_of(self, headers: Headers, peer: str, scopes: frozenset[Scope]) -> Key | None:
        """Returns the key a request is allowed by; None if it may go without.

        Args:
            scopes: of which the key, or the clients without one, must have one.

        Raises:
            ApiError: 401, 403; 503 as long as the keys have not been read.
        """
        key = self._key_in(headers, peer)
        if key is not None:
            check_scope(key, scopes)
        elif not scopes & self._anonymous_scopes:
            raise self._lacks(f"this needs a key with the scope {' or '.join(sorted(scopes))}")
        return key

    async def key_of_token(self, token: str, scopes: frozenset[Scope]) -> Key:
        """Returns the key that a single-use token stands for, and uses the token up.

        Raises:
            ApiError: 401, 403; 503 as long as the secret or the keys have not been read.
        """
        if self.single_use is None or self._ring is None:
            raise invalid_token()
        try:
            key = self._ring.named(self.single_use.key_id(token))
        except StoreUnavailable as error:
            raise to_api_error(error) from None
        if key is None:
            raise invalid_key()
        check_scope(key, scopes)
        await self.single_use.use(token)
        return key

    def token_of(self, key_id: str, ttl_s: float = TTL_S) -> str:
        """Returns a new single-use token of a key.

        Raises:
            StoreUnavailable: there are none, or the secret is not known yet.
        """
        if self.single_use is None:
            raise StoreUnavailable("this service issues no single-use tokens")
        return self.single_use.issue(key_id, ttl_s)

    def check_storing(self) -> None:
        """Checks that clients without a key may store what all clients use.

        Raises:
            ApiError: 401
        """
        if Scope.VOICES not in self._anonymous_scopes:
            raise self._lacks("storing this needs a key")

    def _lacks(self, needed: str) -> ApiError:
        """Returns what a client without a key is told that wants more than it may."""
        allowed = ", ".join(sorted(self._anonymous_scopes)) or "nothing"
        has_keys = self._ring is not None and not self._ring.is_empty
        advice = SEND if has_keys else f"make one: chattts-serve keys add NAME --scopes {','.join(Scope)}"
        return unauthorised("missing_api_key", f"{needed}; without a key this service allows {allowed}; {advice}")

    def _key_in(self, headers: Headers, peer: str) -> Key | None:
        """Returns the key a request brings; None if it is served without one, whatever it wants."""
        claimed = claimed_key(headers)
        ring = self._ring
        if ring is not None and not ring.is_known and not (self._is_open is True and claimed is None):
            raise to_api_error(StoreUnavailable("the keys could not be read yet (keys.store); /health and the log say why"))
        if ring is None or ring.is_empty:
            if ring is not None and ring.are_lost and self._is_open is not True:
                raise to_api_error(StoreUnavailable(LOST))
            if self._is_open or (self._is_open is None and self._comes_from_here(headers, peer)):
                return None
            raise unauthorised(
                "no_keys_configured",
                "this service has no keys yet and serves its own machine only: make one with "
                "`chattts-serve keys add NAME`, or set keys.open: true if a gateway in front checks callers",
            )
        if claimed is None:
            if self._is_open is True:
                return None
            raise unauthorised("missing_api_key", SEND)
        key = ring.find(claimed)
        if key is None:
            raise invalid_key()
        return key

    def key_of_listener(self, key_id: str | None, peer: str, setting: str) -> Key | None:
        """Returns the key that the clients of a protocol without keys speak by; None if they may go without.

        Args:
            key_id: of the key that the operator names for them; None: the operator names none.
            setting: where that is said.

        Raises:
            ApiError: 401, 403; 503 as long as the keys have not been read.
        """
        if key_id is None:
            try:
                return self.key_of(Headers(), peer, frozenset({Scope.SPEECH}))
            except ApiError as refusal:
                if refusal.spec.code != "missing_api_key":
                    raise
                raise unauthorised(
                    "missing_api_key", f"this protocol has no keys: the operator names one ({setting})"
                ) from None
        ring = self._ring
        if ring is None or not ring.is_known:
            raise to_api_error(StoreUnavailable("the keys could not be read yet (keys.store); /health and the log say why"))
        key = ring.named(key_id)
        if key is None:
            raise unauthorised("invalid_api_key", f"there is no key of the id that the operator names here ({setting})")
        check_scope(key, frozenset({Scope.SPEECH}))
        return key

    def check_browser(self, headers: Headers, peer: str, *, opens_page: bool) -> None:
        """Refuses requests that a page of another site sends through a browser of this machine, as long as no key exists.

        Raises:
            ApiError: 403
        """
        if self._serves_its_machine and self._comes_from_here(headers, peer):
            self.origins.check(headers, opens_page=opens_page)

    def authenticate(self, headers: Headers, peer: str, scopes: frozenset[Scope] | None, *, opens_page: bool) -> Key | None:
        """Returns the key a request is allowed by, None if it needs none.

        Args:
            peer: the address the connection comes from.
            scopes: the route's, of which the key must have one; None: the route needs no key.
            opens_page: True if the request only reads, as a link does that opens a page.

        Raises:
            ApiError: 401, 403, 503
        """
        self.check_browser(headers, peer, opens_page=opens_page and scopes is None)
        if scopes is None:
            return None
        return self.key_of(headers, peer, scopes)

    def _is_revoked(self, key: Key) -> bool:
        return self._ring is not None and self._ring.named(key.id) is None

    def _comes_from_here(self, headers: Headers, peer: str) -> bool:
        return self._is_local_peer(peer) and not any(name in headers for name in FORWARDED)

    @asynccontextmanager
    async def admitted(self, key: Key, *, stream: bool) -> AsyncIterator[tuple[Caller, dict[str, str]]]:
        """Counts one request of a key; with `stream` it holds a permit until the block ends.

        Yields:
            the caller, and headers with the state of its request rate.

        Raises:
            ApiError: 429
        """
        caller = replace(self._caller(key), entrance=Entrance(stream=stream))
        permit = secrets.token_hex(8) if stream else None
        began = asyncio.get_running_loop().time()
        try:
            try:
                decision = await caller.acquire(permit)
            except ApiError:
                permit = None  # it holds none
                raise
            yield caller, rate_headers(decision, key.record.quota)
        finally:
            if permit is not None:
                self._quotas.release(key.id, permit)
                self._mean_stream_s.add(asyncio.get_running_loop().time() - began)

    def owner(self, tenant: str) -> Caller:
        """Returns the caller who accepted work goes on for; the rate counted the request with which it came.

        Raises:
            StoreUnavailable: the keys have not been read, or are lost.
        """
        ring = self._ring
        if tenant == ANONYMOUS or ring is None:
            return Caller(tenant)
        if not ring.is_known or ring.are_lost:
            raise StoreUnavailable("the keys could not be read yet (keys.store); /health and the log say why")
        key = ring.named(tenant)
        if key is None:
            return Caller(tenant, is_revoked=lambda: True)
        caller = self._caller(key)
        return replace(caller, quota=key.record.quota.model_copy(update={"requests_per_s": None}))

    def _caller(self, key: Key) -> Caller:
        return Caller(
            key.id,
            key.record.lanes,
            key.record.quota,
            self._quotas,
            partial(self._is_revoked, key),
            watch=partial(self._ring.watch, key.id) if self._ring is not None else lambda notify: lambda: None,
            is_operator=Scope.ADMIN in key.record.scopes,
            mean_stream_s=self._mean_stream_s,
        )


def claimed_key(headers: Headers) -> str | None:
    """Returns the text a client sends as its key, from any of the headers."""
    bearer = headers.get("authorization", "")
    scheme, _, claimed = bearer.partition(" ")
    if scheme.lower() in SCHEMES and claimed:
        return claimed.strip()
    offered = [word.strip() for word in headers.get("sec-websocket-protocol", "").split(",")]
    if len(offered) == 2 and offered[0] in SCHEMES:
        return offered[1]  # of a browser, which can send no other header with a WebSocket
    return next((headers[name] for name in KEY_HEADERS if headers.get(name)), None)


def check_scope(key: Key, scopes: frozenset[Scope]) -> None:
    """Checks that the key has one of the scopes.

    Raises:
        ApiError: 403
    """
    if not scopes & set(key.record.scopes):
        required = " or ".join(sorted(scopes))
        raise ApiError(
            f"key {key.id} lacks the scope {required}; it has {', '.join(key.record.scopes)}",
            ErrorSpec(403, "permission_error", "scope_missing", False),
        )


def local_peer_check(*, listens: str | None, behind_proxy: bool, own: Collection[str]) -> Callable[[str], bool]:
    """Returns the check whether the address of a peer is one of this machine.

    Args:
        listens: the host the service listens on; None: not known.
        behind_proxy: True if every peer is Serve's HAProxy, which hides the client's address: then only a service that
            listens on loopback alone knows that its clients are on this machine. The peer is checked too, because replicas
            can also be reached past the proxy.
        own: the addresses of this machine beside loopback, from which its HAProxy may connect.
    """
    if behind_proxy and not (listens is not None and is_local_host(listens)):
        return lambda peer: False
    if behind_proxy:
        return lambda peer: is_loopback(peer) or peer in own
    return is_loopback
