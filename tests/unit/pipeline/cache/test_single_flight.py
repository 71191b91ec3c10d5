"""Single flight: listeners join, read, leave and fail in any order."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cache.cache import CodeCache, GenerationTerms, terms_for
from pipeline.cache.key import CacheEntryKey, Kept
from pipeline.errors import AtCapacity, DeadlineExceeded, NonFiniteOutput, SynthesisError
from pipeline.types import CacheResult, FinishReason, SchedulingParams, StepBlock

BLOCKS, STEPS = 4, 3


def block_of(key: str, index: int) -> StepBlock:
    codes = np.full((STEPS, 4), 10 * index + int(key), np.int64)
    finish = FinishReason.EOS if index == BLOCKS - 1 else None
    return StepBlock(codes[:, :2].astype(np.float32), codes, index * STEPS, finish)


WHOLE = {key: np.concatenate([block_of(key, index).codes for index in range(BLOCKS)]) for key in "012"}


@dataclass
class Model:
    """Generates a block per permit; counts the running generations per key."""

    gates: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    running: Counter[str] = field(default_factory=Counter)
    opened: Counter[str] = field(default_factory=Counter)
    broken: set[str] = field(default_factory=set)

    async def generate(self, key: str, terms: GenerationTerms) -> AsyncGenerator[StepBlock, None]:
        self.running[key] += 1
        self.opened[key] += 1
        try:
            for index in range(BLOCKS):
                await self.gate(key).acquire()
                if key in self.broken:
                    raise NonFiniteOutput("broken")
                yield block_of(key, index)
        finally:
            self.running[key] -= 1

    def gate(self, key: str) -> asyncio.Semaphore:
        return self.gates.setdefault(key, asyncio.Semaphore(0))


@dataclass
class Listener:
    """One request and the blocks it received."""

    key: str
    task: asyncio.Task[None] | None = None
    pace: asyncio.Semaphore | None = None
    received: list[StepBlock] = field(default_factory=list)
    result: CacheResult | None = None
    error: SynthesisError | None = None
    whole: bool = False

    async def listen(self, cache: CodeCache, model: Model, *, refresh: bool) -> None:
        def on_source(result: CacheResult) -> None:
            self.result = result

        entry_key = CacheEntryKey(self.key, "", cache.generations.of(""), "", Kept.HIDDEN)
        steps = cache.steps(
            entry_key,
            lambda terms: model.generate(self.key, terms),
            terms_for(60, SchedulingParams(), admitted=True),
            refresh=refresh,
            on_source=on_source,
            on_build=lambda build: None,
        )
        try:
            async with aclosing(steps):
                async for block in steps:
                    self.received.append(block)
                    if self.pace is not None:
                        await self.pace.acquire()
            self.whole = True
        except SynthesisError as error:
            self.error = error

    @property
    def codes(self) -> np.ndarray:
        return np.concatenate([block.codes for block in self.received]) if self.received else np.zeros((0, 4), np.int64)


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


KEYS = st.sampled_from("012")
EVENTS = st.one_of(
    st.tuples(st.just("ask"), KEYS, st.booleans()),  # fast or slow
    st.tuples(st.just("refresh"), KEYS, st.booleans()),
    st.tuples(st.just("step"), KEYS, st.just(False)),
    st.tuples(st.just("leave"), st.integers(0, 9), st.just(False)),
    st.tuples(st.just("read"), st.integers(0, 9), st.just(False)),
    st.tuples(st.just("break"), KEYS, st.just(False)),
)


@given(st.lists(EVENTS, max_size=40), st.sampled_from([0, 600, 1 << 20]))
def test_every_listener_gets_the_same_bytes_whatever_the_others_do(events, max_bytes):
    asyncio.run(play(events, max_bytes))


async def play(events: list, max_bytes: int) -> None:
    cache, model = CodeCache(max_bytes), Model()
    listeners: list[Listener] = []
    refreshed: Counter[str] = Counter()
    for kind, text, slow in events:
        if kind in ("ask", "refresh"):
            listener = Listener(text, pace=asyncio.Semaphore(0) if slow else None)
            listener.task = asyncio.create_task(listener.listen(cache, model, refresh=kind == "refresh"))
            refreshed[text] += kind == "refresh"
            listeners.append(listener)
        elif kind == "step":
            model.gate(text).release()
        elif kind == "break":
            model.broken.add(text)
        elif listeners:
            chosen = listeners[text % len(listeners)]
            if kind == "leave":
                chosen.task.cancel()
            elif chosen.pace is not None:
                chosen.pace.release()
        await settle()
        for key in "012":
            waiting = [listener for listener in listeners if listener.key == key and not listener.task.done()]
            assert model.running[key] <= 1 + refreshed[key], "a segment is generated once, however many requests need it"
            assert waiting or not model.running[key], "a stream without listeners is closed"
    for listener in listeners:
        if listener.pace is not None:
            for _ in range(BLOCKS):
                listener.pace.release()
    for key in "012":
        for _ in range(BLOCKS * (model.opened[key] + 1)):
            model.gate(key).release()
    await asyncio.gather(*(listener.task for listener in listeners), return_exceptions=True)
    for listener in listeners:
        assert np.array_equal(listener.codes, WHOLE[listener.key][: len(listener.codes)]), "no byte of another segment"
        if listener.error is not None:
            assert listener.key in model.broken
        elif not listener.task.cancelled():
            assert listener.whole
            assert np.array_equal(listener.codes, WHOLE[listener.key])
            assert listener.received[-1].finish is FinishReason.EOS
    assert not any(model.running.values())
    assert cache.stats().in_progress == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left running"


def two_listeners(*, before: int, max_bytes: int = 1 << 20) -> tuple[Listener, Listener, Model, CodeCache]:
    """Two requests for one segment, the second after `before` blocks."""

    async def both() -> tuple[Listener, Listener, Model, CodeCache]:
        cache, model = CodeCache(max_bytes), Model()
        first, second = Listener("1"), Listener("1")
        first.task = asyncio.create_task(first.listen(cache, model, refresh=False))
        for _ in range(before):
            model.gate("1").release()
        await settle()
        second.task = asyncio.create_task(second.listen(cache, model, refresh=False))
        await settle()
        assert len(second.received) == before or before == BLOCKS, "blocks generated before are received at once"
        for _ in range(BLOCKS - before):
            model.gate("1").release()
        await asyncio.gather(first.task, second.task)
        return first, second, model, cache

    return asyncio.run(both())


@pytest.mark.parametrize("before", range(BLOCKS + 1))
def test_the_second_joins_and_no_step_is_generated_twice(before):
    first, second, model, cache = two_listeners(before=before)
    assert (first.result, second.result) == (CacheResult.MISS, CacheResult.HIT if before == BLOCKS else CacheResult.JOINED)
    assert model.opened["1"] == 1
    assert np.array_equal(first.codes, second.codes)
    assert cache.stats().steps == BLOCKS * STEPS, "the second one's"


def test_without_memory_those_at_once_still_share():
    _, second, model, cache = two_listeners(before=2, max_bytes=0)
    assert second.result is CacheResult.JOINED
    assert model.opened["1"] == 1
    assert cache.stats().bytes == 0


async def test_the_leader_leaves_and_the_follower_gets_the_end():
    cache, model = CodeCache(1 << 20), Model()
    leader, follower = Listener("1"), Listener("1")
    leader.task = asyncio.create_task(leader.listen(cache, model, refresh=False))
    model.gate("1").release()
    await settle()
    follower.task = asyncio.create_task(follower.listen(cache, model, refresh=False))
    await settle()
    leader.task.cancel()
    await settle()
    assert model.running["1"] == 1
    for _ in range(BLOCKS):
        model.gate("1").release()
    await follower.task
    assert follower.whole
    assert model.opened["1"] == 1
    assert cache.stats().entries == 1, "it is stored as well"


def test_a_refusal_that_was_the_leaders_own_is_not_the_followers():
    """The leader's deadline passed, or it was not admitted: a follower with better terms goes on where it is."""

    async def play(failure: SynthesisError, leader: GenerationTerms, follower: GenerationTerms) -> list[GenerationTerms]:
        cache, started = CodeCache(1 << 20), []
        go = asyncio.Event()

        async def generate(terms: GenerationTerms) -> AsyncGenerator[StepBlock, None]:
            started.append(terms)
            for index in range(BLOCKS):
                if index == 2 and terms is leader:
                    await go.wait()
                    raise failure
                yield block_of("1", index)

        async def codes(terms: GenerationTerms) -> np.ndarray:
            entry_key = CacheEntryKey("1", "", (0, 0), "", Kept.HIDDEN)
            blocks = cache.steps(
                entry_key, generate, terms, refresh=False, on_source=lambda result: None, on_build=lambda build: None
            )
            return np.concatenate([block.codes async for block in blocks])

        first = asyncio.create_task(codes(leader))
        await settle()
        second = asyncio.create_task(codes(follower))
        await settle()
        go.set()
        with pytest.raises(type(failure)):
            await first
        assert np.array_equal(await second, WHOLE["1"])
        return started

    late, early = GenerationTerms(1e9, admitted=True), GenerationTerms(1.0, admitted=True)
    assert asyncio.run(play(DeadlineExceeded("over"), early, late)) == [early, late]
    full = AtCapacity("full", retry_after_s=1)
    for stranger in (GenerationTerms(1e9, admitted=False), GenerationTerms(1e9, admitted=True, promised=True)):
        assert asyncio.run(play(full, stranger, late)) == [stranger, late]


def test_no_request_waits_behind_a_less_urgent_lane():
    async def play() -> list[CacheResult | None]:
        cache, model = CodeCache(1 << 20), Model()
        sources: list[CacheResult] = []
        readers = []
        for urgency in (2, 0, 1, 2):
            terms = GenerationTerms(1e9, admitted=True, urgency=urgency)
            blocks = cache.steps(
                CacheEntryKey("1", "", (0, 0), "", Kept.HIDDEN),
                partial(model.generate, "1"),
                terms,
                refresh=False,
                on_source=sources.append,
                on_build=lambda build: None,
            )
            readers.append(asyncio.create_task(joined(blocks)))
            await settle()
        for _ in range(2 * BLOCKS):
            model.gate("1").release()
        for codes in await asyncio.gather(*readers):
            assert np.array_equal(codes, WHOLE["1"])
        assert model.opened["1"] == 2
        return sources

    async def joined(blocks: AsyncGenerator[StepBlock, None]) -> np.ndarray:
        return np.concatenate([block.codes async for block in blocks])

    joins = [CacheResult.JOINED, CacheResult.JOINED]
    assert asyncio.run(play()) == [CacheResult.MISS, CacheResult.MISS, *joins]


def test_every_listener_gets_its_own_copy_of_an_error():
    async def play() -> list[SynthesisError | None]:
        cache, model = CodeCache(1 << 20), Model(broken={"1"})
        listeners = [Listener("1") for _ in range(3)]
        for listener in listeners:
            listener.task = asyncio.create_task(listener.listen(cache, model, refresh=False))
        await settle()
        model.gate("1").release()
        await asyncio.gather(*(listener.task for listener in listeners))
        assert cache.stats().entries == 0
        return [listener.error for listener in listeners]

    errors = asyncio.run(play())
    assert [(type(error), error.message) for error in errors] == [(NonFiniteOutput, "broken")] * 3
    assert len({id(error) for error in errors}) == 3
