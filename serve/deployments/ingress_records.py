"""Ingress records: everything one ingress replica reads from stores, opened once.

In:    AppConfig, the speakers of the checkpoint
Out:   IngressRecords
Owns:  which store each kind of record is in
Never: requests; a failed start because a store is away
"""

import asyncio
import logging
import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ray import serve

from pipeline.cache.cache import CodeCache
from pipeline.errors import StoreFull, StoreUnavailable
from pipeline.paths import cache_home
from pipeline.store.open import open_store
from pipeline.store.store import Store
from pipeline.text.lexicon.library import LexiconLibrary
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from serve.access.api_keys import KeyRing
from serve.access.idempotency import Idempotency
from serve.access.keys_marker import marker_for
from serve.access.quotas import LocalQuotas, Quotas
from serve.access.redis_quotas import RedisQuotas
from serve.access.resume_tokens import SECRET_BYTES, shared_secret
from serve.config.app_config import AppConfig, VoicesConfig, project_path
from serve.config.folders import store_of
from serve.remote.code_cache import open_cache

LOG = logging.getLogger("ray.serve.chattts")

Speakers = tuple[int, NDArray[np.float16] | None]
"""numbers in an embedding, and the statistics of the embeddings that the checkpoint was trained with"""


@dataclass(frozen=True, slots=True, eq=False)
class IngressRecords:
    """The records of one ingress replica."""

    store: Store
    """of voices, lexicons and jobs"""
    voices: VoiceLibrary
    lexicons: LexiconLibrary
    keys: KeyRing
    quotas: Quotas
    cache: CodeCache
    idempotency: Idempotency
    secret: bytes
    """of resume tokens"""


async def open_records(config: AppConfig, speakers: Speakers) -> IngressRecords:
    """Opens the stores and reads voices and keys once. A store that is away costs what is in it, not the service."""
    store = open_store(store_of(config.voices.store))
    voices = await open_voices(config.voices, speakers, store)
    keys, quotas = await open_keys(config, store)
    cache, idempotency = open_cache(config.cache, store)
    secret = await open_secret(store)
    return IngressRecords(store, voices, LexiconLibrary(store), keys, quotas, cache, idempotency, secret)


async def open_voices(config: VoicesConfig, speakers: Speakers, store: Store) -> VoiceLibrary:
    """Returns the catalogue's and the stored voices, for the speakers of a checkpoint."""
    catalogue = VoiceCatalogue.load(project_path(config.catalogue), *speakers)
    library = VoiceLibrary(catalogue, store, max_voices=config.max_voices, allow_inline=config.inline)
    try:
        await asyncio.to_thread(library.refresh)
    except StoreUnavailable as error:
        LOG.error("voices: %s; starting with the shipped ones", error)
    return library


async def open_secret(store: Store) -> bytes:
    """Returns the secret that all replicas sign resume tokens with; one of this replica alone while the store is away."""
    try:
        return await asyncio.to_thread(shared_secret, store)
    except (StoreUnavailable, StoreFull) as error:
        LOG.error("resume tokens: %s; only this replica goes on with its replies", error)
        return secrets.token_bytes(SECRET_BYTES)


async def open_keys(config: AppConfig, records: Store) -> tuple[KeyRing, Quotas]:
    """Returns the keys, read once, and the counter of their quotas."""
    url = config.keys.store or config.voices.store
    store = records if config.keys.store is None else open_store(config.keys.store)
    # With keys.open true or false, losing the keys opens nothing: only otherwise the marker has to remember them.
    ring = KeyRing(store, None if isinstance(config.keys.open, bool) else marker_for(store, cache_home()))
    try:
        await asyncio.to_thread(ring.refresh)
    except StoreUnavailable as error:
        LOG.error("keys: %s; until they have been read, only keys.open: true lets a request in", error)
    share = LocalQuotas(lambda: serve.get_replica_context().world_size)
    return ring, RedisQuotas(url, share) if url is not None and "://" in url else share
