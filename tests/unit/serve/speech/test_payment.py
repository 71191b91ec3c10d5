"""Payment: whatever is cancelled, wherever it waits, a caller has paid for what was spoken and for nothing else."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.types import AudioChunk, SynthesisRequest
from serve.access.api_keys import Quota
from serve.access.caller import Caller, PendingCharge
from serve.access.idempotency import Idempotency
from serve.access.resume_tokens import Resumption
from serve.errors import ApiError
from serve.speech.events import Started
from serve.speech.job import RequestContext
from serve.speech.payment import Payment
from serve.speech.schemas.speech import SpeechBody
from serve.speech.speak import open_speech
from tests.support.effort import examples
from tests.support.fakes import Speaker, make_speech_services
from tests.support.guarded import RemoteQuotas

TEXT = "Hello there."
BODY = SpeechBody(input=TEXT, response_format="pcm")
RAW = BODY.model_dump_json().encode()


async def later() -> None:
    """As long as a store takes to ask or to answer."""
    for _ in range(2):
        await asyncio.sleep(0)


class RemoteClaims:
    """Claims of all replicas."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    async def claim(self, name: str, content: bytes, ttl_s: float) -> bytes | None:
        return await self._answer(lambda: self.contents.setdefault(name, content))

    async def claimed(self, name: str) -> bytes | None:
        return await self._answer(lambda: self.contents.get(name))

    async def release(self, name: str) -> None:
        await self._answer(lambda: self.contents.pop(name, None))

    async def _answer(self, work: Callable[[], bytes | None]) -> bytes | None:
        await later()
        answer = work()
        await later()
        return answer


class Replicas:
    """Two replicas, and how often each key's text was spoken."""

    def __init__(self) -> None:
        claims, self.quotas = RemoteClaims(), RemoteQuotas()
        self.caller = Caller("anna", quota=Quota(characters_a_day=10_000, audio_s_a_minute=1e6), quotas=self.quotas)
        self.services = [make_speech_services(Speaker(chunks=1), idempotency=Idempotency(claims)) for _ in range(2)]
        self.spoken: dict[str | None, int] = {}
        self.token: str | None = None

    async def speak(self, replica: int, key: str | None, resumes: Resumption | None = None, cache_control: str = "") -> None:
        context = RequestContext("r", self.caller, cache_control=cache_control, idempotency_key=key, resumes=resumes)
        with open_speech(self.services[replica], context) as speech:
            job = await speech.accept(BODY, RAW)
            async with aclosing(speech.speak(job)) as events:
                async for event in events:
                    if isinstance(event, Started):
                        self.spoken[key] = self.spoken.get(key, 0) + 1
                        self.token = event.token

    async def cancelled(self, work: Awaitable[None], turns: int) -> None:
        task = asyncio.ensure_future(work)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def used(self) -> int:
        """Characters, once everything is given back that will be."""
        while pending := [*Payment._ending, *PendingCharge._questions]:
            await asyncio.wait(pending)
        return await self.quotas.characters_today("anna")


requests = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([None, "k", "l"]), st.integers(0, 90)), min_size=1, max_size=6)


@settings(max_examples=examples(40))
@given(requests)
async def test_what_is_cancelled_one_after_the_other_costs_what_was_spoken(calls: list[tuple[int, str | None, int]]):
    replicas = Replicas()
    for replica, key, turns in calls:
        await replicas.cancelled(replicas.speak(replica, key), turns)
        spoken = sum(count if name is None else 1 for name, count in replicas.spoken.items())
        assert await replicas.used() == len(TEXT) * spoken
    assert not replicas.quotas._used("anna").reserved


@settings(max_examples=examples(40))
@given(requests)
async def test_what_is_cancelled_side_by_side_is_never_spoken_unpaid_and_never_paid_twice(
    calls: list[tuple[int, str | None, int]],
):
    """Where nobody of a key has spoken, a charge may be left for its next request: of two that were cancelled at once."""

    replicas = Replicas()
    await asyncio.gather(*(replicas.cancelled(replicas.speak(replica, key), turns) for replica, key, turns in calls))
    keys, alone = {key for _, key, _ in calls} - {None}, replicas.spoken.get(None, 0)
    spoken = alone + sum(key in replicas.spoken for key in keys)
    assert len(TEXT) * spoken <= await replicas.used() <= len(TEXT) * (alone + len(keys))
    for key in keys:
        await replicas.speak(1, key)
    assert await replicas.used() == len(TEXT) * (alone + len(keys))


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 90)), max_size=5))
async def test_one_continuation_is_free_however_many_were_cancelled(calls: list[tuple[int, int]]):
    replicas = Replicas()
    await replicas.speak(0, None)
    token = replicas.token
    for replica, turns in calls:
        await replicas.cancelled(replicas.speak(replica, None, Resumption(1000, token)), turns)
        assert await replicas.used() == len(TEXT) * max(1, replicas.spoken[None] - 1)


@pytest.mark.parametrize("cache_control", ["no-store", "no-cache"])
async def test_a_repetition_that_the_cache_may_not_answer_is_paid(cache_control: str):
    replicas = Replicas()
    await replicas.speak(0, "k")
    for number in range(2, 5):
        await replicas.speak(number % 2, "k", cache_control=cache_control)
        assert await replicas.used() == number * len(TEXT)
    await asyncio.gather(*(replicas.speak(number % 2, "l", cache_control=cache_control) for number in range(4)))
    assert await replicas.used() == 8 * len(TEXT)


@pytest.mark.parametrize("first_made", [None, 0, 1, 2])
@pytest.mark.parametrize("has_room", [True, False])
def test_a_repetition_of_which_anything_is_made_again_is_paid_or_refused(first_made: int | None, has_room: bool):
    async def run() -> None:
        replicas = Replicas()
        await replicas.speak(0, "k")

        async def stream(request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
            index = 0
            async with aclosing(Speaker(chunks=3).stream(request)) as chunks:
                async for chunk in chunks:
                    yield replace(chunk, is_made=first_made is not None and index >= first_made)
                    index += 1

        replicas.services[1] = replace(replicas.services[1], stream=stream)
        if not has_room:
            replicas.caller = replace(replicas.caller, quota=Quota(characters_a_day=len(TEXT)))
        if has_room or first_made is None:
            await replicas.speak(1, "k")
        else:
            with pytest.raises(ApiError) as refusal:
                await replicas.speak(1, "k")
            assert refusal.value.spec.status == 429
            assert replicas.spoken["k"] == 1 + (first_made > 0)
        assert await replicas.used() == len(TEXT) * (2 if has_room and first_made is not None else 1)

    asyncio.run(run())


async def test_a_reply_on_the_charge_of_another_has_no_free_continuation_of_its_own():
    replicas = Replicas()
    for _ in range(2):
        await replicas.speak(0, "k")
    assert await replicas.used() == len(TEXT)
    await replicas.speak(1, None, Resumption(1000, replicas.token))
    assert await replicas.used() == 2 * len(TEXT)
    await replicas.speak(1, "k", Resumption(1000))
    assert await replicas.used() == 2 * len(TEXT)


async def test_a_charge_that_is_refused_leaves_nothing_reserved():
    quotas: Any = RemoteQuotas()
    caller = Caller("anna", quota=Quota(characters_a_day=100, audio_s_a_minute=1.0), quotas=quotas)
    quotas.record_audio("anna", caller.quota, 2.0)
    charge = PendingCharge(caller)
    with pytest.raises(ApiError):
        await charge.take(50, 1.0)
    assert await caller.characters_today() == 0
    assert not quotas._used("anna").reserved
