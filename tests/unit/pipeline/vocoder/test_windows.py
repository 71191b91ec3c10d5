from itertools import accumulate, chain, islice, repeat

from hypothesis import given
from hypothesis import strategies as st

from pipeline.spec import HOP, REACH_STEPS
from pipeline.vocoder.windowed.windows import Schedule, Window

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


@given(schedules, st.integers(0, 50))
def test_a_body_begins_where_the_one_before_ends(schedule, index):
    assert schedule.body(index)[1] == schedule.body(index + 1)[0]


def test_a_body_waits_for_its_look_ahead():
    schedule = Schedule(chunk_steps=(8, 16), look_ahead=52)
    assert schedule.window(0, known=59, ended=False) is None
    assert schedule.window(0, known=60, ended=False) is not None
    assert schedule.window(0, known=59, ended=True) is not None
    assert schedule.window(1, known=60, ended=False) is None


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
