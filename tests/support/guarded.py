"""Guarded services: keys in a store, and a server that asks for them."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import requests
from starlette.datastructures import Headers

from pipeline.store.open import open_store
from pipeline.store.store import Store
from pipeline.types import Lane
from serve.access.api_keys import NAMESPACE, KeyRecord, KeyRing, Quota, Scope, make_key
from serve.access.authentication import Authenticator
from serve.access.claims import StoreClaims
from serve.access.idempotency import Idempotency
from serve.access.quotas import LocalQuotas, QuotaDecision
from serve.access.resume_tokens import ResumeTokens
from serve.access.single_use_tokens import SingleUseTokens
from serve.config.app_config import LimitsConfig
from serve.errors import ApiError
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import Live, serving

FREE = Quota(requests_per_s=None, streams=None, characters_a_day=None)
LOOPBACK = "127.0.0.1"
SPEECH = frozenset({Scope.SPEECH})
SCOPES: tuple[Scope, ...] = KeyRecord.model_fields["scopes"].default  # of a key that is made without any
TURNS = 3  # of the loop, that a store's question takes, and its answer


class RemoteQuotas(LocalQuotas):
    """Counts between a question and its answer, as a store does."""

    async def charge_characters(self, key: str, quota: Quota, characters: int, token: str = "") -> QuotaDecision:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        decision = await super().charge_characters(key, quota, characters, token)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return decision


def add(
    store: Store, *, scopes: tuple[Scope, ...] = SCOPES, quota: Quota = FREE, lanes: tuple[Lane, ...] = tuple(Lane)
) -> tuple[str, str]:
    key, key_id, record = make_key("somebody", scopes, lanes, quota)
    store.put(NAMESPACE, key_id, record.model_dump_json().encode(), replaces=0, keeps=1)
    return key, key_id


def ring_of(store: Store) -> KeyRing:
    ring = KeyRing(store)
    ring.refresh()
    return ring


def tokens_of(store: Store | None, clock: Callable[[], float] = time.time, secret: bytes = b"secret") -> SingleUseTokens:
    """Returns the single-use tokens of a replica."""
    return SingleUseTokens(ResumeTokens(secret, 0.0), Idempotency(None if store is None else StoreClaims(store)), clock=clock)


def guarded(
    authenticator: Authenticator, speaker: Speaker | None = None, limits: LimitsConfig | None = None
) -> AbstractContextManager[Live]:
    """Serves the API behind this gate until the block ends."""
    services = make_services(speaker or Speaker(), limits)
    object.__setattr__(services, "authenticator", authenticator)
    return serving(services)


def status(authenticator: Authenticator, peer: str, **headers: str) -> str:
    """Code of the refusal, or 'in'."""
    try:
        authenticator.key_of(Headers({name.replace("_", "-"): value for name, value in headers.items()}), peer, SPEECH)
    except ApiError as refusal:
        return refusal.spec.code
    return "in"


def speak(live: Live, **headers: str) -> requests.Response:
    body = {"input": "Hello there.", "response_format": "pcm", "seed": 1}
    return requests.post(f"{live.url}/v1/audio/speech", json=body, headers=headers, timeout=60)


@contextmanager
def keys_of(live: Live, folder: Path, count: int) -> Iterator[list[str]]:
    """Has a running server ask for keys until the block ends; yields so many of them."""
    store, open_gate = open_store(str(folder / "keys.sqlite")), live.services.authenticator
    keys = [add(store)[0] for _ in range(count)]
    object.__setattr__(live.services, "authenticator", Authenticator(ring_of(store)))
    try:
        yield keys
    finally:
        object.__setattr__(live.services, "authenticator", open_gate)
        store.close()
