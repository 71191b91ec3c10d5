"""Cells: thousands of cards in bins, beside the exact simulator; deaths, storms, rollouts and cards that wake."""

from collections.abc import Callable

import pytest

from serve.commands.operate import simulate
from serve.simulation.cells import Cells, cells_of
from serve.simulation.fleets import DEVICES, Figures, figures_of, offer, service_of

SECONDS = 20.0


def constant(steps_per_s: float) -> Callable[[float], float]:
    return lambda _: steps_per_s


def lived(fleet: Cells, load: float, seconds: float) -> Figures:
    """What becomes of further seconds."""
    begin = fleet.now
    fleet.run(begin + seconds, constant(load * fleet.steps_per_s))
    return fleet.figures(begin, fleet.now)


@pytest.mark.parametrize(("name", "number"), [("H100", 2), ("L4", 16)])
def test_a_cell_is_as_the_exact_simulator_says(name: str, number: int):
    service, fleet = service_of([DEVICES[name]] * number), Cells([(DEVICES[name], number)], tries=1)
    phases = []
    for load, end in ((0.6, SECONDS), (0.8, 2 * SECONDS), (1.25, 2.5 * SECONDS)):
        calls = offer(service, load * service.steps_per_s, end)
        service.agenda.run(end)
        load = sum(call.steps for call in calls) / ((end - fleet.now) * fleet.steps_per_s)
        phases.append((calls, load, lived(fleet, load, end - fleet.now)))
    service.agenda.run(end + 60.0)
    for calls, load, binned in phases:
        exact = figures_of(calls, load)
        assert binned.calls == pytest.approx(len(calls), rel=0.1)
        assert binned.first_audio_s[0] == pytest.approx(exact.first_audio_s[0], rel=0.3)
        assert binned.first_audio_s[1] == pytest.approx(exact.first_audio_s[1], rel=0.4)
        assert binned.used == pytest.approx(min(load, 0.97), abs=0.05)
        assert binned.refused == pytest.approx(exact.refused, abs=0.08)


def test_nobody_is_counted_twice_or_forgotten():
    fleet = Cells([(DEVICES["H100"], 100)] * 8)
    for load in (0.7, 1.6):
        lived(fleet, load, SECONDS)
    fleet.run(5 * SECONDS, constant(0.0))
    calls, lost = (sum(getattr(record, name) for record in fleet.records) for name in ("calls", "lost"))
    heard = sum(record.first_audio.sum() for record in fleet.records)
    assert lost > 0
    assert heard == pytest.approx(calls - lost, rel=1e-6)


def test_a_dead_cells_clients_are_heard_in_the_others_where_these_have_room():
    fleet = Cells([(DEVICES["H100"], 125)] * 16)
    before = lived(fleet, 0.8, SECONDS)
    assert fleet.close(3, dies=True) > 1000
    after = lived(fleet, 0.8, 3 * SECONDS)
    assert max(before.refused, after.refused) < 1e-6
    assert before.first_audio_s[1] < after.first_audio_s[1] < 0.6
    fleet.open(3)
    assert lived(fleet, 0.8, SECONDS).used == pytest.approx(0.8, abs=0.03)


def test_a_storm_of_clients_who_come_again_ends_with_the_storm():
    fleet = Cells([(DEVICES["H100"], 250)] * 4)
    lived(fleet, 0.7, SECONDS)
    storm = lived(fleet, 1.5, SECONDS)
    assert fleet.refusals(SECONDS, 2 * SECONDS) > storm.refused * storm.calls > 0, "clients come again"
    lived(fleet, 0.7, SECONDS)
    after = lived(fleet, 0.7, SECONDS)
    assert after.refused < 1e-6
    assert after.first_audio_s[1] < 0.3


def test_keys_that_differ_fill_their_homes_unless_the_edge_balances():
    few, balanced = (Cells([(DEVICES["H100"], 50)] * 16, keys=400, balance=balance) for balance in (None, 1.1))
    unequal, equal = (lived(fleet, 0.8, SECONDS) for fleet in (few, balanced))
    assert equal.first_audio_s[1] < 0.6 * unequal.first_audio_s[1]


def test_cards_that_wake_late_need_more_of_them_awake():
    lost = []
    for wake_s in (10.0, 120.0):
        fleet = Cells([(DEVICES["H100"], 60)] * 4, utilisation=0.8, wake_s=wake_s)
        begun = 0.75 * fleet.steps_per_s
        fleet.run(240.0, lambda now, begun=begun: begun * (1 + min(1.0, now / 120.0)))  # type: ignore[misc]
        lost.append(fleet.figures(0.0, 240.0).refused)
        assert fleet.cards.sum() > 280
    assert lost[0] < 0.02 < lost[1]


def test_cells_are_of_equal_cards_and_of_even_size():
    cells = cells_of([DEVICES["H100"]] * 10 + [DEVICES["L4"]] * 3, 4)
    assert [(device.name, number) for device, number in cells] == [("H100", 4), ("H100", 3), ("H100", 3), ("L4", 3)]


def test_the_command_counts_many_cards_in_cells(capsys: pytest.CaptureFixture[str]):
    arguments = ["--gpus", "6*L40S+3*H100", "--cell", "3", "--listeners"]
    assert simulate.main([*arguments, "2400"]) == 0
    table = capsys.readouterr().out
    assert "3 cells of at most 3 cards" in table
    assert all(event in table for event in ("a storm", "a cell dies", "a rollout, 3 groups"))
