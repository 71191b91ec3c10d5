"""Recent replies: the last minutes in a few figures, and nothing kept from the next observer."""

from serve.observability.recent_replies import WINDOW_S, RecentReplies
from serve.observability.reply_stats import Outcome, ReplyStats
from tests.support.fakes import RecordingObserver


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
