"""Endings and second takes: every stream ends with a word, and a segment that ends too early is made again once."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cache.cache import CodeCache, GenerationTerms
from pipeline.cache.cached_generator import CachedModel
from pipeline.cache.key import CacheEntryKey, Kept
from pipeline.config import EngineConfig, SpeechConfig
from pipeline.engine.device import RoundOutput
from pipeline.engine.engine import Engine
from pipeline.engine.loop import EngineLoop
from pipeline.engine.observer import NullEngineObserver
from pipeline.engine.scheduler import Scheduler
from pipeline.errors import DeadlineExceeded, EngineDead, EngineFault, NotCached, OtherBuild, SynthesisError
from pipeline.synthesizer import SegmentPrefetcher, Synthesizer
from pipeline.takes.rerolls import RETRY_FAILED, Rerolls
from pipeline.takes.takes import ROLLED_AGAIN, TOO_SHORT, Takes
from pipeline.types import (
    CacheControl,
    CacheMode,
    FinishReason,
    Followed,
    Head,
    Prompt,
    SamplingParams,
    SeedMode,
    SpokenWord,
    StepBlock,
    SynthesisRequest,
    TimeDetail,
    TimedItem,
)
from pipeline.voices.catalogue import VoiceCatalogue
from tests.support.effort import examples
from tests.support.factories import WIDTH, collect, make_prompt, make_sequence
from tests.support.fakes import PromptMaker, StepMaker, ToneDecoder


def block(first: int, stop: int, *, finish: FinishReason | None = None, build: str = "") -> StepBlock:
    codes = np.full((stop - first, 4), len(build))
    return StepBlock(np.zeros((stop - first, WIDTH), np.float32), codes, first, finish, fingerprint=build)


class Stops:
    """Makes some steps, and stops: silently, with an error, or because its task is cancelled."""

    def __init__(self, error: BaseException | None = None, *, takes: int = 0) -> None:
        self.error, self.takes = error, takes

    async def generate(self, prompt, sampling, *, timeout_s, admitted=False) -> AsyncGenerator[StepBlock, None]:
        if sampling.attempt < self.takes:
            yield block(0, 40, finish=FinishReason.EOS)
            return
        yield block(0, 4)
        if self.error is not None:
            raise self.error


# -- steps that stop ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [(None, EngineFault), (asyncio.CancelledError(), EngineFault), (EngineDead("it died"), EngineDead)],
    ids=["silently", "cancelled below", "with an error"],
)
@pytest.mark.parametrize("segments", [1, 3])
async def test_steps_that_stop_end_the_request_at_once(error, expected, segments):
    takes = Takes(Stops(error), SamplingParams(), 1e9, (0,))
    prefetcher = SegmentPrefetcher(takes, (make_prompt(),) * segments, 2, admitted=True)
    async with asyncio.timeout(5), aclosing(prefetcher.segments()) as streams:
        async for steps in streams:
            with pytest.raises(expected):
                [block async for block in steps]


class OneBrokenRound:
    """A runner whose only row is broken, and whose device then fails."""

    rounds_ahead = 0

    def __init__(self, *, resets: bool) -> None:
        self.resets = resets

    def prefill(self, sequences) -> None: ...

    def launch(self, plan) -> None: ...

    def read(self) -> RoundOutput:
        yes = np.ones(1, bool)
        return RoundOutput(np.zeros((1, 1, WIDTH), np.float32), np.zeros((1, 1, 4), np.int64), ~yes[None], ~yes, yes)

    def reset_slot(self, slot: int) -> None:
        if not self.resets:
            raise RuntimeError("an illegal memory access")


class FullDisk(NullEngineObserver):
    def wasted(self, steps: int, reason: str) -> None:
        raise OSError("no space left for metrics")


@pytest.mark.parametrize("fails", ["the device", "the observer of a broken row", "the observer of a late one"])
async def test_a_loop_that_dies_tells_its_readers_first(fails):
    config = EngineConfig(slots=1)
    scheduler = Scheduler(config)
    observer = NullEngineObserver() if fails == "the device" else FullDisk()
    loop = EngineLoop(config, scheduler, observer, lambda: 0.0)
    late = fails == "the observer of a late one"
    readers = [make_sequence(timeout_s=-1.0 if late else 10.0) for _ in range(3)]
    loop.start(lambda: OneBrokenRound(resets=fails != "the device"))  # type: ignore[arg-type,return-value]
    with loop.wake:
        for sequence in readers:
            scheduler.submit(sequence, admitted=True, retry_after_s=1)
        loop.wake.notify()
    for sequence in readers:
        with pytest.raises(SynthesisError):
            async with asyncio.timeout(5):
                await sequence.stream.get()


@pytest.mark.parametrize("error", [DeadlineExceeded("over"), NotCached("no second take"), EngineDead("dead")])
@pytest.mark.parametrize("takes", [1, 2])
async def test_a_further_take_that_fails_costs_no_speech(error, takes):
    class Deaf:
        async def follow(self, prompt, codes, tokens, *, ended):
            return Followed(*2 * [np.full(len(codes), 2)])  # words are missing in every take

    words = (tuple(SpokenWord((n, n + 1), (n, n + 1), (2 + n, 3 + n)) for n in range(4)),)
    takes_ = Takes(Stops(error, takes=2 * takes), SamplingParams(), 1e9, (0,))
    spoken = Rerolls(takes_, words, Deaf(), retries=3)
    async with aclosing(spoken.steps(make_prompt(), admitted=True)) as steps:
        assert sum([len(block.codes) async for block in steps]) == 40
    assert dict(spoken.warnings)[RETRY_FAILED] == 1


# -- one build ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("further", "is_spliced"), [("old", False), ("new", True)])
@pytest.mark.parametrize("cut", [1, 40])
def test_a_joined_segment_goes_on_with_steps_of_its_build_or_not_at_all(further, is_spliced, cut):
    entry = CacheEntryKey("digest", "tenant", (0, 0), "old", Kept.CODES)

    async def first(terms: GenerationTerms) -> AsyncGenerator[StepBlock, None]:
        yield block(0, 0, build="old")
        yield block(0, cut, build="old")
        await asyncio.sleep(0.01)
        raise DeadlineExceeded("the first request's time is over")

    async def second(terms: GenerationTerms) -> AsyncGenerator[StepBlock, None]:
        yield block(0, 80, finish=FinishReason.EOS, build=further)

    async def play() -> int:
        cache, steps = CodeCache(1 << 20), 0

        async def listen(generate: Callable, deadline: float) -> int:
            nonlocal steps
            terms = GenerationTerms(deadline, admitted=True)
            blocks = cache.steps(
                entry, generate, terms, refresh=False, on_source=lambda source: None, on_build=lambda build: None
            )
            async with aclosing(blocks):
                return sum([len(block.codes) async for block in blocks])

        leader = asyncio.create_task(listen(first, 1.0))
        await asyncio.sleep(0)
        try:
            return await listen(second, 2.0)
        finally:
            await asyncio.gather(leader, return_exceptions=True)

    if is_spliced:
        with pytest.raises(OtherBuild):
            asyncio.run(play())
    else:
        assert asyncio.run(play()) == 80


# -- times that are taken back --------------------------------------------------------------------------------------------

TEXT = "abcdefgh ijklmnop"


class Fickle:
    """A follower that says other things from some answer on, or nothing."""

    def __init__(self, answers: list[int | None]) -> None:
        self.answers = iter(answers)

    async def follow(self, prompt, codes, tokens, *, ended):
        moved = next(self.answers, 0)
        if moved is None:
            return None
        path = np.minimum(tokens[0] + np.maximum(0, np.arange(max(0, len(codes) - 4)) + moved) // 4, tokens[1] - 1)
        return Followed(path, path)


class Worded(PromptMaker):
    async def plan(self, request, voices):
        plan = await super().plan(request, voices)
        words = [tuple(SpokenWord((n, n + 1), (n, n + 1), (n, n + 1)) for n in range(8)) for _ in plan.prompts]
        prompts = [replace(prompt, segment=replace(prompt.segment, source=(0, 8))) for prompt in plan.prompts]
        return replace(plan, prompts=tuple(prompts), words=tuple(words))


def spoken(answers: list[int | None] | None, block_steps: int) -> tuple[np.ndarray, list[TimedItem]]:
    follower = None if answers is None else Fickle(answers)
    synthesizer = Synthesizer(
        Worded(), StepMaker(block=block_steps), ToneDecoder(), VoiceCatalogue.load(None, 16), SpeechConfig(), follower=follower
    )

    async def play() -> tuple[np.ndarray, list[TimedItem]]:
        request, pieces, items, place = SynthesisRequest("id", TEXT, "default", times=TimeDetail.WORD), [], [], 0
        async for chunk in synthesizer.stream(request):
            assert chunk.first_sample == place
            place += len(chunk.samples)
            pieces.append(chunk.samples)
            items += chunk.times
        return np.concatenate(pieces), items

    return asyncio.run(play())


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.none() | st.integers(-20, 20), max_size=12), st.sampled_from([3, 4, 9]))
def test_a_follower_that_takes_back_its_answers_changes_no_sample(answers, block_steps):
    samples, items = spoken(answers, block_steps)
    np.testing.assert_array_equal(samples, spoken(None, block_steps)[0])
    words = [item for item in items if item.kind == "word"]
    assert len(words) == 8, "each word has its time once"
    assert all(0 <= word.start <= word.stop <= len(samples) for word in words)
    assert all(word.stop <= following.start for word, following in pairwise(words))


# Takes: a segment that ends impossibly early is rolled again once; what is good passes untouched; time decides nothing.


FIRST_STEPS = 60  # ChatTTS's own: 8 of the first chunk and 52 of look-ahead


class Rolls:
    """protocols.CodeGenerator: take n has lengths[n] steps, whose codes are n."""

    def __init__(self, *lengths: int, block: int = 4, finish: FinishReason = FinishReason.EOS) -> None:
        self.lengths = lengths
        self.block = block
        self.finish = finish
        self.attempts: list[tuple[int, bool]] = []
        self.generated = 0

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        self.attempts.append((sampling.attempt, admitted))
        steps = self.lengths[sampling.attempt]
        for first in range(0, steps, self.block):
            await asyncio.sleep(0)
            count = min(self.block, steps - first)
            self.generated += count
            codes = np.full((count, 4), sampling.attempt, np.int64)
            last = first + count == steps
            yield StepBlock(np.zeros((count, 8), np.float32), codes, first, self.finish if last else None)


PLAIN = SamplingParams()


def rolled(rolls: Rolls, least: int, sampling: SamplingParams = PLAIN, head: Head = Head.CODE):
    """The lengths and the take that arrive, and the warnings."""

    async def listen():
        takes = Takes(rolls, sampling, time.monotonic() + 100, (FIRST_STEPS,))
        prompt = replace(make_prompt(head=head), least_steps=least)
        async with aclosing(takes.steps(prompt, admitted=False)) as steps:
            blocks = [block async for block in steps]
        assert [block.first_step for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
        assert [block.finish for block in blocks] == [*[None] * (len(blocks) - 1), rolls.finish]
        (take,) = {int(code) for block in blocks for code in block.codes.flat}
        return blocks[-1].stop, take, dict(takes.warnings)

    return asyncio.run(listen())


@given(st.integers(1, 150), st.integers(1, 150), st.integers(0, 200), st.integers(1, 70))
def test_the_take_that_is_spoken_depends_on_its_length_alone(first, second, least, block):
    rolls = Rolls(first, second, block=block)
    stop, take, warnings = rolled(rolls, least)
    is_rolled = first < min(least, FIRST_STEPS)
    assert (stop, take) == ((second, 1) if is_rolled else (first, 0))
    assert warnings == ({ROLLED_AGAIN: 1} if is_rolled else {}) | ({TOO_SHORT: 1} if stop < least else {})
    assert rolls.attempts == ([(0, False), (1, True)] if is_rolled else [(0, False)]), (
        "at most one more, on the first one's ticket"
    )


def test_draws_of_upstream_and_takes_that_were_cut_are_not_rolled_again():
    assert rolled(Rolls(3), 40, SamplingParams(seed_mode=SeedMode.UPSTREAM)) == (3, 0, {TOO_SHORT: 1})
    assert rolled(Rolls(3, finish=FinishReason.LENGTH), 40) == (3, 0, {TOO_SHORT: 1})
    assert rolled(Rolls(3), 0, head=Head.TEXT) == (3, 0, {})


def test_no_more_is_kept_back_than_decides():
    async def first_block(least: int) -> int:
        rolls = Rolls(400)
        takes = Takes(rolls, SamplingParams(), time.monotonic() + 100, (FIRST_STEPS,))
        async with aclosing(takes.steps(replace(make_prompt(), least_steps=least), admitted=False)) as steps:
            await anext(steps)
            assert takes.running.is_set()
        return rolls.generated

    assert [asyncio.run(first_block(least)) for least in (0, 4, 20, FIRST_STEPS, 300)] == [4, 4, 20, FIRST_STEPS, FIRST_STEPS]


def test_the_others_may_begin_while_steps_are_kept_back():
    async def running_after_a_step() -> bool:
        takes = Takes(Rolls(2, 400, block=1), SamplingParams(), time.monotonic() + 100, (FIRST_STEPS,))
        async with aclosing(takes.steps(replace(make_prompt(), least_steps=50), admitted=False)) as steps:
            arriving = asyncio.ensure_future(anext(steps))
            await takes.running.wait()
            assert not arriving.done()
            await arriving
        return takes.running.is_set()

    assert asyncio.run(running_after_a_step())


def test_a_second_take_has_no_more_time_than_the_request():
    class Slow(Rolls):
        async def generate(self, *args: object, **more: object) -> AsyncGenerator[StepBlock, None]:
            async for block in super().generate(*args, **more):
                yield block
            takes._deadline = time.monotonic()

    takes = Takes(Slow(2, 100), SamplingParams(), time.monotonic() + 100, (FIRST_STEPS,))

    async def listen() -> None:
        async with aclosing(takes.steps(replace(make_prompt(), least_steps=50), admitted=False)) as steps:
            async for _ in steps:
                pass

    with pytest.raises(DeadlineExceeded):
        asyncio.run(listen())


async def test_a_second_take_comes_from_the_cache_too_or_not_at_all():
    """A request that accepts cached speech only starts no second roll."""
    prompt = replace(make_prompt(), least_steps=50)

    async def say(model: CachedModel, mode: CacheMode) -> int:
        cached = model.for_request(CacheControl(mode, "t"))
        takes = Takes(cached, SamplingParams(seed=3), time.monotonic() + 100, (FIRST_STEPS,))
        async with aclosing(takes.steps(prompt, admitted=False)) as steps:
            return [block async for block in steps][-1].stop

    class Printed(Rolls):
        async def generate(self, *args: object, **more: object) -> AsyncGenerator[StepBlock, None]:
            async for block in super().generate(*args, **more):
                yield replace(block, fingerprint="f" if block.finish else "")

    rolls = Printed(2, 80)
    model = CachedModel(rolls, CodeCache(1 << 20), payload=Kept.HIDDEN, fingerprint="f")
    assert await say(model, CacheMode.DEFAULT) == 80
    assert await say(model, CacheMode.ONLY_IF_CACHED) == 80
    assert len(rolls.attempts) == 2, "both takes were in the cache"
    forgetful = CachedModel(rolls, CodeCache(1 << 20), payload=Kept.HIDDEN, fingerprint="f")
    first = forgetful.for_request(CacheControl(CacheMode.DEFAULT, "t"))
    async with aclosing(first.generate(prompt, SamplingParams(seed=3), timeout_s=9)) as steps:
        assert [block async for block in steps][-1].stop == 2
    with pytest.raises(NotCached):
        await say(forgetful, CacheMode.ONLY_IF_CACHED)


@pytest.mark.slow
def test_the_same_seed_rolls_the_same_steps_alone_and_in_a_crowd(demo):
    """Random weights end anywhere, so a high least number of steps rolls most of these segments again."""
    prompts = [replace(make_prompt(number=number, max_steps=100), least_steps=90) for number in range(8)]

    async def say(engine: Engine, number: int):
        takes = Takes(
            engine, SamplingParams(seed=number, temperature=1.0, top_p=1.0, top_k=626), time.monotonic() + 100, (FIRST_STEPS,)
        )
        return await collect(takes.steps(prompts[number], admitted=True)), dict(takes.warnings)

    async def crowd(engine: Engine):
        return await asyncio.gather(*(say(engine, number) for number in range(len(prompts))))

    settings = {"slots": 4, "threads": 1, "max_prompt": 64, "max_steps": 128}
    with closing(Engine(EngineConfig.model_validate(settings), demo)) as engine:
        together = asyncio.run(crowd(engine))
        alone = [asyncio.run(say(engine, number)) for number in range(len(prompts))]
    assert all(take.equals(other) and report == again for (take, report), (other, again) in zip(together, alone, strict=True))
    assert 2 <= sum(ROLLED_AGAIN in warnings for _, warnings in alone) < len(prompts), "some are rolled again, some are not"
