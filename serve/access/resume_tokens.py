"""Resume tokens: what fixes the bytes of a reply beside its body, signed, in the hands of the client.

In:    a tenant and the Origin of its reply; later the tenant and the token
Out:   a token; the Continuation; a 412 for a token that is too old, of another key, or not ours
Owns:  nothing: the client has the token, every replica of one store has the secret
Never: a text: hashes that the secret salts
"""

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.errors import Conflict, StoreUnavailable
from pipeline.store.store import Store
from serve.errors import ApiError, ErrorSpec

HEADER = "X-Resume"
SECRET_BYTES = 32
NAMESPACE, NAME = "secrets", "resume"
_MAC_BYTES = 16
_MOST_CHARACTERS = 2048


@dataclass(frozen=True, slots=True)
class Origin:
    """What the bytes of a reply follow from."""

    seed: int
    model: str
    """version of the model"""
    degraded: tuple[str, ...]
    """degradation steps that changed it"""
    body: str
    """hash of the client's body"""
    resolved: str
    """hash of what the service made of it: voices, lexicons and defaults of that moment"""
    build: str
    """hash of the code, the libraries, the settings and the kind of processor"""
    engine: str
    """fingerprint of the engine"""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A reply that goes on."""

    origin: Origin
    token: str
    is_paid: bool
    """the reply was made by a request that was charged; False: it was a continuation itself"""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a client wants a reply to go on."""

    first: int
    """byte of the audio"""
    token: str | None = None
    """None: the one of its idempotency key"""
    sha256: str = ""
    """beginning of the hash of the bytes before, in hexadecimal; empty: the client does not tell it"""
    seq: int = 0
    """number of the next event"""
    is_range: bool = False
    """it is an error if nothing follows"""


FLEET_KEY = "CHATTTS_FLEET_KEY"
"""variable of the environment: the same in several services, each goes on with replies of the others"""


class SharedSecret:
    """The secret of all replicas of a store, made by the first of them; not known before the store was read."""

    def __init__(self, store: Store, fleet_key: str = "") -> None:
        """
        Args:
            fleet_key: what all services of a fleet derive the secret from; empty: each store has its own.
        """
        self.value: bytes | None = hashlib.sha256(fleet_key.encode()).digest() if fleet_key else None
        self._store = None if fleet_key else store

    def refresh(self) -> None:
        """Reads the secret; gives the store the known one, or a new one, if it has none. Blocking.

        Raises:
            StoreUnavailable, StoreFull: the secret stays what it was.
        """
        if self._store is None:
            return
        while (entry := self._store.get(NAMESPACE, NAME)) is None:
            try:
                self._store.put(NAMESPACE, NAME, self.value or secrets.token_bytes(SECRET_BYTES), replaces=0, keeps=1)
            except Conflict:
                continue  # another replica made it
        self.value = entry[1]


class ResumeTokens:
    """Signs and reads tokens."""

    def __init__(self, secret: bytes | SharedSecret, ttl_s: float, *, clock: Callable[[], float] = time.time) -> None:
        """
        Args:
            secret: followed by its owner, if it is shared.
            ttl_s: how long a token is good.
            clock: seconds since 1970: a token outlives the process.
        """
        self.ttl_s = ttl_s
        self._secret = secret
        self._clock = clock

    @property
    def can_sign(self) -> bool:
        """True once the secret is known: before that no token is issued, and none can be read."""
        return isinstance(self._secret, bytes) or self._secret.value is not None

    def digest(self, *parts: str) -> str:
        """Returns a hash of the parts that only holders of the secret can compute."""
        return self._mac(json.dumps(parts).encode()).hex()

    def issue(self, tenant: str, origin: Origin, *, is_paid: bool = True) -> str:
        """Returns the token of a reply to this tenant; `is_paid` as for Continuation."""
        fields = {**asdict(origin), "until": round(self._clock() + self.ttl_s), "paid": is_paid}
        content = json.dumps(fields, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._signature(tenant, content) + content).decode().rstrip("=")

    def read(self, tenant: str, token: str, *, is_kept: bool = False) -> Continuation:
        """Returns what a token says.

        Args:
            is_kept: it comes from where idempotency keys are kept, which forget by themselves.

        Raises:
            ApiError: 412, it is too old, of another key, of another release, or not of this service.
            StoreUnavailable: the secret is not known yet.
        """
        try:
            raw = base64.urlsafe_b64decode(token[:_MOST_CHARACTERS] + "=" * (-len(token) % 4))
        except ValueError:
            raise not_resumable("resume_unknown", _UNKNOWN) from None
        signature, content = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(signature, self._signature(tenant, content)):
            raise not_resumable("resume_unknown", _UNKNOWN)
        try:
            fields = json.loads(content)
            until, is_paid = float(fields.pop("until")), fields.pop("paid") is True
            origin = _origin_of(fields)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            message = f"this {HEADER} is of another release of the service: {ANEW}"
            raise not_resumable("resume_changed", message) from None
        if until < self._clock() and not is_kept:
            raise not_resumable(
                "resume_expired",
                f"a reply can be resumed for {self.ttl_s:g} s (limits.resume_s), and that is over: {ANEW}",
            )
        return Continuation(origin, token, is_paid)

    def _signature(self, tenant: str, content: bytes) -> bytes:
        return self._mac(json.dumps(tenant).encode() + b"\0" + content)

    def _mac(self, content: bytes) -> bytes:
        secret = self._secret if isinstance(self._secret, bytes) else self._secret.value
        if secret is None:
            raise StoreUnavailable("the secret of resume tokens could not be read yet (voices.store); try again")
        return hmac.digest(secret, content, hashlib.sha256)[:_MAC_BYTES]


ANEW = "send the request again without Range"
_UNKNOWN = f"this {HEADER} is of another key or of another service: {ANEW}"


def _origin_of(fields: dict[str, Any]) -> Origin:
    """Returns an origin of this release.

    Raises:
        TypeError, KeyError: it is of another one.
    """
    origin = Origin(**{**fields, "degraded": tuple(fields["degraded"])})
    texts = {"model", "body", "resolved", "build", "engine"}
    if type(origin.seed) is not int or not all(isinstance(value, str) for value in (*origin.degraded, *map(fields.get, texts))):
        raise TypeError("a field has another type")
    return origin


def not_resumable(code: str, message: str) -> ApiError:
    """Returns the refusal of a reply that cannot go on where it was."""
    return ApiError(message, ErrorSpec(412, "conflict_error", code, False), param=HEADER)
