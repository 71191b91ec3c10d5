"""Early chunks: the same bytes streamed or whole, alone or among others; exact once nothing is missing; no audible join."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from functools import cache
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import Checkpoint, open_checkpoint
from pipeline.config import INCREMENTAL_CHUNK_STEPS, WINDOW_CHUNK_STEPS, VocoderConfig
from pipeline.paths import cache_home
from pipeline.spec import HOP, REACH_STEPS, SAMPLES_PER_STEP
from pipeline.types import DecoderTraits, FinishReason, Latency, StepBlock
from pipeline.vocoder.early import EARLY, REAL_TIME_FACTOR, EarlySchedule, Joiner
from pipeline.vocoder.incremental.feeding import FINAL_STEPS, MOST_STEPS
from pipeline.vocoder.stream import StreamDecoder, blocks_for, first_steps
from pipeline.vocoder.vocoder import Vocoder
from tests.support.effort import examples
from tests.support.machine import needs_native

LENGTH = 110
REACH = 22  # of the small checkpoint
METHODS = [pytest.param("incremental", marks=needs_native), pytest.param("windows", marks=pytest.mark.slow)]
INCREMENTAL = DecoderTraits(is_stateful=True, use_decoder=True, look_ahead=REACH_STEPS, chunk_steps=INCREMENTAL_CHUNK_STEPS)
WINDOWS = DecoderTraits(is_stateful=False, use_decoder=True, look_ahead=REACH_STEPS, chunk_steps=WINDOW_CHUNK_STEPS)
traits_of = st.builds(
    DecoderTraits,
    is_stateful=st.booleans(),
    use_decoder=st.just(True),
    look_ahead=st.integers(0, 60),
    chunk_steps=st.lists(st.integers(1, 100), min_size=1, max_size=5).map(tuple),
)


@cache
def checkpoint() -> Checkpoint:
    return open_checkpoint(resolve("small-random", cache_home()))


@cache
def steps_of(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((length, checkpoint().gpt_spec.width), np.float32)


async def arriving(hidden: np.ndarray, arrivals: list[int]) -> AsyncIterator[StepBlock]:
    first = turn = 0
    while first < len(hidden):
        stop = min(len(hidden), first + arrivals[turn % len(arrivals)])
        codes = np.zeros((stop - first, 4), np.int64)
        yield StepBlock(hidden[first:stop], codes, first, FinishReason.EOS if stop == len(hidden) else None)
        await asyncio.sleep(0)
        first, turn = stop, turn + 1


async def decoded(
    vocoder: Vocoder, hidden: np.ndarray, arrivals: list[int], latency: Latency = Latency.LOW
) -> list[np.ndarray]:
    async with aclosing(StreamDecoder(vocoder).decode(arriving(hidden, arrivals), latency=latency)) as chunks:
        return [chunk.samples async for chunk in chunks]


def whole(vocoder: Vocoder, hidden: np.ndarray, arrivals: list[int], latency=Latency.LOW) -> np.ndarray:
    return np.concatenate(asyncio.run(decoded(vocoder, hidden, arrivals, latency)))


@pytest.fixture(scope="module", params=METHODS)
def vocoder(request):
    changes = {"look_ahead": REACH, "rows": 2} if request.param == "windows" else {}
    with closing(Vocoder(VocoderConfig.varied(dict(method=request.param, threads=1, **changes)), checkpoint())) as made:
        yield made


@settings(max_examples=examples(12), deadline=None)
@given(length=st.integers(1, LENGTH), arrivals=st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_the_bytes_do_not_depend_on_when_steps_arrive(vocoder, length, arrivals):
    hidden = steps_of(LENGTH)[:length]
    streamed = whole(vocoder, hidden, arrivals)
    assert streamed.tobytes() == whole(vocoder, hidden, [length]).tobytes()
    assert len(streamed) == (2 * length - 1) * HOP


def test_the_bytes_do_not_depend_on_other_streams(vocoder):
    lengths = (LENGTH, 25, 90)
    alone = [whole(vocoder, steps_of(length, seed), [length]) for seed, length in enumerate(lengths)]

    async def together() -> list[list[np.ndarray]]:
        streams = ((steps_of(length, seed), [5 + seed]) for seed, length in enumerate(lengths))
        return await asyncio.gather(*(decoded(vocoder, hidden, arrivals) for hidden, arrivals in streams))

    for own, among in zip(alone, asyncio.run(together()), strict=True):
        assert own.tobytes() == np.concatenate(among).tobytes()


def test_what_does_not_lack_a_step_is_exact_and_the_rest_is_near(vocoder):
    hidden = steps_of(LENGTH)
    low, exact = (whole(vocoder, hidden, [9], latency) for latency in (Latency.LOW, Latency.EXACT))
    schedule = EarlySchedule(asyncio.run(vocoder.traits()))
    chunks = list(islice(schedule.chunks(), 30))
    missing = [chunk for chunk in chunks if not chunk.is_exact and chunk.needed <= LENGTH]
    settled = SAMPLES_PER_STEP * (missing[-1].stop + 1)
    assert low[: SAMPLES_PER_STEP * 8].tobytes() != exact[: SAMPLES_PER_STEP * 8].tobytes()
    assert np.allclose(low[settled:], exact[settled:], atol=1e-5)
    if schedule.traits.is_stateful:
        assert low[settled:].tobytes() == exact[settled:].tobytes()
    assert np.sqrt(np.mean((low - exact) ** 2)) < 0.05 * exact.std()


@pytest.mark.slow
def test_both_methods_decode_the_same_approximation():
    hidden = steps_of(60)
    with closing(Vocoder(VocoderConfig(method="windows", threads=1), checkpoint())) as windows:
        wide = whole(windows, hidden, [60])
    with closing(Vocoder(VocoderConfig(method="auto", threads=1), checkpoint())) as other:
        assert np.allclose(whole(other, hidden, [60]), wide, atol=1e-4)


def test_a_join_is_as_smooth_as_what_it_joins(vocoder):
    """No jump between two samples at a join is larger than the largest ones within the exact audio around."""
    hidden = steps_of(LENGTH)
    pieces = asyncio.run(decoded(vocoder, hidden, [9]))
    low, exact = np.concatenate(pieces), whole(vocoder, hidden, [9], Latency.EXACT)
    joins = np.cumsum([len(piece) for piece in pieces])[:-1]
    jumps, usual = np.abs(np.diff(low)), np.abs(np.diff(exact))
    for join in joins:
        near = slice(max(0, join - 2 * SAMPLES_PER_STEP), join + 2 * SAMPLES_PER_STEP)
        assert jumps[join - 1 : join + 1].max() <= 1.05 * usual[near].max()


def test_a_join_begins_with_what_was_heard_and_ends_with_what_is_known():
    joiner, size = Joiner(), SAMPLES_PER_STEP
    assert joiner.join(np.ones(size, np.float32), np.ones(3 * size, np.float32)).tolist() == [1.0] * size
    joined = joiner.join(np.zeros(2 * size, np.float32), np.zeros(0, np.float32))
    assert (np.diff(joined) <= 0).all()
    assert joined[0] > 0.99
    assert joined[size - 1] < 0.01
    assert not joined[size:].any()
    assert np.array_equal(joiner.join(joined, joined), joined), "nothing was known before it"


@given(traits_of, st.integers(0, 12))
def test_a_schedule_follows_from_the_traits_alone_and_becomes_exact(traits, skipped):
    schedule = EarlySchedule(traits).without(skipped)
    chunks = list(islice(schedule.chunks(), 40))
    assert [chunk.start for chunk in chunks[1:]] == [chunk.stop for chunk in chunks[:-1]]
    assert all(chunk.start < chunk.stop < chunk.needed for chunk in chunks)
    looks = [min(chunk.needed - chunk.stop, traits.look_ahead) for chunk in chunks]
    assert looks == sorted(looks)
    assert [chunk.is_exact for chunk in chunks] == [look == traits.look_ahead for look in looks]
    assert chunks[-1].is_exact
    assert first_steps(traits, Latency.LOW, 0) == next(EarlySchedule(traits).chunks()).needed
    blocks = blocks_for(traits, Latency.LOW)
    assert len(blocks) > 1
    assert all(size > 0 for size in blocks)


@given(traits_of)
def test_the_calls_of_an_incremental_decoder_are_short_and_complete_every_chunk(traits):
    schedule = EarlySchedule(traits)
    stops = list(islice(schedule.stops(), 60))
    places = [0, *(stop for stop, _ in stops)]
    assert all(0 < after - before <= MOST_STEPS for before, after in pairwise(places))
    completed = [chunk for _, chunk in stops if chunk is not None]
    assert completed == list(islice(schedule.chunks(), len(completed)))
    assert all(stop == chunk.needed for stop, chunk in stops if chunk is not None)
    first = next(index for index, (_, chunk) in enumerate(stops) if chunk is not None)
    assert first == 0 or stops[first][0] - stops[first - 1][0] == FINAL_STEPS


@pytest.mark.parametrize("traits", [INCREMENTAL, WINDOWS], ids=["incremental", "windows"])
def test_no_chunk_is_late_at_the_promised_pace(traits):
    chunks = list(islice(EarlySchedule(traits).chunks(), len(EARLY) + 1))
    assert chunks[0].needed == first_steps(traits, Latency.LOW) == 20
    for before, chunk in pairwise(chunks):
        assert chunk.needed <= chunks[0].needed + before.stop / REAL_TIME_FACTOR


@example(DecoderTraits(False, True, 13, (1,)), 2)
@given(traits_of.map(lambda traits: DecoderTraits(False, True, traits.look_ahead, traits.chunk_steps)), st.integers(1, 400))
def test_the_windows_have_the_shapes_of_an_exact_stream_and_miss_no_step(traits, length):
    windows = list(EarlySchedule(traits).ready(0, known=length, ended=True))
    shapes = {size + 2 * traits.look_ahead for size in traits.chunk_steps}
    assert {window.rows for window in windows} <= shapes
    ends = [window.body_stop - window.blended for window in windows]
    assert [window.body_start for window in windows] == [0, *ends[:-1]]
    assert ends[-1] == length
    assert [window.is_last for window in windows] == [False] * (len(windows) - 1) + [True]
    for window in windows:
        assert window.body_stop <= window.valid_stop <= min(length, window.first_step + window.rows)
        assert window.body_stop - window.first_step + traits.look_ahead <= window.rows
