"""A full engine is asked once: what was refused a moment ago is refused at once."""

import pytest

from pipeline.errors import AtCapacity, DeadlineUnmeetable
from pipeline.types import Lane
from serve.speech.recent_overload import RecentOverload
from tests.support.clock import HeldClock
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving


def test_what_was_refused_a_moment_ago_is_refused_at_once_in_lanes_no_more_urgent():
    clock = HeldClock(0.0)
    overload = RecentOverload(0.5, clock=clock)
    overload.check("v1", Lane.STANDARD)
    overload.note("v1", Lane.STANDARD, AtCapacity("full", retry_after_s=3.0))
    clock.now = 0.4
    for lane in (Lane.STANDARD, Lane.BULK):
        with pytest.raises(AtCapacity) as refused:
            overload.check("v1", lane)
        assert refused.value.retry_after_s == pytest.approx(2.6)
    overload.check("v1", Lane.INTERACTIVE)
    overload.check("v2", Lane.STANDARD)
    clock.now = 0.5
    overload.check("v1", Lane.STANDARD)


@pytest.mark.parametrize(
    ("error", "asked"), [(AtCapacity("full", retry_after_s=3.0), 1), (DeadlineUnmeetable("late", retry_after_s=3.0), 5)]
)
def test_a_burst_asks_a_full_engine_once(error: AtCapacity, asked: int):
    speaker = Speaker(fails_at=0, error=error)
    with serving(make_services(speaker, overload=RecentOverload(600))) as live:
        replies = [live.speak() for _ in range(5)]
        assert {reply.status_code for reply in replies} == {429}
        assert {reply.headers["Retry-After"] for reply in replies} == {"3"}
        assert speaker.opened == asked
        live.speak(seed=7)
        assert speaker.opened == asked + 1, "the cache may have it"
        for cache in ("no-store", "refresh") if asked == 1 else ():
            assert live.speak(seed=7, cache=cache).status_code == 429
        assert speaker.opened == asked + 1, "the cache may not answer these"
        live.speak(priority="interactive")
        assert speaker.opened == asked + 2
