"""Doctor's look at Redis: whether each server that a configuration names can do what the service asks of it.

In:    AppConfig
Out:   findings
Owns:  a namespace and an API key of its own, both removed again
Never: a change of what is stored; a part of a URL beside its host, port and number
"""

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

from pipeline.cache.redis_tier import RedisTier
from pipeline.errors import SynthesisError
from pipeline.store.redis_link import connect, failures, trouble_of
from pipeline.store.redis_store import RedisStore
from pipeline.store.redis_url import SCHEMES, url_without_password
from serve.access.api_keys import Quota
from serve.access.quotas import LocalQuotas
from serve.access.redis_quotas import RedisQuotas
from serve.commands.findings import Finding, Status
from serve.config.app_config import AppConfig

TIMEOUT_S = 3.0
OLDEST = (6, 2)
CACHE = "cache.redis"
NAMESPACE = "doctor"


def redis_servers(app: AppConfig) -> Iterator[Finding]:
    """Examines each Redis that the configuration names, in the order of its keys."""
    for url, keys in redis_urls(app).items():
        place = f"{url_without_password(url)} ({', '.join(keys)})"
        try:
            with connect(url, connect_timeout_s=TIMEOUT_S, answer_timeout_s=TIMEOUT_S) as client:
                facts = client.info()
        except failures() as error:
            trouble = trouble_of(error)
            reason = str(error) if trouble is None else trouble.reason
            yield Finding("redis", Status.FAIL, f"{place} {reason}", f"start or correct it, or correct {keys[0]}")
            continue
        problems = list(_problems(place, keys, facts))
        if not any(problem.status is Status.FAIL for problem in problems):
            problems += _failed_calls(place, url, keys)
        yield from problems
        if not problems:
            yield Finding("redis", Status.FINE, f"{place} answers: release {facts['redis_version']}, {_policy(facts)}")


def redis_urls(app: AppConfig) -> dict[str, list[str]]:
    """Returns each Redis URL with the configuration keys that name it."""
    named = {"voices.store": app.voices.store, "keys.store": app.keys.store, CACHE: app.cache.redis}
    urls: dict[str, list[str]] = {}
    for key, url in named.items():
        if url is not None and url.partition("://")[0] in SCHEMES:
            urls.setdefault(url, []).append(key)
    return urls


def _problems(place: str, keys: list[str], facts: dict[str, Any]) -> Iterator[Finding]:
    """Yields what the server's own words about itself rule out."""
    is_store, policy = keys != [CACHE], _policy(facts)
    release = tuple(int(part) for part in str(facts["redis_version"]).split(".")[:2])

    def finding(status: Status, problem: str, advice: str) -> Finding:
        return Finding("redis", status, f"{place} {problem}", advice)

    if release < OLDEST:
        yield finding(
            Status.FAIL, f"is release {facts['redis_version']}", f"{'.'.join(map(str, OLDEST))} is the oldest supported"
        )
    if facts.get("cluster_enabled"):
        yield finding(Status.FAIL, "is part of a cluster", "use a single server: Sentinel and Cluster are not supported")
    if facts.get("role", "master") != "master":
        yield finding(Status.FAIL, "is a replica and takes no writes", "name its primary")
    if is_store and CACHE in keys:
        yield finding(
            Status.WARN, "is both store and cache", "give the cache a Redis of its own: it fills up, a store must not"
        )
    if is_store and policy.startswith("allkeys"):
        yield finding(
            Status.FAIL, f"evicts records ({policy})", "set maxmemory-policy noeviction, and give cache.redis its own"
        )
    elif is_store and policy != "noeviction":
        yield finding(Status.WARN, f"evicts what has a time to live ({policy})", "set maxmemory-policy noeviction")
    if is_store and not facts.get("aof_enabled"):
        yield finding(Status.WARN, "may lose its last minutes (no append-only file)", "set appendonly yes")
    if not is_store and policy == "noeviction":
        yield finding(Status.WARN, "takes nothing new once it is full", "set maxmemory, and maxmemory-policy allkeys-lru")


def _policy(facts: dict[str, Any]) -> str:
    return str(facts.get("maxmemory_policy", "policy unknown"))


def _failed_calls(place: str, url: str, keys: list[str]) -> Iterator[Finding]:
    """Runs each script and each command once."""
    try:
        if keys != [CACHE]:
            _use_store(url)
            asyncio.run(_use_quotas(url))
        if CACHE in keys:
            asyncio.run(_use_cache(url))
    except Exception as error:
        words = error.message if isinstance(error, SynthesisError) else str(error)
        yield Finding("redis", Status.FAIL, f"{place} answers, and a call fails: {words}", "see Redis in docs/operations.md")


def _use_store(url: str) -> None:
    store, key = RedisStore(url), secrets.token_hex(8)
    try:
        store.probe()
        position = store.changes(NAMESPACE).position
        store.put(NAMESPACE, key, b"looked", replaces=0, keeps=1)
        stored, changes = store.get(NAMESPACE, key), store.changes(NAMESPACE, position)
        store.delete(NAMESPACE, key)
    finally:
        store.close()
    assert stored == (1, b"looked"), "what was written is not what is read"
    assert [entry.key for entry in changes.entries] == [key], "what was written is not among the changes"


async def _use_quotas(url: str) -> None:
    quotas, key = RedisQuotas(url, LocalQuotas()), f"{NAMESPACE}-{secrets.token_hex(8)}"
    quota = Quota(audio_s_a_minute=60.0)
    try:
        await quotas.acquire(key, quota, "permit")
        await quotas.charge_characters(key, quota, 1)
        quotas.record_audio(key, quota, 1.0)
        await quotas.renew()
        assert await quotas.characters_today(key) == 1, "what was charged is not counted"
        assert not quotas.is_away, "quotas are not counted"
        await quotas.forget(key)
    finally:
        await quotas.close()


async def _use_cache(url: str) -> None:
    tier, key = RedisTier(url, ttl_s=60.0), secrets.token_hex(8)
    try:
        tier.put(NAMESPACE, key, b"looked")
        await tier.written()
        assert await tier.get(NAMESPACE, key) == b"looked", "what was written is not what is read"
        await tier.purge(NAMESPACE)
        assert not tier.errors, "an entry cannot be removed"
    finally:
        await tier.close()
