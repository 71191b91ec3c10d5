"""Schedules: which steps a call decodes, whatever the arrival: windows, calls of the incremental vocoder, early chunks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from functools import cache
from itertools import accumulate, chain, islice, pairwise, repeat

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
from pipeline.vocoder.incremental.feeding import FINAL_STEPS, MOST_STEPS, Feeding
from pipeline.vocoder.stream import StreamDecoder, blocks_for, first_steps
from pipeline.vocoder.vocoder import Vocoder
from pipeline.vocoder.windowed.windows import Schedule, Window
from tests.support.effort import examples
from tests.support.machine import needs_native

schedules = st.builds(
    Schedule,
    chunk_steps=st.lists(st.integers(1, 60), min_size=1, max_size=5).map(tuple),
    look_ahead=st.integers(0, REACH_STEPS),
)
lengths = st.integers(0, 700)
arrivals = st.lists(st.integers(1, 90), min_size=1, max_size=12)


def cut_at_once(schedule: Schedule, length: int) -> list[Window]:
    return list(schedule.ready(0, known=length, ended=True))


def cut_as_it_comes(schedule: Schedule, length: int, arrivals: list[int], end_known_late: bool) -> list[Window]:
    windows: list[Window] = []
    known = 0
    while known < length:
        known = min(length, known + arrivals[len(windows) % len(arrivals)])
        ended = known == length and not end_known_late
        windows += schedule.ready(len(windows), known=known, ended=ended)
    return windows + list(schedule.ready(len(windows), known=length, ended=True))


@given(schedules, lengths)
def test_bodies_tile_the_utterance_and_their_samples_too(schedule, length):
    windows = cut_at_once(schedule, length)
    assert [window.index for window in windows] == list(range(len(windows)))
    step = sample = 0
    for window in windows:
        assert (window.body_start, window.first_sample) == (step, sample)
        step, sample = window.body_stop, sample + window.num_samples
    assert step == length
    assert sample == max(0, (2 * length - 1) * HOP)
    assert [window.is_last for window in windows] == [False] * (len(windows) - 1) + [True] * bool(windows)


@given(schedules, lengths, arrivals, st.booleans())
def test_windows_do_not_depend_on_arrival(schedule, length, arrivals, end_known_late):
    assert cut_as_it_comes(schedule, length, arrivals, end_known_late) == cut_at_once(schedule, length)


@given(schedules, lengths)
def test_context_is_whole_except_at_the_true_edges(schedule, length):
    for window in cut_at_once(schedule, length):
        assert window.valid_start == max(0, window.body_start - schedule.look_ahead)
        assert window.valid_stop >= min(length, window.body_stop + schedule.look_ahead)
        assert window.first_step <= window.valid_start < window.valid_stop <= window.first_step + window.rows


@given(schedules, lengths)
def test_the_body_lies_at_the_same_rows_of_one_of_the_shapes(schedule, length):
    for window in cut_at_once(schedule, length):
        assert window.body_start - window.first_step == schedule.look_ahead
        assert window.rows in {rows for rows, _ in schedule.shapes}
        assert window.rows == schedule.body(window.index)[1] - schedule.body(window.index)[0] + 2 * schedule.look_ahead


@given(schedules)
def test_a_block_ends_where_a_window_becomes_possible(schedule):
    ends = accumulate(chain(schedule.blocks, repeat(schedule.blocks[-1])))
    for index, known in enumerate(islice(ends, 12)):
        assert schedule.window(index, known=known, ended=False) is not None
        assert schedule.window(index, known=known - 1, ended=False) is None


def test_without_look_ahead_a_body_still_waits_for_one_step_more():
    # With exactly 8 steps known, it is not known yet whether the last hop exists.
    schedule = Schedule(chunk_steps=(8,), look_ahead=0)
    assert schedule.window(0, known=8, ended=False) is None
    assert schedule.window(0, known=8, ended=True).is_last
    assert not schedule.window(0, known=9, ended=False).is_last


def test_one_step_gives_one_hop_and_none_gives_nothing():
    schedule = Schedule(chunk_steps=(8, 16), look_ahead=52)
    (window,) = cut_at_once(schedule, 1)
    assert (window.num_samples, window.is_last) == (HOP, True)
    assert (window.first_step, window.valid_start, window.valid_stop) == (-52, 0, 1)
    assert cut_at_once(schedule, 0) == []


def test_cost_is_linear_in_the_length():
    schedule = Schedule(chunk_steps=(8, 16, 32, 48), look_ahead=52)
    rows = [sum(window.rows for window in cut_at_once(schedule, length)) for length in (480, 960, 1920)]
    assert rows[2] - rows[1] == 2 * (rows[1] - rows[0])
    assert len(cut_at_once(schedule, 1920)) == 3 + -(-(1920 - 56) // 48)


# Calls of the incremental vocoder: which steps each feeds.


feedings = st.builds(
    Feeding, chunk_steps=st.lists(st.integers(1, 100), min_size=1, max_size=5).map(tuple), look_ahead=st.integers(1, 52)
)


def test_the_drawing():
    assert list(islice(Feeding((8, 8), 52).stops(), 8)) == [
        *((28, False), (56, False), (60, True)),
        *((68, True), (76, True), (84, True), (92, True), (100, True)),
    ]


@given(feedings)
def test_every_chunk_leaves_when_its_last_step_is_settled_and_no_call_is_long(feeding):
    stops = list(islice(feeding.stops(), 60))
    places = [stop for stop, _ in stops]
    assert places == sorted(set(places))
    assert all(after - before <= MOST_STEPS for before, after in zip([0, *places], places, strict=False))
    ends = [stop - feeding.look_ahead for stop, leaves in stops if leaves]
    sizes = [after - before for before, after in zip([0, *ends], ends, strict=False)]
    assert sizes == [feeding.chunk_steps[min(index, len(feeding.chunk_steps) - 1)] for index in range(len(sizes))]


@given(feedings)
def test_the_first_chunk_leaves_with_the_only_call_or_with_a_short_one(feeding):
    stops = list(islice(feeding.stops(), 20))
    index = [leaves for _, leaves in stops].index(True)
    if feeding.look_ahead + feeding.chunk_steps[0] <= MOST_STEPS:
        assert index == 0
    else:
        assert stops[index][0] - stops[index - 1][0] == FINAL_STEPS


@given(feedings)
def test_blocks_end_wherever_a_call_does_and_the_ramp_has_no_others(feeding):
    blocks = feeding.blocks
    ends = list(accumulate(chain(blocks, repeat(blocks[-1], 100))))
    stops = [stop for stop, _ in islice(feeding.stops(), 300) if stop <= feeding.look_ahead + sum(feeding.chunk_steps)]
    assert ends[: len(stops)] == stops
    if feeding.chunk_steps[-1] <= MOST_STEPS:
        assert ends == [stop for stop, _ in islice(feeding.stops(), len(ends))]


@given(feedings, st.integers(0, 300), st.lists(st.integers(1, 60), max_size=20))
def test_the_calls_are_the_same_whatever_the_arrival_and_cover_every_step(feeding, length, arrivals):
    known, fed, calls = 0, 0, []
    for count in [*arrivals, length]:
        known = min(length, known + count)
        for call in feeding.calls(fed, known=known, ended=known == length):
            fed = call[0]
            calls.append(call)
        if known == length:
            break
    assert calls == list(feeding.calls(0, known=length, ended=True))
    assert [stop for stop, _ in calls][-1:] == ([length] if length else [])
    assert all(leaves for stop, leaves in calls if stop == length)


def test_chunks_of_a_cpu_play_without_a_pause_at_a_real_time_factor_of_four_fifths():
    """Each is there before the one before it has been played to its end."""
    chunks = VocoderConfig().chunks(incremental=True)
    sizes = [*chunks, *[chunks[-1]] * 50]
    for index in range(1, len(sizes)):
        assert 0.8 * sum(sizes[1 : index + 1]) <= sum(sizes[:index])


# Early chunks: the same bytes streamed or decoded_whole, alone or among others; exact once nothing is missing; no audible join.


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


def decoded_whole(vocoder: Vocoder, hidden: np.ndarray, arrivals: list[int], latency=Latency.LOW) -> np.ndarray:
    return np.concatenate(asyncio.run(decoded(vocoder, hidden, arrivals, latency)))


@pytest.fixture(scope="module", params=METHODS)
def vocoder(request):
    changes = {"look_ahead": REACH, "rows": 2} if request.param == "windows" else {}
    with closing(Vocoder(VocoderConfig.varied(dict(method=request.param, threads=1, **changes)), checkpoint())) as opened:
        yield opened


@settings(max_examples=examples(12), deadline=None)
@given(length=st.integers(1, LENGTH), arrivals=st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_the_bytes_do_not_depend_on_when_steps_arrive(vocoder, length, arrivals):
    hidden = steps_of(LENGTH)[:length]
    streamed = decoded_whole(vocoder, hidden, arrivals)
    assert streamed.tobytes() == decoded_whole(vocoder, hidden, [length]).tobytes()
    assert len(streamed) == (2 * length - 1) * HOP


def test_what_does_not_lack_a_step_is_exact_and_the_rest_is_near(vocoder):
    hidden = steps_of(LENGTH)
    low, exact = (decoded_whole(vocoder, hidden, [9], latency) for latency in (Latency.LOW, Latency.EXACT))
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
        wide = decoded_whole(windows, hidden, [60])
    with closing(Vocoder(VocoderConfig(method="auto", threads=1), checkpoint())) as other:
        assert np.allclose(decoded_whole(other, hidden, [60]), wide, atol=1e-4)


def test_a_join_is_as_smooth_as_what_it_joins(vocoder):
    """No jump between two samples at a join is larger than the largest ones within the exact audio around."""
    hidden = steps_of(LENGTH)
    pieces = asyncio.run(decoded(vocoder, hidden, [9]))
    low, exact = np.concatenate(pieces), decoded_whole(vocoder, hidden, [9], Latency.EXACT)
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
