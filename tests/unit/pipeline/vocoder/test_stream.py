"""Streams: samples in order, each once, whatever the arrival, and nothing left running."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import DeadlineExceeded, EngineFault, NonFiniteOutput
from pipeline.spec import HOP, SAMPLE_RATE, SAMPLES_PER_STEP
from pipeline.types import (
    AudioChunk,
    DecodedAudio,
    DecoderState,
    DecoderTraits,
    FinishReason,
    HiddenWindow,
    StepBatch,
    StepBlock,
)
from pipeline.vocoder.beside import chunks_of, with_samples
from pipeline.vocoder.stream import WINDOWS_IN_FLIGHT, StreamDecoder
from tests.support.effort import examples

WIDTH = 4
CHUNKS, LOOK_AHEAD = (2, 3, 5), 4


class StepNumbers:
    """Windows: samples are the number of their step, counted from 1. Keeps what it was given."""

    is_stateful = False

    def __init__(self, chunk_steps=CHUNKS, look_ahead=LOOK_AHEAD, *, hidden: bool = True) -> None:
        self.calls: list[HiddenWindow | StepBatch] = []
        self._traits = DecoderTraits(self.is_stateful, hidden, look_ahead, chunk_steps)

    async def traits(self) -> DecoderTraits:
        return self._traits

    async def wait(self) -> None:
        await asyncio.sleep(0)

    async def decode(self, window: HiddenWindow) -> np.ndarray:
        assert not self.is_stateful
        self.calls.append(window)
        await self.wait()
        samples = np.repeat(window.frames[window.body_start : window.body_stop, 0], SAMPLES_PER_STEP)
        return samples[: len(samples) - (HOP if window.is_last else 0)]

    async def feed(self, batch: StepBatch) -> DecodedAudio:
        assert self.is_stateful
        self.calls.append(batch)
        await self.wait()
        waiting = np.concatenate([batch.state.memory if batch.state else np.zeros(0, np.float32), batch.steps[:, 0]])
        known = (batch.state.steps if batch.state else 0) + len(batch.steps)
        if batch.is_last:
            return DecodedAudio(np.repeat(waiting, SAMPLES_PER_STEP)[:-HOP], None)
        whole = max(0, len(waiting) - self._traits.look_ahead)
        return DecodedAudio(np.repeat(waiting[:whole], SAMPLES_PER_STEP), DecoderState(1, known, waiting[whole:]))


class StepMemory(StepNumbers):
    """The same, incremental: samples arrive its look-ahead of steps later."""

    is_stateful = True


class OnCommand(StepNumbers):
    """Decodes on command, and records cancelled calls."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed: list[asyncio.Event] = []
        self.cancelled = 0
        self._begun = asyncio.Condition()

    async def begun(self, count: int) -> None:
        """Wait until so many calls have come."""
        async with self._begun:
            await self._begun.wait_for(lambda: len(self.allowed) >= count)

    async def wait(self) -> None:
        allowed = asyncio.Event()
        async with self._begun:
            self.allowed.append(allowed)
            self._begun.notify_all()
        try:
            await allowed.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class CarryOnCommand(OnCommand):
    is_stateful = True


both = pytest.mark.parametrize("decoder_class", [StepNumbers, StepMemory], ids=["windows", "incremental"])


def make_block(first: int, stop: int, *, ends: bool) -> StepBlock:
    rows = np.repeat(np.arange(first + 1, stop + 1, dtype=np.float32)[:, None], WIDTH, axis=1)
    return StepBlock(rows, rows.astype(np.int64), first, FinishReason.EOS if ends else None)


async def make_steps(length: int, arrivals: list[int], *, empty_end: bool = False) -> AsyncIterator[StepBlock]:
    first = index = 0
    while first < length:
        stop = min(length, first + arrivals[index % len(arrivals)])
        yield make_block(first, stop, ends=stop == length and not empty_end)
        await asyncio.sleep(0)
        first, index = stop, index + 1
    if length == 0 or empty_end:
        yield make_block(length, length, ends=True)


async def collect(decoder, steps) -> list[AudioChunk]:
    async with aclosing(StreamDecoder(decoder).decode(steps)) as chunks:
        return [chunk async for chunk in chunks]


def expected_samples(length: int) -> np.ndarray:
    return np.repeat(np.arange(1, length + 1, dtype=np.float32), SAMPLES_PER_STEP)[: max(0, (2 * length - 1) * HOP)]


arriving = given(
    length=st.integers(0, 60),
    arrivals=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    empty_end=st.booleans(),
    hidden=st.booleans(),
    chunk_steps=st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple),
    look_ahead=st.integers(0, 30),
)


def check_chunks(chunks: list[AudioChunk], length: int) -> None:
    assert np.array_equal(np.concatenate([chunk.samples for chunk in chunks]), expected_samples(length))
    assert [chunk.first_sample for chunk in chunks] == np.cumsum([0] + [len(chunk.samples) for chunk in chunks])[:-1].tolist()
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert len(chunks[-1].samples) > 0 or length == 0


@settings(max_examples=examples(60))
@arriving
def test_every_sample_once_and_the_same_windows_whatever_the_arrival(
    length, arrivals, empty_end, hidden, chunk_steps, look_ahead
):
    streamed, buffered = (StepNumbers(chunk_steps, look_ahead, hidden=hidden) for _ in range(2))
    check_chunks(asyncio.run(collect(streamed, make_steps(length, arrivals, empty_end=empty_end))), length)
    asyncio.run(collect(buffered, make_steps(length, [length or 1])))
    assert len(streamed.calls) == len(buffered.calls)
    for ours, theirs in zip(streamed.calls, buffered.calls, strict=True):
        assert ours.frames.dtype == np.float32
        assert np.array_equal(ours.frames, theirs.frames)
        assert _places(ours) == _places(theirs)


@settings(max_examples=examples(100))
@arriving
def test_every_step_is_fed_once_in_calls_that_follow_on_one_another(
    length, arrivals, empty_end, hidden, chunk_steps, look_ahead
):
    look_ahead += 1  # an utterance's last hop is not there, so one step at least waits for the end
    decoder = StepMemory(chunk_steps, look_ahead, hidden=hidden)
    chunks = asyncio.run(collect(decoder, make_steps(length, arrivals, empty_end=empty_end)))
    check_chunks(chunks, length)
    fed = [batch.steps for batch in decoder.calls]
    assert np.array_equal(np.concatenate([*fed, np.zeros((0, WIDTH))])[:, 0], np.arange(1, length + 1))
    assert all(steps.dtype == np.float32 for steps in fed)
    assert [batch.is_last for batch in decoder.calls] == ([False] * (len(fed) - 1) + [True] if length else [])
    sizes = [len(chunk.samples) // SAMPLES_PER_STEP for chunk in chunks[:-1]]
    assert sizes == [chunk_steps[min(index, len(chunk_steps) - 1)] for index in range(len(sizes))]


def _places(window: HiddenWindow) -> tuple[int, int, int, int, bool]:
    return window.valid_start, window.valid_stop, window.body_start, window.body_stop, window.is_last


def test_rows_outside_the_utterance_are_zero():
    decoder = StepNumbers()
    asyncio.run(collect(decoder, make_steps(3, [1])))
    first = decoder.calls[0]
    assert first.frames[:, 0].tolist() == [0, 0, 0, 0, 1, 2, 3, 0, 0, 0]
    assert (first.valid_start, first.valid_stop) == (4, 7)


@both
def test_an_empty_utterance_is_one_empty_last_chunk(decoder_class):
    (chunk,) = asyncio.run(collect(decoder_class(), make_steps(0, [1])))
    assert (chunk.samples.shape, chunk.samples.dtype, chunk.first_sample, chunk.is_last) == ((0,), np.float32, 0, True)


@both
async def test_a_chunk_leaves_before_the_next_block_comes(decoder_class):
    more = asyncio.Event()

    async def steps() -> AsyncIterator[StepBlock]:
        yield make_block(0, 6, ends=False)
        await more.wait()
        yield make_block(6, 7, ends=True)

    async with aclosing(StreamDecoder(decoder_class()).decode(steps())) as chunks:
        assert (await anext(chunks)).first_sample == 0
        more.set()
        ends = [chunk.is_last async for chunk in chunks]
        # Windows keep their calls to the end; an incremental decoder returns the rest at once when it ends.
        assert ends == ([True] if decoder_class.is_stateful else [False, True])


async def test_two_windows_travel_at_once_and_come_back_in_order():
    decoder = OnCommand()
    collecting = asyncio.create_task(collect(decoder, make_steps(30, [30])))
    await decoder.begun(WINDOWS_IN_FLIGHT)
    decoder.allowed[1].set()  # the later one first
    await asyncio.sleep(0.01)
    assert len(decoder.allowed) == WINDOWS_IN_FLIGHT
    decoder.allowed[0].set()
    for window in range(2, 7):
        await decoder.begun(window + 1)
        assert len(decoder.allowed) <= window + WINDOWS_IN_FLIGHT
        decoder.allowed[window].set()
    chunks = await collecting
    assert np.array_equal(np.concatenate([chunk.samples for chunk in chunks]), expected_samples(30))


@both
def test_every_call_says_when_its_listener_needs_it(decoder_class):
    now, decoder, step_s, length = [50.0], decoder_class(), SAMPLES_PER_STEP / SAMPLE_RATE, 40

    async def steps(step_takes_s: float) -> AsyncIterator[StepBlock]:
        async for block in make_steps(length, [2]):
            now[0] += 2 * step_takes_s
            yield block

    async def listen(step_takes_s: float) -> list[float]:
        decoder.calls.clear()
        async with aclosing(StreamDecoder(decoder, clock=lambda: now[0]).decode(steps(step_takes_s))) as chunks:
            async for _ in chunks:
                pass
        return [call.lead_s for call in decoder.calls]

    fast, slow = asyncio.run(listen(0.0)), asyncio.run(listen(2 * step_s))
    assert (fast[0], slow[0]) == (0.0, 0.0), "nothing has been played"
    assert fast == sorted(fast), "no time passes: each call is due when all samples before it have been heard"
    assert length / 2 * step_s < fast[-1] < length * step_s
    assert slow[-1] < -length / 4 * step_s, "steps come at half the speed at which they are played"


@both
async def test_a_reader_that_waits_makes_the_steps_wait_and_memory_stays_bounded(decoder_class):
    alive: set[int] = set()
    given_out = most_alive = 0

    async def steps() -> AsyncIterator[StepBlock]:
        nonlocal given_out, most_alive
        for first in range(0, 2000, 4):
            block = make_block(first, first + 4, ends=first == 1996)
            alive.add(first)
            weakref.finalize(block.hidden, alive.discard, first)
            given_out = first + 4
            yield block
            del block
            most_alive = max(most_alive, len(alive))

    async with aclosing(StreamDecoder(decoder_class()).decode(steps())) as chunks:
        await anext(chunks)
        for _ in range(50):
            await asyncio.sleep(0)
        assert given_out < 40
        async for _ in chunks:
            pass
    assert given_out == 2000
    # A window has 5 + 2 * 4 steps, and the block that completes it comes in blocks of 4; what has been fed is gone.
    assert most_alive <= (8 if decoder_class is StepNumbers else 3)


async def test_closing_cancels_windows_and_the_wait_for_steps():
    decoder = OnCommand()
    closed = asyncio.Event()

    async def steps() -> AsyncIterator[StepBlock]:
        try:
            yield make_block(0, 9, ends=False)
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with aclosing(steps()) as source, aclosing(StreamDecoder(decoder).decode(source)) as chunks:
        first = asyncio.ensure_future(anext(chunks))
        await decoder.begun(2)
        decoder.allowed[0].set()
        await first
    assert closed.is_set()
    assert decoder.cancelled == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(("decoder_class", "in_flight"), [(OnCommand, 2), (CarryOnCommand, 1)], ids=["windows", "incremental"])
async def test_cancelling_the_reader_cancels_everything(decoder_class, in_flight):
    decoder = decoder_class()
    collecting = asyncio.create_task(collect(decoder, make_steps(30, [30])))
    await decoder.begun(in_flight)
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting
    assert decoder.cancelled == in_flight
    assert asyncio.all_tasks() == {asyncio.current_task()}


def collect_until_error(decoder, steps, error: type[Exception]) -> list[AudioChunk]:
    async def scenario() -> list[AudioChunk]:
        delivered: list[AudioChunk] = []

        async def deliver() -> None:
            async with aclosing(StreamDecoder(decoder).decode(steps)) as chunks:
                async for chunk in chunks:
                    delivered.append(chunk)

        with pytest.raises(error):
            await deliver()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return delivered

    return asyncio.run(scenario())


@both
def test_an_error_of_the_steps_comes_after_the_chunks_before_it(decoder_class):
    async def steps() -> AsyncIterator[StepBlock]:
        yield make_block(0, 9, ends=False)
        raise DeadlineExceeded("the time is over")

    delivered = collect_until_error(decoder_class(), steps(), DeadlineExceeded)
    assert [len(chunk.samples) for chunk in delivered] == [2 * SAMPLES_PER_STEP, 3 * SAMPLES_PER_STEP]


@both
def test_non_finite_samples_end_the_stream_after_the_good_chunks(decoder_class):
    async def steps() -> AsyncIterator[StepBlock]:
        bad = make_block(0, 30, ends=True)
        bad.hidden[5] = np.nan
        yield bad

    assert len(collect_until_error(decoder_class(), steps(), NonFiniteOutput)) == 2


@both
def test_steps_that_stop_without_a_finish_reason_are_a_fault(decoder_class):
    async def steps() -> AsyncIterator[StepBlock]:
        yield make_block(0, 9, ends=False)

    collect_until_error(decoder_class(), steps(), EngineFault)


@both
def test_a_gap_in_the_steps_is_a_fault(decoder_class):
    async def steps() -> AsyncIterator[StepBlock]:
        yield make_block(0, 9, ends=False)
        yield make_block(10, 12, ends=True)

    collect_until_error(decoder_class(), steps(), EngineFault)


@both
def test_a_decoder_that_fails_ends_the_stream_with_its_error(decoder_class):
    class Failing(decoder_class):
        async def wait(self) -> None:
            raise EngineFault("no vocoder")

    assert collect_until_error(Failing(), make_steps(30, [4]), EngineFault) == []


# Beside the engine: steps travel with their samples.


async def collect_beside(decoder: StepNumbers, steps: AsyncIterator[StepBlock]) -> tuple[list[StepBlock], list[AudioChunk]]:
    blocks = [block async for block in with_samples(as_generator(steps), StreamDecoder(decoder), skipped_chunk_sizes=0)]
    return blocks, [chunk async for chunk in chunks_of(again(blocks))]


async def as_generator(steps: AsyncIterator[StepBlock]) -> AsyncGenerator[StepBlock, None]:
    async for block in steps:
        yield block


async def again(blocks: list[StepBlock]) -> AsyncIterator[StepBlock]:
    for block in blocks:
        yield block


@pytest.mark.parametrize("is_incremental", [False, True], ids=["windows", "incremental"])
@settings(max_examples=examples(60))
@arriving
def test_steps_decoded_beside_their_engine_have_the_same_samples(
    is_incremental, length, arrivals, empty_end, hidden, chunk_steps, look_ahead
):
    decoder = StepMemory(chunk_steps, look_ahead + 1, hidden=hidden) if is_incremental else StepNumbers(chunk_steps, look_ahead)
    steps = make_steps(length, arrivals, empty_end=empty_end)
    blocks, chunks = asyncio.run(collect_beside(decoder, steps))
    check_chunks(chunks, length)
    codes = np.concatenate([block.codes for block in blocks])
    assert np.array_equal(codes[:, 0], np.arange(1, length + 1))
    assert [block.first_step for block in blocks] == np.cumsum([0] + [len(block.codes) for block in blocks])[:-1].tolist()
    assert [block.finish for block in blocks] == [None] * (len(blocks) - 1) + [FinishReason.EOS]
    assert all(block.hidden.shape == (len(block.codes), 0) for block in blocks), "they stay where they are"
    assert len(chunks) <= len(blocks) <= len(chunks) + 1, "one message a chunk, and one that the sequence runs"


async def test_the_first_steps_leave_before_their_samples():
    """A sign of life: other segments of the request wait for it."""
    arrived = asyncio.Event()

    async def steps() -> AsyncGenerator[StepBlock, None]:
        yield make_block(0, 1, ends=False)
        await arrived.wait()
        yield make_block(1, 9, ends=True)

    blocks = with_samples(steps(), StreamDecoder(StepMemory((8,), 4)), skipped_chunk_sizes=0)
    async with aclosing(blocks):
        first = await asyncio.wait_for(anext(blocks), 60)
        assert (len(first.codes), len(first.samples)) == (1, 0)
        arrived.set()
        assert [len(block.codes) async for block in blocks] == [8]


async def test_leaving_ends_the_steps_and_the_calls():
    closed = []

    async def steps() -> AsyncGenerator[StepBlock, None]:
        try:
            yield make_block(0, 200, ends=False)
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    decoder = OnCommand()
    blocks = with_samples(steps(), StreamDecoder(decoder), skipped_chunk_sizes=0)
    await anext(blocks)
    reading = asyncio.create_task(anext(blocks))
    await decoder.begun(1)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await blocks.aclose()
    assert decoder.cancelled > 0
    assert closed == [True]


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ([make_block(0, 4, ends=True)], "without samples"),
        ([], "without a finish"),
        ([replace(make_block(0, 4, ends=False), samples=np.zeros(9, np.float32))], "without a finish"),
    ],
)
def test_a_stream_without_samples_or_without_an_end_is_a_fault(blocks, says):
    async def listen() -> None:
        async for _ in chunks_of(again(blocks)):
            pass

    with pytest.raises(EngineFault, match=says):
        asyncio.run(listen())
