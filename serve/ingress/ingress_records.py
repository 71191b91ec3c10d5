"""Ingress records: everything one ingress replica reads from stores, opened once.

In:    AppConfig, the speakers of the checkpoint
Out:   IngressRecords
Owns:  which store each kind of record is in
Never: requests; a failed start because a store is away
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.cache.cache import CodeCache
from pipeline.errors import ConfigError, StoreUnavailable
from pipeline.paths import cache_home
from pipeline.store.open import open_store
from pipeline.store.store import Store
from pipeline.store.threads import ask_store
from pipeline.text.lexicon.lexicon_library import LexiconLibrary
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from pipeline.voices.persons import Persons
from serve.access.api_keys import KeyRing
from serve.access.idempotency import Idempotency
from serve.access.keys_marker import marker_for
from serve.access.quotas import LocalQuotas, Quotas
from serve.access.redis_quotas import RedisQuotas
from serve.access.resume_tokens import FLEET_KEY, SharedSecret
from serve.config.app_config import AppConfig, VoicesConfig, project_path
from serve.config.folders import store_of
from serve.stages.code_cache import open_cache

LOG = logging.getLogger("ray.serve.chattts")

SHORTEST_KEY = 32  # characters of FLEET_KEY

Speakers = tuple[int, NDArray[np.float16] | None, Persons]
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
    secret: SharedSecret
    """of resume tokens"""

    @property
    def stores(self) -> Mapping[str, Store]:
        """The stores, by what cannot be written without them."""
        own = {} if self.keys.store is self.store else {"writes of keys": self.keys.store}
        return {"writes": self.store, **own}

    async def close(self) -> None:
        """Gives back the permits of streams that this replica holds, and closes all connections."""
        if isinstance(self.quotas, RedisQuotas):
            await self.quotas.close()
        await self.cache.close()
        for store in self.stores.values():
            await ask_store(store.close)


async def open_records(config: AppConfig, speakers: Speakers, num_replicas: Callable[[], int]) -> IngressRecords:
    """Opens the stores and reads them for the first time. A store that is away costs what is in it, not the service.

    Args:
        num_replicas: among how many replicas quotas are shared out while there is no store for them.
    """
    store = open_store(store_of(config.voices.store))
    voices = await open_voices(config.voices, speakers, store)
    keys, quotas = await open_keys(config, store, num_replicas)
    cache, idempotency = open_cache(config.cache, store)
    secret = await open_secret(store)
    return IngressRecords(store, voices, LexiconLibrary(store), keys, quotas, cache, idempotency, secret)


async def open_voices(config: VoicesConfig, speakers: Speakers, store: Store) -> VoiceLibrary:
    """Returns the catalogue's and the stored voices, for the speakers of a checkpoint."""
    catalogue = VoiceCatalogue.load(project_path(config.catalogue), *speakers)
    library = VoiceLibrary(catalogue, store, max_voices=config.max_voices, allow_inline=config.inline)
    try:
        await ask_store(library.refresh)
    except StoreUnavailable as error:
        LOG.error("voices: %s; starting with the shipped ones", error)
    return library


async def open_secret(store: Store) -> SharedSecret:
    """Returns the secret that all replicas sign resume tokens with; not known while the store is away.

    Raises:
        ConfigError: the fleet's key can be guessed.
    """
    key = os.environ.get(FLEET_KEY, "")
    if 0 < len(key) < SHORTEST_KEY:
        raise ConfigError(f"{FLEET_KEY} has {len(key)} characters, at least {SHORTEST_KEY} are needed: openssl rand -hex 32")
    secret = SharedSecret(store, key)
    try:
        await ask_store(secret.refresh)
    except StoreUnavailable as error:
        LOG.error("resume tokens: %s; until it is read, replies have none", error)
    return secret


async def open_keys(config: AppConfig, records: Store, num_replicas: Callable[[], int]) -> tuple[KeyRing, Quotas]:
    """Returns the keys, read for the first time, and the counter of their quotas."""
    url = config.keys.store or config.voices.store
    store = records if config.keys.store is None else open_store(config.keys.store)
    # With keys.open true or false, losing the keys opens nothing: only otherwise the marker has to remember them.
    ring = KeyRing(store, None if isinstance(config.keys.open, bool) else marker_for(store, cache_home()))
    try:
        await ask_store(ring.refresh)
    except StoreUnavailable as error:
        LOG.error("keys: %s; until they have been read, only keys.open: true lets a request in", error)
    share = LocalQuotas(num_replicas)
    return ring, RedisQuotas(url, share) if url is not None and "://" in url else share
