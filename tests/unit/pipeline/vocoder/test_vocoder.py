"""The vocoder: a window is its own, calls are shared and ended, and beside the engine it makes the same bytes."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace

import numpy as np
import pytest

from pipeline.cache.cache import CodeCache
from pipeline.cache.cached_generator import CachedModel
from pipeline.cache.key import Kept
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import Checkpoint, open_checkpoint
from pipeline.config import PipelineConfig, SpeechConfig, VocoderConfig
from pipeline.errors import AtCapacity, EngineDead, EngineFault
from pipeline.paths import cache_home
from pipeline.spec import HOP, SAMPLES_PER_STEP
from pipeline.synthesizer import Synthesizer
from pipeline.types import (
    CacheControl,
    CacheMode,
    CacheResult,
    DecoderTraits,
    Head,
    HiddenWindow,
    Latency,
    Prompt,
    RefineParams,
    SamplingParams,
    SchedulingParams,
    StepBlock,
    SynthesisRequest,
)
from pipeline.vocoder import vocoder as vocoder_module
from pipeline.vocoder.beside import with_samples
from pipeline.vocoder.strategies import DecodeStrategy, WindowedStrategy
from pipeline.vocoder.stream import StreamDecoder
from pipeline.vocoder.vocoder import CALL_TIMEOUT_S, Vocoder
from pipeline.vocoder.windowed.network import WindowCalls
from serve.commands.say import LocalPipeline, open_pipeline

CONFIG = VocoderConfig.varied({"method": "windows", "threads": 1, "chunk_steps": (4, 6), "look_ahead": 7, "rows": 4})
TINY = VocoderConfig.varied({"method": "windows", "chunk_steps": (1, 2), "look_ahead": 1, "rows": 2})
DEADLINE_S = 10.0


@pytest.fixture(scope="module")
def demo() -> Checkpoint:
    return open_checkpoint(resolve("small-random", cache_home()))


@contextmanager
def running(config: VocoderConfig, checkpoint: Checkpoint | None, **parts: object) -> Iterator[Vocoder]:
    vocoder = Vocoder(config, checkpoint, **parts)
    try:
        yield vocoder
    finally:
        vocoder.close()


def make_window(config: VocoderConfig, width: int, *, number: int = 0, size: int | None = None, fill=None) -> HiddenWindow:
    size = size or config.chunk_steps[0]
    steps = size + 2 * config.look_ahead
    random = np.random.default_rng(number)
    codes = random.integers(0, 625, (steps, 4)).astype(np.float32)
    frames = codes if width == 4 else random.standard_normal((steps, width), np.float32)
    if fill is not None:
        frames[:] = fill
    valid_start = number % (config.look_ahead + 1)
    frames[:valid_start] = 0
    return HiddenWindow(frames, valid_start, steps, config.look_ahead, config.look_ahead + size, is_last=False)


class GatedCalls:
    """Calls that wait at a gate and give each window's first number back."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.decoded: list[list[float]] = []
        self.failure: BaseException | None = None

    def make(self, config: VocoderConfig, checkpoint: Checkpoint) -> DecodeStrategy:
        sizes = config.chunks(incremental=False)
        return WindowedStrategy(config, WindowCalls(1, {size + 2 * config.look_ahead: self._decode for size in sizes}))

    def _decode(self, windows: Sequence[HiddenWindow]) -> list[np.ndarray]:
        self.entered.set()
        assert self.gate.wait(DEADLINE_S)
        if self.failure:
            raise self.failure
        self.decoded.append([float(window.frames[0, 0]) for window in windows])
        return [window.frames[0] for window in windows]


def numbered(number: int, *, size: int = 1) -> HiddenWindow:
    return make_window(TINY, 1, size=size, fill=number)


def test_a_window_gives_the_same_bits_alone_beside_neighbours_and_in_any_row(demo):
    for use_decoder in (True, False):
        for rows in (1, 4):
            config = CONFIG.model_copy(update={"rows": rows, "use_decoder": use_decoder})
            width = demo.gpt_spec.width if use_decoder else 4
            windows = [make_window(config, width, number=number) for number in range(9)]
            with running(config, demo) as vocoder:
                alone = [vocoder.decode_batch([window])[0] for window in windows]
                order = np.random.default_rng(3).permutation(9)
                together = vocoder.decode_batch([windows[number] for number in order])
            assert len({samples.tobytes() for samples in alone}) == 9
            for number, samples in zip(order, together, strict=True):
                assert np.array_equal(samples.view(np.uint32), alone[number].view(np.uint32))


def test_nan_in_one_window_touches_no_other_and_nothing_stays(demo):
    width = demo.gpt_spec.width
    good = [make_window(CONFIG, width, number=number) for number in range(3)]
    bad = make_window(CONFIG, width, fill=np.nan)
    with running(CONFIG, demo) as vocoder:
        before = vocoder.decode_batch(good)
        first, spoiled, *others = vocoder.decode_batch([good[0], bad, *good[1:]])
        after = vocoder.decode_batch(good)
    assert np.isnan(spoiled).all()
    for samples, expected, later in zip([first, *others], before, after, strict=True):
        assert np.isfinite(expected).all()
        assert np.array_equal(samples, expected)
        assert np.array_equal(later, expected)


def test_a_last_window_gives_one_hop_less_and_a_short_body_its_own_samples(demo):
    window = make_window(CONFIG, demo.gpt_spec.width)
    start = window.body_start
    short = HiddenWindow(window.frames, window.valid_start, start + 3, start, start + 3, is_last=True)
    with running(CONFIG, demo) as vocoder:
        whole, last = vocoder.decode_batch([window, short])
    assert whole.shape == (4 * SAMPLES_PER_STEP,)
    assert last.shape == (3 * SAMPLES_PER_STEP - HOP,)
    assert whole.dtype == last.dtype == np.float32


def test_frames_may_be_read_only(demo):
    window = make_window(CONFIG, demo.gpt_spec.width)
    with running(CONFIG, demo) as vocoder:
        expected = vocoder.decode_batch([window])[0]
        window.frames.flags.writeable = False
        assert np.array_equal(vocoder.decode_batch([window])[0], expected)


def test_warm_up_runs_every_shape_once(demo):
    with running(CONFIG, demo) as vocoder:
        vocoder.warm_up()
        assert (vocoder.stats().calls, vocoder.stats().jobs) == (2, 2)
        vocoder.check_health()


async def test_waiting_windows_of_one_shape_share_a_call_and_the_oldest_goes_first():
    calls = GatedCalls()
    with running(TINY, None, factory=calls.make) as vocoder:
        first = asyncio.create_task(vocoder.decode(numbered(1)))
        await asyncio.to_thread(calls.entered.wait, DEADLINE_S)
        sizes = {2: 2, 3: 1, 4: 2, 5: 2}
        others = [asyncio.create_task(vocoder.decode(numbered(number, size=size))) for number, size in sizes.items()]
        await asyncio.sleep(0.01)
        calls.gate.set()
        assert [float(samples[0]) for samples in await asyncio.gather(first, *others)] == [1, 2, 3, 4, 5]
        assert calls.decoded == [[1], [2, 4], [3], [5]]


async def test_a_streams_first_window_overtakes_those_of_streams_that_already_play():
    calls = GatedCalls()
    with running(TINY, None, factory=calls.make) as vocoder:
        running_call = asyncio.create_task(vocoder.decode(numbered(2)))
        await asyncio.to_thread(calls.entered.wait, DEADLINE_S)
        later = [make_window(TINY, 1, number=0, size=2, fill=number) for number in (4, 6, 8)]
        first = make_window(TINY, 1, number=1, size=1, fill=5)
        assert (first.valid_start, later[0].valid_start) == (TINY.look_ahead, 0), "nothing comes before the first body"
        others = [asyncio.create_task(vocoder.decode(window)) for window in (*later, first)]
        await asyncio.sleep(0.01)
        calls.gate.set()
        await asyncio.gather(running_call, *others)
        assert calls.decoded == [[2], [0], [4, 6], [8]], "row 0 of the first window does not exist"


def test_the_window_whose_listener_needs_it_first_goes_first_and_none_waits_for_ever():
    calls, now = GatedCalls(), [100.0]
    config = TINY.model_copy(update={"rows": 1})

    def playing(number: int, lead_s: float) -> HiddenWindow:
        return replace(make_window(TINY, 1, size=2, fill=number), valid_start=0, lead_s=lead_s)

    with running(config, None, factory=calls.make, clock=lambda: now[0]) as vocoder:
        jobs = vocoder._submit([playing(0, 0.0)])
        assert calls.entered.wait(DEADLINE_S)
        jobs += vocoder._submit([playing(1, 60.0), playing(2, 0.5), playing(3, -0.5), playing(4, 0.5)])
        now[0] += 2.0
        jobs += vocoder._submit([playing(5, 0.25), playing(6, -60.0)])  # due 102.25 and 100.0; the first of 1 is due 102
        calls.gate.set()
        for job in jobs:
            job.done.result(DEADLINE_S)
    assert calls.decoded == [[0.0], [3.0], [6.0], [2.0], [4.0], [1.0], [5.0]]


async def test_a_cancelled_callers_window_is_not_decoded():
    calls = GatedCalls()
    with running(TINY, None, factory=calls.make) as vocoder:
        tasks = [asyncio.create_task(vocoder.decode(numbered(1)))]
        await asyncio.to_thread(calls.entered.wait, DEADLINE_S)
        tasks += [asyncio.create_task(vocoder.decode(numbered(number))) for number in (2, 3)]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        await asyncio.sleep(0.01)
        calls.gate.set()
        await asyncio.gather(tasks[0], tasks[2])
        assert calls.decoded == [[1], [3]]
        assert tasks[1].cancelled()


async def test_a_caller_cancelled_during_its_call_disturbs_nobody():
    calls = GatedCalls()
    with running(TINY, None, factory=calls.make) as vocoder:
        running_now = asyncio.create_task(vocoder.decode(numbered(1)))
        await asyncio.to_thread(calls.entered.wait, DEADLINE_S)
        running_now.cancel()
        await asyncio.sleep(0.01)
        calls.gate.set()
        assert (await vocoder.decode(numbered(2)))[0] == 2
        vocoder.check_health()


async def test_a_full_waiting_room_refuses_and_says_when_to_come_again(monkeypatch):
    monkeypatch.setattr(vocoder_module, "MAX_WAITING", 4)

    calls = GatedCalls()
    with running(TINY, None, factory=calls.make) as vocoder:
        tasks = [asyncio.create_task(vocoder.decode(numbered(0)))]
        await asyncio.to_thread(calls.entered.wait, DEADLINE_S)
        tasks += [asyncio.create_task(vocoder.decode(numbered(number))) for number in range(1, 5)]
        await asyncio.sleep(0.01)
        assert vocoder.stats().waiting == 4
        with pytest.raises(AtCapacity) as refusal:
            await vocoder.decode(numbered(9))
        assert 0 < refusal.value.retry_after_s < 60
        calls.gate.set()
        await asyncio.gather(*tasks)
        assert (await vocoder.decode(numbered(9)))[0] == 9


async def test_a_call_that_fails_ends_the_vocoder_for_everyone_with_the_reason():
    calls = GatedCalls()
    with running(TINY, None, factory=calls.make) as vocoder:
        tasks = [asyncio.create_task(vocoder.decode(numbered(0)))]
        await asyncio.to_thread(calls.entered.wait, DEADLINE_S)
        tasks.append(asyncio.create_task(vocoder.decode(numbered(1))))
        await asyncio.sleep(0.01)
        calls.failure = RuntimeError("the device is gone")
        calls.gate.set()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, EngineDead)
            assert "the device is gone" in outcome.message
        with pytest.raises(EngineDead, match="the device is gone"):
            vocoder.check_health()
        with pytest.raises(EngineDead):
            await vocoder.decode(numbered(2))


def test_a_call_that_hangs_fails_the_health_check():
    now = [100.0]
    calls = GatedCalls()
    with running(TINY, None, factory=calls.make, clock=lambda: now[0]) as vocoder:
        caller = threading.Thread(target=vocoder.decode_batch, args=([numbered(1)],))
        caller.start()
        assert calls.entered.wait(DEADLINE_S)
        now[0] += CALL_TIMEOUT_S
        vocoder.check_health()
        now[0] += 1
        with pytest.raises(EngineDead, match="the limit is 8 s"):
            vocoder.check_health()
        calls.gate.set()
        caller.join()


async def test_close_lets_the_running_call_end_and_refuses_the_rest():
    calls = GatedCalls()
    with running(TINY, None, factory=calls.make) as vocoder:
        first = asyncio.create_task(vocoder.decode(numbered(0)))
        await asyncio.to_thread(calls.entered.wait, DEADLINE_S)
        second = asyncio.create_task(vocoder.decode(numbered(1)))
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(asyncio.to_thread(vocoder.close))
        with pytest.raises(EngineDead):
            await second
        calls.gate.set()
        await closing
        assert (await first)[0] == 0
        with pytest.raises(EngineDead, match="closed"):
            vocoder.check_health()
        with pytest.raises(EngineDead):
            await vocoder.decode(numbered(2))


def test_a_window_of_another_configuration_is_refused_at_once():
    calls = GatedCalls()
    calls.gate.set()
    with running(TINY, None, factory=calls.make) as vocoder:
        good = numbered(1)
        for wrong in (
            make_window(TINY, 5, size=1),
            make_window(TINY, 1, size=3),
            HiddenWindow(good.frames, 0, 3, 0, 1, is_last=False),
            HiddenWindow(good.frames, 0, 3, 1, 3, is_last=False),
        ):
            with pytest.raises(EngineFault):
                vocoder.decode_batch([wrong])
        assert vocoder.decode_batch([good])[0][0] == 1


# A model that decodes what it generates, with the demo voice: the bytes of a vocoder of its own, alone, in a crowd, cached.


TEXTS = ("The answer came late. Nobody was surprised, and nobody said a word about it. Then we all went home.", "Yes.")


class DecodingEngine:
    """An engine with its vocoder beside it, as an acoustic replica has one."""

    def __init__(self, local: LocalPipeline) -> None:
        self.local = local
        self.decoder = StreamDecoder(local.vocoder)

    def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        steps = self.local.engine.generate(prompt, sampling, timeout_s=timeout_s, admitted=admitted)
        if prompt.head is not Head.CODE:
            return steps
        scheduling = prompt.scheduling
        return with_samples(steps, self.decoder, latency=scheduling.latency, skipped_chunk_sizes=scheduling.skipped_chunk_sizes)


class Traits:
    """Of that vocoder, which nobody else may ask to decode anything."""

    def __init__(self, vocoder: Vocoder) -> None:
        self.vocoder = vocoder

    async def traits(self) -> DecoderTraits:
        return replace(await self.vocoder.traits(), is_beside_engine=True)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module", params=["auto", "windows"])
def local(loop: asyncio.Runner, request: pytest.FixtureRequest) -> Iterator[LocalPipeline]:
    config = PipelineConfig.model_validate({"checkpoint": "demo", "engine": {"slots": 4}, "vocoder": {"method": request.param}})
    opened = open_pipeline(config)
    yield loop.run(opened.__aenter__())
    loop.run(opened.__aexit__(None, None, None))


def request_of(text: str, seed: int, **fields: object) -> SynthesisRequest:
    return SynthesisRequest("id", text, voice="default", sampling=SamplingParams(seed=seed), **fields)


async def samples_of(synthesizer: Synthesizer, request: SynthesisRequest) -> tuple[np.ndarray, CacheResult]:
    async with aclosing(synthesizer.stream(request)) as stream:
        chunks = [chunk async for chunk in stream]
    return np.concatenate([chunk.samples for chunk in chunks]), chunks[0].cache


@pytest.mark.slow
def test_the_bytes_are_those_of_a_vocoder_of_its_own(loop, local):
    engine, parts = DecodingEngine(local), (Traits(local.vocoder), local.voices, SpeechConfig())
    beside = Synthesizer(local.frontend, engine, *parts)
    model = CachedModel(engine, CodeCache(1 << 24), payload=Kept.SAMPLES, fingerprint="")
    cached = Synthesizer(local.frontend, engine, *parts, model)
    # The same seed with either latency has its own samples, and its own entry of the cache.
    ways = [SchedulingParams(latency=latency) for latency in Latency]
    requests = [request_of(text, seed, scheduling=way) for seed, text in enumerate(TEXTS) for way in ways]

    async def crowd() -> list[tuple[np.ndarray, CacheResult]]:
        return await asyncio.gather(*(samples_of(beside, request) for request in requests))

    expected = [loop.run(samples_of(local.synthesizer, request))[0] for request in requests]
    for (samples, _), alone in zip(loop.run(crowd()), expected, strict=True):
        assert np.array_equal(samples, alone)
    keeping = CacheControl(CacheMode.DEFAULT)
    for request, alone in zip(requests, expected, strict=True):
        for result in (CacheResult.MISS, CacheResult.HIT):
            samples, source = loop.run(samples_of(cached, replace(request, cache=keeping)))
            assert np.array_equal(samples, alone)
            assert source is result


@pytest.mark.slow
def test_a_refined_text_is_decoded_too(loop, local):
    request = request_of("That was good.", 5, refine=RefineParams())
    beside = Synthesizer(local.frontend, DecodingEngine(local), Traits(local.vocoder), local.voices, SpeechConfig())
    assert np.array_equal(loop.run(samples_of(beside, request))[0], loop.run(samples_of(local.synthesizer, request))[0])
