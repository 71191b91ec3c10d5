"""The table of a stage's replicas: who is asked first, who is not asked, when a lane is full."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import AtCapacity
from pipeline.types import Lane, LoadReport
from serve.stages.replica_table import ANYWHERE, DRAWS, LATEST_S, REFUSED_S, ReplicaTable, Route, table_of
from tests.support.clock import HeldClock
from tests.support.factories import make_report as report

FIRST_STEPS = 20


def table_with(*reports: LoadReport, names: tuple[str, ...] = (), clock: HeldClock | None = None) -> ReplicaTable:
    table = ReplicaTable(clock=clock or HeldClock(0.0), draws=random.Random(1))
    table.set_replicas(dict.fromkeys([*(entry.replica for entry in reports), *names]))
    for entry in reports:
        table.report(entry)
    return table


def order(
    table: ReplicaTable, calls: dict[str, int] | None = None, lane: Lane = Lane.STANDARD, route: Route = ANYWHERE
) -> list[str]:
    return table.order(lane, FIRST_STEPS, lambda name: (calls or {}).get(name, 0), route)


@pytest.mark.parametrize(
    ("calls", "first"),
    [
        ({}, "fast"),
        ({"fast": 3}, "fast"),  # a slot is free, and its step is shorter
        ({"fast": 4}, "slow"),  # a newcomer would wait there for 25 steps of somebody else
        ({"fast": 4, "slow": 4}, "fast"),
    ],
)
def test_the_replica_whose_first_audio_comes_soonest_is_the_first(calls: dict[str, int], first: str):
    table = table_with(report("slow", 0.02), report("fast", 0.01))
    assert order(table, calls)[0] == first


def test_what_waits_in_a_more_urgent_lane_counts_and_what_is_less_urgent_does_not():
    full = {"running": 4, "remaining_steps": 40.0}
    table = table_with(
        report("books", waiting=1, waiting_steps=(0.0, 0.0, 400.0), **full),
        report("talks", waiting=1, waiting_steps=(300.0, 0.0, 0.0), **full),
    )
    calls = {"books": 5, "talks": 5}
    assert order(table, calls, Lane.INTERACTIVE)[0] == "books"
    assert order(table, calls, Lane.STANDARD)[0] == "books"
    assert order(table, calls, Lane.BULK)[0] == "talks"


def test_calls_that_came_after_the_report_count():
    table = table_with(report("one", running=4, remaining_steps=40.0), report("two", running=4, remaining_steps=40.0))
    assert order(table, {"one": 6, "two": 4})[0] == "two"


def test_where_the_number_of_calls_is_not_known_the_latest_report_says_it():
    clock = HeldClock(5.0)
    fast = report("fast", running=4, waiting=3, waiting_steps=(0.0, 300.0, 0.0), remaining_steps=40.0)
    table = table_with(report("slow", 0.02), fast, clock=clock)
    assert table.order(Lane.STANDARD, FIRST_STEPS, lambda name: None)[0] == "slow"
    clock.now += LATEST_S
    assert table.order(Lane.STANDARD, FIRST_STEPS, lambda name: None)[0] == "fast"


def test_a_replica_without_a_report_counts_as_slow_and_gets_its_share():
    table = table_with(report("slow", 0.02), report("fast", 0.01), names=("new",))
    assert order(table)[0] == "fast"
    assert order(table, {"fast": 4, "slow": 1})[0] == "new"
    empty = table_with(names=("one", "two"))
    assert order(empty, {"one": 2, "two": 1}) == ["two", "one"]


@given(
    speeds=st.lists(st.sampled_from([0.005, 0.01, 0.02, 0.08]), min_size=1, max_size=12),
    calls=st.lists(st.integers(0, 12), min_size=12, max_size=12),
    avoid=st.sets(st.integers(0, 11), max_size=3),
    build=st.sampled_from(["", "a", "b"]),
    seed=st.integers(0, 99),
)
def test_any_order_names_allowed_replicas_once_and_as_few_as_are_compared(
    speeds: list[float], calls: list[int], avoid: set[int], build: str, seed: int
):
    names = [str(number) for number in range(len(speeds))]
    table = ReplicaTable(clock=HeldClock(0.0), draws=random.Random(seed))
    table.set_replicas(names)
    for number, name in enumerate(names):
        table.report(report(name, speeds[number], build="ab"[number % 2]))
    route = Route(tuple(map(str, avoid)), build)
    allowed = {name for name in names if name not in route.avoid and build in ("", "ab"[int(name) % 2])}
    drawn = order(table, dict(zip(names, calls, strict=False)), route=route)
    assert len(set(drawn)) == len(drawn)
    assert 1 <= len(drawn) <= DRAWS
    assert set(drawn) <= (allowed or set(names))
    assert table.has_other(route) == bool(allowed)


def test_draws_follow_the_capacity():
    table = table_with(*(report(str(number), 0.01 if number < 4 else 0.04) for number in range(8)))
    drawn = Counter(name for _ in range(2000) for name in order(table))
    fast, slow = (sum(drawn[str(number)] for number in numbers) for numbers in (range(4), range(4, 8)))
    assert fast > 2.2 * slow


def test_who_has_refused_a_lane_is_asked_last_for_a_moment():
    clock = HeldClock(5.0)
    table = table_with(report("slow", 0.02), report("fast", 0.01), clock=clock)
    table.refuse("fast", Lane.STANDARD, 3.0)
    assert [order(table, lane=lane)[0] for lane in Lane] == ["fast", "slow", "slow"]
    clock.now += REFUSED_S
    assert order(table)[0] == "fast"


def test_a_lane_is_full_while_every_replica_has_just_refused_it():
    clock = HeldClock(5.0)
    table = table_with(report("one"), report("two"), clock=clock)
    table.refuse("one", Lane.STANDARD, 3.0)
    table.check_room(Lane.STANDARD)
    clock.now += 0.1
    table.refuse("two", Lane.INTERACTIVE, 2.0)
    for lane in (Lane.STANDARD, Lane.BULK):
        with pytest.raises(AtCapacity) as refused:
            table.check_room(lane)
        assert refused.value.retry_after_s == pytest.approx(2.0)
    table.check_room(Lane.INTERACTIVE)
    table.set_replicas(["one", "two", "three"])
    table.check_room(Lane.STANDARD)


def test_what_has_left_is_forgotten_and_may_not_report():
    table = table_with(report("one"), report("two"))
    table.set_replicas(["one"])
    table.report(report("two"))
    assert [entry.replica for entry in table.reports] == ["one"]
    assert not table.has_other(Route(avoid=("one",)))
    table.learn_build("one", "b")
    assert not table.has_other(Route(build="a"))


class Interrupted(str):
    """The name of a replica, whose table another thread wants to change while the table of names is made anew."""

    during: Callable[[], object] | None = None
    thread: threading.Thread

    def __hash__(self) -> int:
        if (during := self.during) is not None:
            self.during = None
            self.thread = threading.Thread(target=during)
            self.thread.start()
            self.thread.join(0.05)  # where it has to wait, it goes on afterwards
        return super().__hash__()


def test_a_call_may_report_while_the_router_changes_the_names():
    name = Interrupted("one")
    table = table_with(report(name), report("two"))
    name.during = lambda: table.report(report("new"))
    table.set_replicas(["one", "two", "new"])
    name.thread.join()
    assert {entry.replica for entry in table.reports} == {"one", "two", "new"}


def test_who_waits_is_forgotten_where_no_answer_comes_any_more():
    clock = HeldClock(5.0)
    table = table_with(report("slow", waiting=9), report("fast", waiting=2), clock=clock)
    clock.now += LATEST_S / 2
    assert table.most_waiting == 9
    table.report(report("fast", waiting=1))
    clock.now += LATEST_S / 2
    assert table.most_waiting == 1
    clock.now += LATEST_S
    assert table.most_waiting == 0
    assert len(table.reports) == 2, "what they have made still counts"


def test_empty_is_what_is_known_to_have_no_replica():
    table = ReplicaTable()
    assert not table.is_empty, "nothing is known yet"
    table.set_replicas([])
    assert table.is_empty
    assert table_of("a test's") is table_of("a test's") is not table_of("another one's")


@pytest.mark.parametrize("route", [Route(), Route(("3",), "a")], ids=["usual", "after a refusal"])
def test_an_order_of_256_replicas_costs_little(route: Route):
    table = table_with(*(report(str(number), 0.01 + number / 1e4, running=4, remaining_steps=9.0) for number in range(256)))
    table._clock = time.monotonic
    took = []
    for _ in range(300):
        began = time.thread_time()
        order(table, route=route)
        took.append(time.thread_time() - began)
    assert sorted(took)[150] < 0.00015
