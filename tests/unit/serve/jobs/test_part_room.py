"""How many parts are spoken at once: what the engines leave free, less a reserve; refusals are heeded once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.types import LoadReport
from serve.jobs.part_room import AUTO, FILLED, FIRST, PLACES, RESERVE, PartRoom, rows_to_fill


def report(usable: int, running: int, waiting: int = 0, row_s: float = 0.0) -> LoadReport:
    return LoadReport(usable, running, waiting, (0.0, 0.0, 0.0), 0.0, 100.0, 0.005, row_s, 0, 0.0)


def grown(room: PartRoom) -> PartRoom:
    for _ in range(1_000):
        room.end(room.begin())
    return room


def test_a_number_is_that_number_whatever_happens():
    room = PartRoom(3, lambda: [report(16, 0)], 4)
    room.end(room.begin(), is_refused=True)
    assert grown(room).most == 3
    assert not PartRoom(0, list, 64).has_place


def test_nothing_is_known_before_the_first_report():
    assert grown(PartRoom(AUTO, list, 64)).most == FIRST


@given(st.lists(st.tuples(st.integers(1, 128), st.integers(0, 128), st.integers(0, 64)), min_size=1, max_size=8))
def test_parts_and_others_leave_the_reserve_free(loads: list[tuple[int, int, int]]):
    reports = [report(usable, min(usable, running), waiting) for usable, running, waiting in loads]
    room = grown(PartRoom(AUTO, lambda: reports, 1 << 20))
    slots, others = (sum(getattr(entry, name) for entry in reports) for name in ("usable", "running"))
    others += sum(entry.waiting for entry in reports)
    assert room.most == 1 or room.most + others <= (1 - RESERVE) * slots
    assert room.most >= min((1 - RESERVE) * slots - others - 1, 1)


@given(st.lists(st.booleans(), max_size=200), st.integers(2, 300))
def test_refusals_of_one_moment_halve_it_once_and_parts_that_are_spoken_bring_it_back(refusals: list[bool], places: int):
    room = grown(PartRoom(AUTO, lambda: [report(1 << 20, 0)], places))
    ceiling = max(1, int(PLACES * places))
    assert room.most == ceiling
    windows = [room.begin() for _ in range(ceiling)]
    for window, is_refused in zip(windows, refusals, strict=False):
        room.end(window, is_refused=is_refused)
    assert room.most >= max(1, ceiling // 2)
    if not any(refusals[: len(windows)]):
        assert room.most == ceiling
    assert 1 <= grown(room).most <= ceiling


def test_each_refusal_after_a_halving_halves_again():
    room, sizes = grown(PartRoom(AUTO, lambda: [report(1 << 20, 0)], 128)), []
    for _ in range(7):
        room.end(room.begin(), is_refused=True)
        sizes.append(room.most)
    assert sizes == [32, 16, 8, 4, 2, 1, 1]
    assert grown(room).most > 16


@given(st.integers(1, 256), st.floats(0.0, 0.01))
def test_rows_that_hardly_make_an_engine_faster_are_left_empty(slots: int, row_s: float):
    engine = report(slots, 0, row_s=row_s)

    def rate(rows: float) -> float:
        return rows / (engine.fixed_s + engine.row_s * rows)

    rows = rows_to_fill(engine)
    assert 0 < rows <= (1 - RESERVE) * slots
    assert rate(rows) <= FILLED * rate(slots) * 1.000001
    assert rows > (1 - RESERVE) * slots - 1e-6 or rate(rows) >= FILLED * rate(slots) * 0.999999


@pytest.mark.parametrize("speaking", [0, 5, 12])
def test_what_the_replica_speaks_itself_is_not_counted_as_others(speaking: int):
    room = grown(PartRoom(AUTO, lambda: [report(16, speaking)], 64))
    for _ in range(speaking):
        room.begin()
    assert room.most == 12
    assert room.has_place == (speaking < 12)
