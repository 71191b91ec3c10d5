"""Fleets in virtual time: eight reference fleets, whose figures show what a change of scheduler, promises or routing does."""

import math
import random
from typing import Literal

import pytest

from pipeline.engine.scheduler import Scheduler
from pipeline.errors import ConfigError
from pipeline.types import Lane
from serve.commands.operate import simulate
from serve.jobs.part_room import AUTO, PartRoom
from serve.jobs.runner import LOOK_S
from serve.simulation.fleets import DEVICES, GOAL_S, Figures, fewest, lengths, offered, parse_fleet, run, service_of
from serve.simulation.virtual_time import HOP_S, Call, Device, VirtualEngine, VirtualService

SECONDS = 12.0
EQUAL, UNEQUAL = "equal", "unequal"
FLEETS = [
    ("1*CPU", 0.6, EQUAL),
    ("6*CPU", 0.7, EQUAL),
    ("1*L4", 0.7, EQUAL),
    ("16*L4", 0.8, EQUAL),
    ("2*H100", 0.85, EQUAL),
    ("1*H100+2*L4", 0.7, UNEQUAL),
    ("1*L40S+4*L4", 0.85, UNEQUAL),
    ("1*H200+1*H100+4*A10G", 0.85, UNEQUAL),
]


def figures(fleet: str, load: float, *, by_steps: bool) -> Figures:
    service = VirtualService(parse_fleet(fleet), ingresses=4, by_steps=by_steps, steps_per_round=4)
    return run(service, load * service.steps_per_s, SECONDS)


@pytest.mark.parametrize(("fleet", "load", "kind"), FLEETS, ids=[fleet for fleet, _, _ in FLEETS])
def test_a_reference_fleet(fleet: str, load: float, kind: str):
    by_count, by_steps = (figures(fleet, load, by_steps=by_steps) for by_steps in (False, True))
    simulate.show([(f"{fleet} at {load}, by calls", by_count), ("by steps", by_steps)])
    assert by_steps.refused <= min(by_count.refused, 0.001)
    assert by_steps.first_audio_s[1] <= (0.7 if kind is UNEQUAL else 1.2) * by_count.first_audio_s[1]
    assert by_steps.used >= by_count.used - 0.01


@pytest.mark.parametrize("book", [False, True])
def test_rounds_that_nobody_looks_at_are_as_if_they_had_been_planned(book: bool, monkeypatch: pytest.MonkeyPatch):
    outcomes, plans = [], []
    next_plan = Scheduler.next_plan
    monkeypatch.setattr(Scheduler, "next_plan", lambda self, now: (plans.append(now), next_plan(self, now))[1])
    for is_asked in (False, True):
        if is_asked:
            monkeypatch.setattr(VirtualEngine, "_plan_stays", False)
        plans.clear()
        service = service_of(parse_fleet("1*L40S+3*L4"))
        if book:
            Book(service, 3, 20)
        ends: list[Call] = []
        service.on_end = lambda call, ends=ends, then=service.on_end: (ends.append(call), then(call))[1]
        found = run(service, 0.7 * service.steps_per_s, 3.0, at_half=lambda service=service: service.kill("L4-1"))
        outcomes.append((found, service.steps, [(call.at, call.first_s, call.end_s, call.repeated) for call in ends]))
        assert (len(plans) < 2 * len(ends)) is not (is_asked or book)
    assert outcomes[0] == outcomes[1]


class Book:
    """A job of equal parts before a fleet, begun as serve.jobs.runner does."""

    def __init__(self, service: VirtualService, parallel: int | Literal["auto"], parts: int) -> None:
        self._service, self._left, self._drawn = service, parts, lengths(random.Random(3))
        self._room = PartRoom(parallel, lambda: service.reports(0), 4096)
        self._windows: dict[int, int] = {}
        self.steps, self.ended_at = 0, math.inf
        service.on_end = self._end
        service.agenda.at(0.0, self._look)

    def _look(self) -> None:
        self._begin()
        self._service.agenda.at(self._service.agenda.now + LOOK_S, self._look)

    def _begin(self) -> None:
        while self._left and self._room.has_place:
            call = Call(self._service.agenda.now, next(self._drawn), Lane.BULK, promise_s=None)
            self._left -= 1
            self.steps += call.steps
            self._windows[id(call)] = self._room.begin()
            self._service.ask(call)

    def _end(self, call: Call) -> None:
        if (window := self._windows.pop(id(call), None)) is None:
            return
        assert not call.is_refused, "the reserve keeps room"
        self._room.end(window)
        self._begin()
        if not self._left and not self._windows:
            self.ended_at = self._service.agenda.now


@pytest.mark.parametrize("fleet", ["8*L4", "4*A10G"])
def test_a_book_fills_a_fleet_and_keeps_the_goal_of_its_listeners(fleet: str):
    used, first_audio_s = {}, {}
    for parallel in (0, 2, AUTO):
        service = service_of(parse_fleet(fleet))
        Book(service, parallel, 1 << 20)
        halves = []
        count = lambda service=service, halves=halves: halves.append((service.agenda.now, service.steps))  # noqa: E731
        service.agenda.at(15.99, count)
        found = run(service, 0.5 * service.steps_per_s, 16.0, at_half=count)
        (began, before), (ended, after) = halves
        used[parallel] = (after - before) / (ended - began) / service.steps_per_s
        first_audio_s[parallel] = found.first_audio_s[1]
        assert found.refused == 0
    assert used[0] < used[2] < 0.6
    assert used[AUTO] >= 0.85
    assert first_audio_s[0] <= first_audio_s[AUTO] <= GOAL_S


def test_a_book_alone_ends_soon():
    service = service_of(parse_fleet("8*L4"))
    book = Book(service, AUTO, 1_000)
    service.agenda.run(60.0)
    assert book.ended_at <= 1.7 * book.steps / service.steps_per_s


DEVICE = Device("test", 2, 0.01, 0.01, 0.02, 10, "made")


def service(number: int = 1, **settings: object) -> VirtualService:
    return VirtualService([DEVICE] * number, ingresses=1, **{"steps_per_round": 1, "ignore_eos": True, **settings})  # type: ignore[arg-type]


def test_a_call_alone_takes_its_prefill_its_steps_and_the_hops():
    fleet, call = service(), Call(0.0, 50)
    fleet.ask(call)
    fleet.agenda.run(10.0)
    assert call.first_s == pytest.approx(2 * HOP_S + 0.02 + 10 * 0.01)
    assert call.end_s == pytest.approx(2 * HOP_S + 0.02 + 50 * 0.01)


def test_every_call_ends_once_and_only_the_steps_of_the_dead_are_made_twice():
    fleet, draws = service(3, max_waiting=2), random.Random(2)
    calls = [Call(draws.uniform(0, 4), draws.randrange(20, 90), draws.choice(list(Lane)), str(n % 3)) for n in range(60)]
    ends: list[Call] = []
    fleet.on_end = ends.append
    for call in calls:
        fleet.agenda.at(call.at, lambda call=call: fleet.ask(call))  # type: ignore[misc]
    fleet.agenda.at(2.0, lambda: (fleet.kill("test-1"), None)[1])
    fleet.agenda.run(60.0)
    assert len(ends) == len(set(map(id, ends))) == len(calls)
    served = [call for call in calls if not call.is_refused]
    assert 0 < len(served) <= len(calls)
    made = sum(engine.steps for engine in fleet.engines.values())
    repeated = sum(call.repeated for call in calls)
    assert made == sum(call.steps for call in served) + repeated
    assert repeated > 0
    assert all(not engine.calls or not engine.is_alive for engine in fleet.engines.values())


def test_a_refusal_is_followed_by_one_try_elsewhere():
    fleet = service(2, max_waiting=0)
    calls = [Call(0.0, 100, promise_s=None) for _ in range(6)]
    for call in calls:
        fleet.ask(call)
    fleet.agenda.run(5.0)
    assert [call.is_refused for call in calls].count(True) == 2
    assert max(call.refusals for call in calls) == 2


def test_more_listeners_need_more_cards_and_a_faster_card_serves_more():
    few, more = (fewest(DEVICES["L4"], listeners, 6.0) for listeners in (40, 200))
    fast = fewest(DEVICES["L40S"], 200, 6.0)
    assert 1 <= few[0] < more[0]
    assert fast[0] < more[0]
    assert more[1].is_enough
    assert more[0] * DEVICES["L4"].steps_per_s > offered(200)


@pytest.mark.parametrize("text", ["", "5", "3*", "H101", "L4+", "-1*L4", "²*L4", "0x2*L4", "0*L4"])
def test_what_is_no_fleet_is_refused(text: str):
    with pytest.raises(ConfigError, match="4\\*H100"):
        parse_fleet(text)
    with pytest.raises(SystemExit) as ended:
        simulate.main(["--gpus", text, "--listeners", "3"])
    assert ended.value.code == 2


def test_the_command_answers_an_operators_questions(capsys: pytest.CaptureFixture[str]):
    arguments = ["--listeners", "60", "--seconds", "5", "--gpus"]
    assert simulate.main([*arguments, "1*L40S+1*L4"]) == 0
    table = capsys.readouterr().out
    assert "predicted" in table
    assert "L40S-0 dies" in table
    assert simulate.main([*arguments, "1*CPU"]) == 1
    assert simulate.main([*arguments, "L4"]) == 0
    assert "L4 are enough for 60 listeners" in capsys.readouterr().out
    assert simulate.main(["--listeners", "1", "--seconds", "5", "--gpus", "CPU"]) == 1, "its first audio alone takes longer"
    assert "CPU are not enough" in capsys.readouterr().out
    for seconds in ("0", "nan", "inf"):
        with pytest.raises(SystemExit):
            simulate.main(["--gpus", "2*L4", "--listeners", "3", "--seconds", seconds])


def test_lengths_are_those_of_the_benchmarks():
    drawn = lengths(random.Random(1))
    steps = sorted(next(drawn) for _ in range(4001))
    assert steps[2000] == pytest.approx(4.0 * 46.875, rel=0.05)
    assert 0.8 * 46.875 - 1 <= steps[0] < steps[-1] <= 25 * 46.875 + 1
