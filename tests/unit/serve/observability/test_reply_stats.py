"""The play cursor: when a listener would have had to wait."""

import math

from hypothesis import given
from hypothesis import strategies as st

from serve.observability.reply_stats import PlayCursor

PIECES = st.lists(st.tuples(st.floats(0, 5), st.floats(0.001, 5)), min_size=1, max_size=30)  # (pause before it, its length)


def test_audio_in_time_is_no_stall():
    cursor = PlayCursor()
    for now in range(10):
        cursor.arrived(float(now), 1.0)
    assert cursor.stalled_s == 0


def test_a_late_piece_stalls_by_its_lateness():
    cursor = PlayCursor()
    cursor.arrived(100.0, 1.0)
    cursor.arrived(101.5, 1.0)
    assert math.isclose(cursor.stalled_s, 0.5)
    cursor.arrived(102.5, 1.0)
    assert math.isclose(cursor.stalled_s, 0.5)


def test_what_is_left_to_play_shrinks_with_the_clock_and_grows_with_each_piece():
    cursor = PlayCursor()
    assert cursor.left_s(5.0) == 0
    cursor.arrived(10.0, 2.0)
    cursor.arrived(10.5, 1.0)
    assert [cursor.left_s(now) for now in (10.5, 12.0, 13.0, 99.0)] == [2.5, 1.0, 0.0, 0.0]


def test_time_before_the_first_audio_is_not_a_stall():
    cursor = PlayCursor()
    cursor.arrived(1e6, 1.0)
    assert cursor.stalled_s == 0


@given(PIECES)
def test_stalls_are_what_playing_took_beyond_the_audio(pieces):
    """A listener who starts at the first piece ends at start + audio + stalls, and never before the last piece came."""
    cursor, now = PlayCursor(), 0.0
    for pause, audio_s in pieces:
        now += pause
        cursor.arrived(now, audio_s)
    start, audio = pieces[0][0], sum(audio_s for _, audio_s in pieces)
    ends = start + audio + cursor.stalled_s
    assert ends >= now + pieces[-1][1] - 1e-6
    assert cursor.stalled_s <= sum(pause for pause, _ in pieces[1:]) + 1e-6
