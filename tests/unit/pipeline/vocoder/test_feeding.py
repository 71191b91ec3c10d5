from itertools import accumulate, chain, islice, repeat

from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import VocoderConfig
from pipeline.vocoder.incremental.feeding import FINAL_STEPS, MOST_STEPS, Feeding

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
