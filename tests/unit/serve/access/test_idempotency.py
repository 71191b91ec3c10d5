"""Idempotency keys: one key, one body, one seed, one charge."""

import asyncio
import json
import threading
from functools import partial
from pathlib import Path

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from pipeline.store.open import open_store
from pipeline.store.sqlite import SqliteStore
from pipeline.types import CacheMode
from serve.access import claims as claims_module
from serve.access.claims import Places, StoreClaims
from serve.access.idempotency import MOST_KEYS, Idempotency, checked_key, seed_of
from serve.errors import ApiError
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving
from tests.support.services import RedisServer

BODY = {"input": "Hello there.", "response_format": "pcm"}


def post(url: str, body: dict, key: str) -> requests.Response:
    return requests.post(f"{url}/v1/audio/speech", json=body, headers={"Idempotency-Key": key}, timeout=9)


def test_a_repeated_request_is_the_same_audio():
    speaker = Speaker()
    with serving(make_services(speaker)) as live:
        first, again, written_otherwise = (post(live.url, body, "k-1") for body in (BODY, BODY, dict(reversed(BODY.items()))))
        other = post(live.url, BODY, "k-2")
        without = live.speak()
    assert first.content == again.content == written_otherwise.content != other.content
    assert [reply.headers["Idempotency-Replayed"] for reply in (first, again, written_otherwise, other)] == [
        *("false", "true", "true", "false")
    ]
    assert "Idempotency-Replayed" not in without.headers
    assert first.headers["X-Audio-Seed"] == str(seed_of("anonymous", "k-1"))
    assert [request.cache.mode for request in speaker.requests] == [CacheMode.DEFAULT] * 4 + [CacheMode.NO_STORE]


def test_another_body_under_the_same_key_is_a_409():
    with serving(make_services(Speaker())) as live:
        assert post(live.url, BODY | {"speed": 9}, "k").status_code == 400, "a body that is wrong takes no key"
        assert post(live.url, BODY, "k").status_code == 200
        for change in ({"input": "Goodbye."}, {"seed": 1}, {"response_format": "wav"}):
            reply = post(live.url, BODY | change, "k")
            assert (reply.status_code, reply.json()["error"]["code"]) == (409, "idempotency_mismatch")
            assert reply.headers["x-should-retry"] == "false"
        assert post(live.url, BODY | {"seed": 4}, "with a seed".replace(" ", "-")).headers["X-Audio-Seed"] == "4"


@pytest.mark.parametrize("key", ["", "k" * 256, "with space", "tab\tinside"])
def test_a_key_is_visible_ascii(key):
    with pytest.raises(ApiError) as refusal:
        checked_key(key)
    assert refusal.value.spec.status == 400
    assert checked_key(None) is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 2), st.integers(0, 60)), max_size=30))
def test_within_its_time_a_key_stands_for_one_body_of_one_tenant(events):
    now = [0.0]
    ttl, twin = 100.0, dict[tuple[str, str], tuple[float, int]]()
    idempotency = Idempotency(ttl_s=ttl, clock=lambda: now[0])
    for tenant, key, number, wait in events:
        now[0] += wait
        raw = json.dumps({"n": number}).encode()
        until, body = twin.get((tenant, key), (0.0, -1))
        if until > now[0] and body != number:
            with pytest.raises(ApiError):
                asyncio.run(idempotency.is_repeated(tenant, key, raw))
            continue
        assert asyncio.run(idempotency.is_repeated(tenant, key, raw)) == (until > now[0])
        if until <= now[0]:
            twin[tenant, key] = (now[0] + ttl, number)


async def test_a_key_that_was_released_is_free_and_their_number_is_bounded():
    idempotency = Idempotency()
    assert not await idempotency.is_repeated("t", "k", b"{}")
    await idempotency.release("t", "k")
    assert not await idempotency.is_repeated("t", "k", b"[]")
    for index in range(MOST_KEYS + 5):
        await idempotency.is_repeated("t", str(index), b"{}")
    assert len(idempotency._own) == MOST_KEYS


async def test_a_charge_is_known_of_the_body_it_was_for_even_if_the_key_was_released():
    idempotency = Idempotency()
    assert not await idempotency.is_charged("t", "k", b"{}")
    assert not await idempotency.note_charge("t", "k", b"{}")
    assert await idempotency.is_charged("t", "k", b"{ }")
    assert await idempotency.note_charge("t", "k", b"{}")
    assert not await idempotency.is_charged("other", "k", b"{}")
    await idempotency.release("t", "k")
    assert not await idempotency.is_charged("t", "k", b"[]"), "another body is not paid by it"
    with pytest.raises(ApiError):
        await idempotency.note_charge("t", "k", b"[]")


async def test_replicas_agree_through_redis_and_go_on_without_it(own_redis: RedisServer):
    stores = [open_store(own_redis.url) for _ in range(2)]
    first, two = (Idempotency(StoreClaims(store), 60) for store in stores)
    fresh = partial(Idempotency, StoreClaims(stores[1]), 60)
    assert not await first.is_repeated("t", "k", b'{"a": 1}')
    assert await two.is_repeated("t", "k", b'{"a": 1}')
    with pytest.raises(ApiError):
        await fresh().is_repeated("t", "k", b'{"a": 2}')
    await first.release("t", "k")
    assert not await fresh().is_repeated("t", "k", b'{"a": 2}')
    for number in range(20):
        both = await asyncio.gather(*(claims.note_charge("t", f"both{number}", b"{}") for claims in (first, two)))
        assert sorted(both) == [False, True], "whoever comes at the same time, one is the first"
    own_redis.kill()
    assert not await first.is_repeated("t", "later", b"{}")
    with pytest.raises(ApiError):
        await first.is_repeated("t", "later", b"[]")
    for store in stores:
        store.close()


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9), st.integers(0, 30)), max_size=120))
def test_no_owner_loses_a_claim_of_its_share_to_others(events: list[tuple[str, int, int]]):
    """Of twelve places and four owners, three each."""
    places, ends, now = Places(12), dict[str, float](), 0
    for owner, number, wait in events:
        now, name = now + wait, f"{owner}:{number}"
        if places.get(name, now) is None:
            places.put(name, name.encode(), now + 100.0, now)
            ends[name] = now + 100.0
        live = [claim for claim, until in ends.items() if until > now]
        assert len(places) <= 12
        for claim in live:
            if sum(other[0] == claim[0] for other in live) <= 3:
                assert places.get(claim, now) == claim.encode()
        assert all(places.get(claim, now) is None for claim in ends if claim not in live)


async def test_the_keys_of_others_push_out_no_key_that_is_paid(tmp_path: Path):
    claims = StoreClaims(SqliteStore(tmp_path / "store.sqlite"), records=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims_module, "PLACES", 4)
        patch.setattr(claims_module, "ANSWER_TIMEOUT_S", 60.0)  # of a busy machine
        paid, others = Idempotency(claims), Idempotency(claims)
        await paid.note_charge("anna", "order", b"{}")
        for number in range(8):
            await others.is_repeated("bert", str(number), b"{}")
        assert await Idempotency(claims).is_charged("anna", "order", b"{}")


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"7", b"[1]", b'["k", "soon", "00"]', b'["k", 9e9, "00"]', b'[["k", 9e9, "xx"]]', b'[["k", 9e9, 1]]', b"\xff"],
)
async def test_a_claim_that_cannot_be_read_is_nobodys(tmp_path: Path, content: bytes):
    store = SqliteStore(tmp_path / "store.sqlite")
    claims = StoreClaims(store, records=1)
    store.put(claims_module.NAMESPACE, "0", content, replaces=0, keeps=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims_module, "ANSWER_TIMEOUT_S", 60.0)  # of a busy machine
        assert await claims.claimed("k") is None
        await claims.release("k")
        assert await claims.claim("k", b"one", 60.0) == b"one"
        assert await claims.claimed("k") == b"one"


@pytest.mark.parametrize("before", [None, b"another"])
async def test_of_two_replicas_that_claim_at_once_one_is_the_first(tmp_path: Path, before: bytes | None):
    """Both have read before either writes; a record that another name had is no other case than none."""
    place, both_have_read = tmp_path / "store.sqlite", threading.Barrier(2)

    class Meeting(SqliteStore):
        reads = 0

        def get(self, namespace: str, key: str) -> tuple[int, bytes] | None:
            content = super().get(namespace, key)
            self.reads += 1
            if self.reads == 1:
                both_have_read.wait(timeout=60)
            return content

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims_module, "ANSWER_TIMEOUT_S", 60.0)  # of a busy machine
        if before is not None:
            await StoreClaims(SqliteStore(place), records=1).claim("another", before, 60.0)
        claims = [StoreClaims(Meeting(place), records=1) for _ in range(2)]
        first, second = await asyncio.gather(claims[0].claim("k", b"one", 60.0), claims[1].claim("k", b"two", 60.0))
        assert first == second
        assert first in (b"one", b"two")
