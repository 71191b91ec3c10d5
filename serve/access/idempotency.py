"""Idempotency: an Idempotency-Key stands for one request; sent again, it returns the same audio.

In:    a tenant, its key, a body
Out:   a seed; whether the request is a repetition, and charged for; a 409 for another body; the resume token of its reply
Owns:  the bodies that keys in this process stand for, and the tokens of their replies, bounded, in fair shares of tenants
Never: a body, a text: a hash that the key itself salts

The seed is derived from tenant and key, so that every replica returns the same audio, whether or not it can reach the others.
A request with a known seed finds the result of the first one in the cache, or joins it while it runs (pipeline/cache).
"""

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable
from typing import Protocol

from serve.access.claims import Places
from serve.errors import ApiError, ErrorSpec, bad_request

HEADER = "Idempotency-Key"
KEY = re.compile(r"[\x21-\x7e]{1,255}")
MOST_KEYS = 20_000  # of this process; one that is charged for takes a second place, and one with a token another
TTL_S = 86_400.0
DIGEST_BYTES = 32
NAME_LETTERS = 32  # of a digest in hexadecimal
AMBIGUOUS = b"ambiguous"
"""in the place of a token: the replies to its key differ"""


class ClaimStore(Protocol):
    """Claims shared by all replicas: serve/access/claims.py."""

    async def claim(self, name: str, content: bytes, ttl_s: float) -> bytes | None:
        """Stores the content unless the name is taken. Returns what is stored now; None if the store does not answer."""
        ...

    async def claimed(self, name: str) -> bytes | None:
        """Returns what is stored under a name; None: nothing, or the store does not answer."""
        ...

    async def release(self, name: str) -> None:
        """Removes what is stored under a name."""
        ...


class Idempotency:
    """Knows which body each key stands for."""

    def __init__(
        self, shared: ClaimStore | None = None, ttl_s: float = TTL_S, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shared = shared
        self._ttl_s = ttl_s
        self._clock = clock
        self._own = Places(MOST_KEYS)

    async def is_repeated(self, tenant: str, key: str, raw: bytes) -> bool:
        """Claims the key for this body, valid JSON. Returns True if the same request was sent before.

        Raises:
            ApiError: 409, the key stands for another body.
        """
        claim = _body(tenant, key, raw) + secrets.token_bytes(8)
        return await self._is_known(_name(tenant, key), claim)

    async def is_charged(self, tenant: str, key: str, raw: bytes) -> bool:
        """True if the request was charged for. Between its claim and its charge there is a moment at which it was not."""
        return _body(tenant, key, raw) in {entry[:DIGEST_BYTES] for entry in await self._read(_name(tenant, key, "charged"))}

    async def note_charge(self, tenant: str, key: str, raw: bytes) -> bool:
        """Remembers that the request was charged for. Returns True if it had been before, so that it is now charged twice.

        Raises:
            ApiError: 409, what was charged for under this key is another body.
        """
        return await self._is_overtaken(_name(tenant, key, "charged"), _body(tenant, key, raw))

    async def release(self, tenant: str, key: str) -> None:
        """Frees the key of a request that was refused."""
        await self._release(_name(tenant, key))

    async def take_back_charge(self, tenant: str, key: str, raw: bytes) -> bool:
        """Forgets a charge that note_charge() remembered, since nothing was spoken.

        Returns:
            False if it stays after all: a repetition speaks on it.
        """
        name = _name(tenant, key, "charged")
        await self._release(name)
        if not await self._read(_name(tenant, key, "repeated")):
            return True
        return await self._is_overtaken(name, _body(tenant, key, raw))

    async def note_repetition(self, tenant: str, key: str, raw: bytes) -> bool:
        """Remembers that a repetition speaks on the charge of another request. Returns False if that was taken back."""
        await self._claimed(_name(tenant, key, "repeated"), _body(tenant, key, raw))
        return await self.is_charged(tenant, key, raw)

    async def claim_use(self, tenant: str, token: str) -> bool:
        """Claims the one use of a token. Returns False if it was claimed before."""
        return await self._is_first(_name(tenant, token, "used"))

    async def claim_continuation(self, tenant: str, token: str) -> bool:
        """Claims the one continuation that a resume token is worth. Returns False if it was claimed before."""
        return await self._is_first(_name(tenant, token, "continued"))

    async def release_continuation(self, tenant: str, token: str) -> None:
        """Gives a continuation back that was not spoken."""
        await self._release(_name(tenant, token, "continued"))

    async def keep_token(self, tenant: str, key: str, token: str, origin: str) -> None:
        """Remembers the resume token of a reply; if a reply of another origin came before, that none is certain.

        Args:
            origin: the same for replies of the same bytes.
        """
        name, content = _name(tenant, key, "token"), f"{origin} {token}".encode()
        entries = await self._claimed(name, content)
        if any(entry.partition(b" ")[0] != origin.encode() for entry in entries):
            await self._release(name)
            await self._claimed(name, AMBIGUOUS)

    async def token(self, tenant: str, key: str) -> str | None:
        """Returns the resume token of a key's reply; None: it is not known, or not certain."""
        entries = await self._read(_name(tenant, key, "token"))
        if not entries or AMBIGUOUS in entries:
            return None
        return entries.pop().partition(b" ")[2].decode()

    async def _is_first(self, name: str) -> bool:
        claim = secrets.token_bytes(DIGEST_BYTES)
        return all(entry == claim for entry in await self._claimed(name, claim))

    async def _is_overtaken(self, name: str, body: bytes) -> bool:
        """Claims the charge of a body. Returns True if another request has it; this process then keeps no claim of its own."""
        claim = body + secrets.token_bytes(8)
        is_overtaken = await self._is_known(name, claim)
        if is_overtaken and self._own.get(name, self._clock()) == claim:
            self._own.remove(name)
        return is_overtaken

    async def _is_known(self, name: str, claim: bytes) -> bool:
        """Claims a name for a body, whose digest the claim begins with. Returns True if it was claimed for it before.

        Raises:
            ApiError: 409, it was claimed for another body.
        """
        entries = await self._claimed(name, claim)
        if any(entry[:DIGEST_BYTES] != claim[:DIGEST_BYTES] for entry in entries):
            raise ApiError(
                f"this {HEADER} was sent with another body; a new request takes a new key",
                ErrorSpec(409, "conflict_error", "idempotency_mismatch", False),
            )
        return any(entry != claim for entry in entries)

    async def _read(self, name: str) -> set[bytes]:
        """Returns what a name stands for, in this process and in the shared store; empty: nothing that is known."""
        own = self._own.get(name, self._clock())
        shared = None if self._shared is None else await self._shared.claimed(name)
        return {entry for entry in (own, shared) if entry}

    async def _claimed(self, name: str, content: bytes) -> list[bytes]:
        """Returns what a name stands for, in this process and in the shared store, which may be away."""
        entries = [self._claim(name, content)]
        if self._shared is not None:
            entries.append(await self._shared.claim(name, content, self._ttl_s) or content)
        return entries

    async def _release(self, name: str) -> None:
        self._own.remove(name)
        if self._shared is not None:
            await self._shared.release(name)

    def _claim(self, name: str, claim: bytes) -> bytes:
        now = self._clock()
        known = self._own.get(name, now)
        if known is None:
            self._own.put(name, claim, now + self._ttl_s, now)
        return claim if known is None else known


def checked_key(key: str | None) -> str | None:
    """Returns the value of the header.

    Raises:
        ApiError: 400
    """
    if key is not None and not KEY.fullmatch(key):
        raise bad_request("invalid_idempotency_key", f"{HEADER} is 1 to 255 visible ASCII characters")
    return key


def seed_of(tenant: str, key: str) -> int:
    """Returns the seed of a key, 0 .. 2**32 - 1: the same on every replica and at any time."""
    return int.from_bytes(_digest("seed", tenant, key)[:4], "big")


def _name(tenant: str, key: str, kind: str = "key") -> str:
    return f"{tenant}:{_digest(kind, tenant, key).hex()[:NAME_LETTERS]}"


def _body(tenant: str, key: str, raw: bytes) -> bytes:
    """Returns the digest of a body, valid JSON: the same object written otherwise is the same request."""
    return _digest("body", tenant, key, json.dumps(json.loads(raw), sort_keys=True))


def _digest(*parts: str) -> bytes:
    return hashlib.sha256(json.dumps(parts).encode()).digest()
