"""Every call of store, quotas, claims and cache against every answer of a Redis in trouble, and against none."""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
from redis.exceptions import RedisError

from pipeline.cache import redis_tier as cache_tier
from pipeline.cache.redis_tier import RedisTier
from pipeline.errors import StoreFull, StoreUnavailable
from pipeline.store import redis_store
from pipeline.store.mirror import Mirror
from pipeline.store.open import open_store
from pipeline.store.redis_link import REFUSALS as REASONS
from pipeline.store.redis_store import RedisStore
from serve.access import redis_quotas
from serve.access.api_keys import Quota
from serve.access.claims import StoreClaims
from serve.access.quotas import Charge, LocalQuotas, QuotaDecision, today
from serve.access.redis_quotas import RedisQuotas
from serve.commands.doctor_redis import OLDEST, redis_servers
from serve.commands.findings import Status
from serve.config.app_config import read_app_config
from tests.support.faulty_redis import DEFECTS, LOST, REFUSALS, SILENT, FaultyRedis
from tests.support.services import RedisServer, saved_state

SHORT_S, LONG_S = 0.5, 30.0  # longest wait for an answer: where none comes, and where one does on a busy machine
DAY = Quota(requests_per_s=None, streams=4, characters_a_day=1000, audio_s_a_minute=60.0)

CALLS: dict[str, Callable[[RedisStore], object]] = {
    "put": lambda store: store.put("voices", "anna", b"two", replaces=1, keeps=2),
    "put of another": lambda store: store.put("voices", "bert", b"one", replaces=0, keeps=2),
    "delete": lambda store: store.delete("voices", "anna"),
    "get": lambda store: store.get("voices", "anna"),
    "changes": lambda store: store.changes("voices"),
    "probe": lambda store: store.probe(),
}
WRITES = ("put", "put of another", "delete")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def faulty(server: RedisServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[FaultyRedis]:
    limit_s = SHORT_S if SILENT in request.node.name else LONG_S
    redis.Redis.from_url(server.url).flushall()
    monkeypatch.setattr(redis_store, "ANSWER_TIMEOUT_S", limit_s)
    monkeypatch.setattr(redis_quotas, "ANSWER_TIMEOUT_S", limit_s)
    monkeypatch.setattr(cache_tier, "ANSWER_TIMEOUT_S", limit_s)
    monkeypatch.setattr(cache_tier, "WRITE_TIMEOUT_S", limit_s)
    faulty = FaultyRedis(server)
    yield faulty
    faulty.close()


def reason_of(name: str) -> str:
    """The words about a refusal."""
    return REASONS.get(name.split()[0], "takes no more connections (maxclients)")


# The store.


@pytest.fixture
def store(faulty: FaultyRedis) -> Iterator[RedisStore]:
    store = RedisStore(faulty.url)
    store.put("voices", "anna", b"one", replaces=0, keeps=2)
    store.put("voices", "gone", b"one", replaces=0, keeps=2)
    for call in (store.probe, lambda: store.get("voices", "anna"), lambda: store.delete("voices", "gone")):
        call()  # every script is known to Redis
    yield store
    store.close()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_is_said_with_its_reason_and_nothing_was_done(
    faulty: FaultyRedis, store: RedisStore, refusal: str, call: str
):
    before = store.changes("voices")
    faulty.fault = REFUSALS[refusal]
    with pytest.raises(StoreUnavailable) as error:
        CALLS[call](store)
    assert isinstance(error.value, StoreFull) == refusal.startswith("OOM")
    assert not error.value.outcome_unknown
    if not refusal.startswith("OOM"):
        assert f"the store {reason_of(refusal)}; nothing was changed" == error.value.message
    faulty.fault = ""
    assert store.changes("voices") == before
    CALLS[call](store)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_no_trouble_of_the_store(faulty: FaultyRedis, store: RedisStore, defect: str, call: str):
    faulty.fault = DEFECTS[defect]
    with pytest.raises(RedisError):
        CALLS[call](store)
    faulty.fault = ""
    CALLS[call](store)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fault", [SILENT, LOST])
def test_a_write_without_an_answer_says_that_it_may_have_happened(
    faulty: FaultyRedis, store: RedisStore, fault: str, call: str
):
    faulty.fault = fault
    with pytest.raises(StoreUnavailable, match="does not answer") as error:
        CALLS[call](store)
    assert error.value.outcome_unknown == (call in WRITES)
    faulty.fault = ""
    happened = fault == LOST and call in WRITES
    expected = {"put": (2, b"two"), "delete": None}.get(call, (1, b"one")) if happened else (1, b"one")
    assert store.get("voices", "anna") == expected, "and whoever looks at once finds out"
    assert (store.get("voices", "bert") is not None) == (happened and call == "put of another")


def test_a_write_that_was_never_sent_has_not_happened(server: RedisServer, tmp_path: Path):
    gone = RedisServer(tmp_path)
    store = RedisStore(gone.url)
    gone.kill()
    with pytest.raises(StoreUnavailable, match="does not answer") as error:
        store.put("voices", "anna", b"one", replaces=0, keeps=1)
    assert not error.value.outcome_unknown


def test_a_refusal_ends_a_silence(faulty: FaultyRedis, store: RedisStore):
    faulty.fault = LOST
    with pytest.raises(StoreUnavailable):
        store.probe()
    faulty.fault = REFUSALS["READONLY"]
    with pytest.raises(StoreUnavailable, match="replica"):
        store.probe()
    with store._breaker.question(), pytest.raises(StoreUnavailable, match="replica"):
        store.probe()  # beside another question


# Quotas.


@asynccontextmanager
async def counting(url: str) -> AsyncIterator[RedisQuotas]:
    """The quotas of one of two replicas, with a hundred characters of the day."""
    quotas = RedisQuotas(url, LocalQuotas(lambda: 2))
    await quotas.charge_characters("key", DAY, 100)
    await quotas.acquire("key", DAY, None)
    await quotas.renew()
    yield quotas
    await quotas.close()


async def characters_at(url: str) -> int:
    """Of the day, as another replica counts them."""
    quotas = RedisQuotas(url, LocalQuotas())
    try:
        return await quotas.characters_today("key")
    finally:
        await quotas.close()


@pytest.mark.parametrize("trouble", [*REFUSALS, SILENT])
async def test_quotas_in_trouble_stay_away_until_a_write_succeeds(
    faulty: FaultyRedis, caplog: pytest.LogCaptureFixture, trouble: str
):
    caplog.set_level(logging.INFO)

    async with counting(faulty.url) as quotas:
        faulty.fault = REFUSALS.get(trouble, SILENT)
        for _ in range(3):
            assert not (await quotas.acquire("key", DAY, None)).refusal
            assert (await quotas.charge_characters("key", DAY, 405)).refusal == "quota_exceeded", "half of the day is its share"
            quotas.refund_characters("key", DAY, Charge(1, today()))
            quotas.record_audio("key", DAY, 0.1)
            assert await quotas.characters_today("key") <= 100
            assert quotas.is_away
            await quotas.renew()
            assert quotas.is_away, "PING is answered, and writes are not"
        faulty.fault = ""
        while quotas.is_away:
            await quotas.renew()
        await quotas.renew()
        assert await quotas.characters_today("key") == 97
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("keys: ")]
    reason = "does not answer" if trouble == SILENT else reason_of(trouble)
    assert lines == [
        f"keys: Redis {reason}; each replica allows its share of a quota",
        "keys: the store is back; quotas are counted together again",
    ]


@pytest.mark.parametrize("defect", DEFECTS)
async def test_a_defect_of_a_quota_is_raised_and_turns_nothing_off(faulty: FaultyRedis, defect: str):
    async with counting(faulty.url) as quotas:
        faulty.fault = DEFECTS[defect]
        with pytest.raises(RedisError):
            await quotas.charge_characters("key", DAY, 1)
        assert not quotas.is_away
        faulty.fault = ""
        assert not (await quotas.charge_characters("key", DAY, 1)).refusal


async def test_what_has_no_answer_counts_once(faulty: FaultyRedis, server: RedisServer):
    """Charges, refunds and audio whose answers are lost, while others are counted alone."""

    async with counting(faulty.url) as quotas:
        other = RedisQuotas(server.url, LocalQuotas())
        faulty.fault = LOST
        assert not (await quotas.charge_characters("key", DAY, 50)).refusal  # Redis has it
        assert not (await quotas.charge_characters("key", DAY, 30)).refusal  # and not this one
        assert (await quotas.charge_characters("key", DAY, 900)).refusal
        quotas.refund_characters("key", DAY, Charge(10, today()))
        quotas.record_audio("key", DAY, 120.0)
        assert await quotas.characters_today("key") == 170
        for _ in range(3):
            await quotas.renew()
        faulty.fault = ""
        for _ in range(3):
            await quotas.renew()
        quotas.refund_characters("key", DAY, Charge(5, today()))
        await asyncio.gather(*quotas._leaving)
        assert await other.characters_today("key") == await quotas.characters_today("key") == 165
        over = [await counter.acquire("key", DAY, None) for counter in (other, quotas)]
        assert all(decision.refusal == "quota_exceeded" and decision.retry_after_s <= 60 for decision in over)
        await other.close()


async def test_refunds_that_were_made_before_a_larger_charge_all_count(faulty: FaultyRedis, server: RedisServer):
    async with counting(faulty.url) as quotas:
        faulty.fault = REFUSALS["READONLY"]
        for characters in (10, 300):
            assert not (await quotas.charge_characters("key", DAY, characters)).refusal
            quotas.refund_characters("key", DAY, Charge(characters, today()))
        faulty.fault = ""
        await quotas.renew()
        assert await characters_at(server.url) == await quotas.characters_today("key") == 100


@pytest.mark.parametrize("seed", range(6))
async def test_at_any_interleaving_every_charge_counts_once(faulty: FaultyRedis, server: RedisServer, seed: int):
    """Charges, refunds and rounds at the same time, while answers are lost and questions refused."""
    chance = random.Random(seed)
    large = Quota(requests_per_s=None, characters_a_day=1_000_000)

    async with counting(faulty.url) as quotas:
        spent = 100

        async def charge(characters: int) -> None:
            nonlocal spent
            decision = await quotas.charge_characters("key", large, characters)
            assert not decision.refusal
            spent += characters
            if chance.random() < 0.5:
                quotas.refund_characters("key", large, Charge(characters, decision.day or today()))
                spent -= characters

        running = []
        for _ in range(60):
            faulty.fault = chance.choice(["", "", LOST, REFUSALS["READONLY"]])
            running.append(asyncio.ensure_future(charge(chance.randrange(1, 50)) if chance.random() < 0.7 else quotas.renew()))
            await asyncio.sleep(chance.choice([0, 0, 0.002]))
        faulty.fault = ""
        await asyncio.gather(*running)
        for _ in range(3):
            await quotas.renew()
        await asyncio.gather(*quotas._leaving)
        await quotas.renew()
        assert await characters_at(server.url) == await quotas.characters_today("key") == spent


async def test_a_client_that_leaves_while_it_is_charged_has_paid_nothing(faulty: FaultyRedis, server: RedisServer):
    async with counting(faulty.url) as quotas:
        for turns in range(12):
            task = asyncio.ensure_future(quotas.charge_characters("key", DAY, 10))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            done = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(done, QuotaDecision):
                quotas.refund_characters("key", DAY, Charge(10, done.day))
        await asyncio.gather(*quotas._leaving, *quotas._link._late, return_exceptions=True)
        await quotas.renew()
        assert await characters_at(server.url) == 100


@pytest.mark.parametrize("comes_back", [False, True], ids=["emptied", "set back"])
async def test_a_redis_that_loses_counts_gives_nothing_away(faulty: FaultyRedis, server: RedisServer, comes_back: bool):
    client = redis.Redis.from_url(server.url)

    async with counting(faulty.url) as quotas:
        restore = saved_state(server.url)
        assert not (await quotas.charge_characters("key", DAY, 900)).refusal
        quotas.record_audio("key", DAY, 120.0)
        await quotas.renew()
        restore() if comes_back else client.flushall()
        assert (await quotas.charge_characters("key", DAY, 1)).refusal == "quota_exceeded"
        assert (await quotas.acquire("key", DAY, None)).refusal == "quota_exceeded"
        restore() if comes_back else client.flushall()
        if not comes_back:
            await quotas.renew()  # notices, and tells Redis what it knows
        else:
            await quotas.characters_today("key")
            await quotas.charge_characters("key", DAY, 1)
        other = RedisQuotas(server.url, LocalQuotas())
        assert (await other.charge_characters("key", DAY, 1)).refusal == "quota_exceeded", "whoever asks"
        await other.close()


# Claims and the cache.


@pytest.mark.parametrize("trouble", [*REFUSALS, SILENT, LOST])
async def test_claims_in_trouble_know_nothing(faulty: FaultyRedis, store: RedisStore, trouble: str):
    claims = StoreClaims(store)
    assert await claims.claim("name", b"one", 60) == b"one"
    faulty.fault = REFUSALS.get(trouble, trouble)
    assert await claims.claim("name", b"two", 60) is None
    assert await claims.claimed("name") is None
    await claims.release("name")
    faulty.fault = ""
    for _ in range(3000):  # soon: the question that hung may still be waiting
        if await claims.claimed("name") == b"one":
            return
        await asyncio.sleep(0.01)
    pytest.fail("a claim is lost")


@pytest.mark.parametrize("trouble", [*REFUSALS, *DEFECTS, SILENT, LOST])
async def test_a_cache_in_trouble_finds_nothing_and_raises_nothing(faulty: FaultyRedis, trouble: str):
    now = [0.0]
    tier = RedisTier(faulty.url, 60, clock=lambda: now[0])
    tier.put("a", "key", b"steps")
    await tier.written()
    faulty.fault = {**REFUSALS, **DEFECTS}.get(trouble, trouble)
    assert await tier.get("a", "key") is None
    assert not await tier.has("a", "key")
    tier.put("a", "other", b"steps")
    await tier.written()
    await tier.purge("a")
    assert tier.errors
    faulty.fault, now[0] = "", 60.0
    assert await tier.get("a", "key") == b"steps"
    await tier.close()


@pytest.mark.parametrize("refusal", ["READONLY", "OOM", "MISCONF", "NOREPLICAS"])
async def test_a_cache_that_takes_no_writes_is_read(faulty: FaultyRedis, refusal: str):
    tier = RedisTier(faulty.url, 60, clock=lambda: 0.0)
    tier.put("a", "key", b"steps")
    await tier.written()
    faulty.fault = REFUSALS[refusal]
    tier.put("a", "other", b"steps")
    await tier.written()
    faulty.fault = ""
    assert await tier.get("a", "key") == b"steps"
    await tier.close()


# One Redis through a bad day.


@pytest.mark.slow
def test_a_redis_that_is_paused_killed_filled_set_back_and_made_read_only(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(redis_store, "ANSWER_TIMEOUT_S", 1.0)
    client = redis.Redis.from_url(own_redis.url)
    store = open_store(own_redis.url)
    mirror = Mirror(store, "voices", lambda key, version, value: value)
    written = {"anna": b"0"}
    store.put("voices", "anna", b"0", replaces=0, keeps=1)
    restore = saved_state(own_redis.url)

    def write() -> None:
        version, value = store.get("voices", "anna") or (0, b"0")
        store.put("voices", "anna", b"%d" % (int(value) + 1), replaces=version, keeps=1)
        written["anna"] = b"%d" % (int(value) + 1)

    days = (
        ("does not answer", own_redis.freeze, own_redis.thaw),
        ("does not answer", own_redis.kill, own_redis.start),
        ("replica", lambda: client.replicaof("127.0.0.1", "1"), lambda: client.replicaof("NO", "ONE")),
        (
            "too few replicas",
            lambda: client.config_set("min-replicas-to-write", 3),
            lambda: client.config_set("min-replicas-to-write", 0),
        ),
    )
    for words, begin, end in days:
        write()
        begin()
        with pytest.raises(StoreUnavailable, match=words):
            store.probe()
        with pytest.raises(StoreUnavailable, match=words):
            store.put("voices", "carl", b"x", replaces=0, keeps=1)
        end()
        began = time.monotonic()
        while True:
            try:
                mirror.refresh()
                break
            except StoreUnavailable:
                assert time.monotonic() - began < 30
        assert mirror.newest() == written
        store.delete("voices", "carl")  # the frozen one may have come to it
    write()
    mirror.refresh()
    assert not store.set_back
    restore()
    write()  # and the same number of changes again
    while store.changes("voices").position.split(":")[1] < mirror._position.split(":")[1]:
        write()
    mirror.refresh()
    assert mirror.newest() == written
    assert store.set_back["voices"]
    client.config_set("maxmemory", 1)
    with pytest.raises(StoreFull, match="no room left"):
        store.put("voices", secrets.token_hex(4), bytes(1000), replaces=0, keeps=1)
    assert store.delete("voices", "anna")


def test_no_command_is_newer_than_the_oldest_release(server: RedisServer):
    """Redis itself knows since when it has each command and each of its options; doctor uses every script once."""
    client = redis.Redis.from_url(server.url)
    client.config_resetstat()
    app = read_app_config({"voices": {"store": server.url}, "cache": {"redis": server.url}})
    assert all(finding.status is not Status.FAIL for finding in redis_servers(app))
    used = {name.removeprefix("cmdstat_").partition("|")[0] for name in client.info("commandstats")}
    assert {"evalsha", "hset", "zadd", "zrangebyscore"} <= used
    for name in used - {"command", "config", "info", "client"}:
        _, facts = client.eval("return redis.call('COMMAND', 'DOCS', ARGV[1])", 0, name)
        since = facts[facts.index(b"since") + 1].decode()
        assert tuple(int(part) for part in since.split(".")[:2]) <= OLDEST, f"{name} exists since {since}"
