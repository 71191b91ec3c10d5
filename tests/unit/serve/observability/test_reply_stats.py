"""The play cursor: when a listener would have had to wait; and the last minutes of replies in a few figures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.observability.recent_replies import WINDOW_S, RecentReplies
from serve.observability.reply_stats import Outcome, PlayCursor, ReplyStats
from tests.support.fakes import RecordingObserver

PIECES = st.lists(st.tuples(st.floats(0, 5), st.floats(0.001, 5)), min_size=1, max_size=30)  # (pause before it, its length)


@pytest.mark.parametrize(
    ("arrivals", "stalled_s"),
    [
        ([float(now) for now in range(10)], 0.0),
        ([100.0, 101.5], 0.5),
        ([100.0, 101.5, 102.5], 0.5),
        ([1e6], 0.0),  # the time before the first audio
    ],
)
def test_a_late_piece_of_a_second_stalls_by_its_lateness(arrivals: list[float], stalled_s: float):
    cursor = PlayCursor()
    for now in arrivals:
        cursor.arrived(now, 1.0)
    assert cursor.stalled_s == pytest.approx(stalled_s)


def test_what_is_left_to_play_shrinks_with_the_clock_and_grows_with_each_piece():
    cursor = PlayCursor()
    assert cursor.left_s(5.0) == 0
    cursor.arrived(10.0, 2.0)
    cursor.arrived(10.5, 1.0)
    assert [cursor.left_s(now) for now in (10.5, 12.0, 13.0, 99.0)] == [2.5, 1.0, 0.0, 0.0]


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


def test_the_last_minutes_are_counted_and_older_ones_forgotten():
    now = 0.0
    observer = RecordingObserver()
    recent = RecentReplies(observer, clock=lambda: now)
    assert recent.summary()["first_audio_s"] is None
    recent.finished(ReplyStats(Outcome.DONE, first_audio_s=9.0, audio_s=1.0))
    now = WINDOW_S
    for first in (0.1, 0.2, 0.3):
        recent.finished(ReplyStats(Outcome.DONE, first_audio_s=first, audio_s=2.0))
    recent.finished(ReplyStats(Outcome.CUT, code="engine_error", first_audio_s=0.4, stalled_s=1.0))
    recent.rejected("overloaded")
    now = WINDOW_S + 1
    assert recent.summary() == {
        "window_s": WINDOW_S,
        "replies": 5,
        "outcomes": {"done": 3, "cut": 1, "refused": 1},
        "errors": {"engine_error": 1, "overloaded": 1},
        "first_audio_s": 0.25,
        "late_first_audio_s": 0.4,
        "stalled": 1,
        "audio_s": 6.0,
    }
    assert len(observer.replies) == 5
