"""Code cache: the cache of sampled steps in one ingress replica, and the work that keeps it up to date.

In:    CacheConfig, the store, a function that requests the engine's fingerprint
Out:   a CodeCache, Idempotency
Never: Ray
"""

import asyncio
from collections.abc import Awaitable, Callable

from pipeline.cache.cache import CodeCache
from pipeline.cache.cached_generator import CachedModel
from pipeline.cache.invalidation import PurgeGenerations
from pipeline.cache.redis_tier import RedisTier
from pipeline.errors import SynthesisError
from pipeline.store.poll import follow
from pipeline.store.store import Store
from serve.access.claims import StoreClaims
from serve.access.idempotency import Idempotency
from serve.config.app_config import CacheConfig

FINGERPRINT_PERIOD_S = 5.0  # how long after an update entries of the old fingerprint may still be served


def open_cache(config: CacheConfig, store: Store | None) -> tuple[CodeCache, Idempotency]:
    """Returns the cache with the configured tiers, and the idempotency keys. The store has purges and keys."""
    shared = None if config.redis is None else RedisTier(config.redis, config.ttl_s)
    claims = None if store is None else StoreClaims(store)
    return CodeCache(config.memory_mib << 20, shared=shared, generations=PurgeGenerations(store)), Idempotency(
        claims, config.idempotency_ttl_s
    )


async def follow_purges(cache: CodeCache, each_s: float, problems: dict[str, str] | None = None) -> None:
    """Drops what other replicas have purged, until cancelled."""
    loop = asyncio.get_running_loop()

    def refresh() -> None:
        if cache.generations.refresh():
            loop.call_soon_threadsafe(cache.drop_purged)

    await follow("purges of the cache", refresh, each_s, problems)


async def follow_fingerprint(
    model: CachedModel, ask: Callable[[], Awaitable[str]], *, is_asked: Callable[[], bool] = lambda: True
) -> None:
    """Requests the engine's fingerprint each period, until cancelled: a cache without misses would not notice an update.

    Args:
        is_asked: False: there is no engine at this moment that a request would not wake.
    """
    while True:
        await asyncio.sleep(FINGERPRINT_PERIOD_S)
        if not is_asked():
            continue
        try:
            model.fingerprint = await ask()
        except SynthesisError:
            continue  # the previous one stays
