"""Scaling: replicas follow the steps that are under way and waiting, and nothing else."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.jobs.part_room import rows_to_fill
from serve.resilience.autoscaling import BACKLOG_S, BUSY, EngineLoad, Load, StepBacklogPolicy, TextLoad, VocoderLoad
from tests.support.factories import make_report

SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def context(
    busy: list[float], backlog_s: list[float] | None = None, target: int = 1, least: int = 1, queued: float = 0.0
) -> Any:
    """What Serve hands to a policy: means over the look-back period, by replica."""
    waits = backlog_s or [0.0] * len(busy)
    metrics = {BUSY: dict(enumerate(busy)), BACKLOG_S: dict(enumerate(waits))} if busy else {}
    return SimpleNamespace(
        aggregated_metrics=metrics,
        target_num_replicas=target,
        capacity_adjusted_min_replicas=least,
        total_queued_requests=queued,
    )


def target_of(policy: StepBacklogPolicy, *args: Any, **kwargs: Any) -> int:
    replicas, remembered = policy(context(*args, **kwargs))
    assert remembered == {}
    return replicas


@pytest.mark.parametrize(
    ("busy", "backlog_s", "replicas"),
    [
        ([0.0], None, 1),
        ([0.75], None, 1),
        ([0.76], None, 2),
        ([1.0, 1.0, 1.0], None, 4),
        ([0.1, 0.1, 0.1, 0.1], None, 1),
        ([1.0], [2.0], 4),  # as much again as two replicas work off in a second
        ([0.0, 1.0], [0.0, 0.5], 2),
    ],
)
def test_replicas_for_the_work(busy, backlog_s, replicas):
    assert target_of(StepBacklogPolicy(utilisation=0.75, wait_s=1.0), busy, backlog_s) == replicas


@given(SHARES, SHARES)
def test_more_work_never_asks_for_fewer(busy: list[float], more: list[float]):
    policy = StepBacklogPolicy()
    assert 1 <= target_of(policy, busy) <= target_of(policy, busy + more)
    assert target_of(policy, busy) <= target_of(policy, busy, [1.0] * len(busy))


@given(SHARES)
def test_what_it_asks_for_carries_the_work_within_its_utilisation(busy: list[float]):
    replicas = target_of(StepBacklogPolicy(utilisation=0.5), busy)
    assert sum(busy) <= 0.5 * replicas + 1e-6


def test_silence_changes_nothing():
    assert target_of(StepBacklogPolicy(), [], target=3) == 3


def test_where_there_may_be_none_replicas_without_work_go_and_a_call_that_waits_brings_the_first():
    policy = StepBacklogPolicy()
    assert target_of(policy, [0.0, 0.0], least=0, target=2) == 0
    assert target_of(policy, [0.001], least=0) == 1, "a word now and then keeps it"
    assert target_of(policy, [0.0], [0.1], least=0) == 1
    assert target_of(policy, [], least=0, target=0) == 0
    assert target_of(policy, [], least=0, target=0, queued=0.01) == 1
    assert target_of(policy, [], least=0, target=0, queued=7.0) == 1
    assert target_of(policy, [], least=0, target=1) == 1, "one is being started"
    assert target_of(policy, [0.0, 0.0], least=2, target=2) == 1, "Serve has the last word"


@pytest.mark.parametrize("wrong", [{"utilisation": 0}, {"utilisation": 1.5}, {"wait_s": 0}, {"wait_s": -1}])
def test_values_out_of_range_are_named(wrong: dict[str, float]):
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        StepBacklogPolicy(**wrong)


ENGINE = {"slots_usable": 8, "slots_used": 0, "steps": 0, "prefill_s": 0.0}
CAPACITY = 320.0  # steps a second


def test_an_engine_is_busy_by_the_time_that_steps_and_prompts_take():
    load = EngineLoad()
    assert load.measure(ENGINE, CAPACITY, now=10.0) == Load(0.0, 0.0)
    assert load.measure({**ENGINE, "steps": 160}, CAPACITY, now=11.0).busy == pytest.approx(0.5)
    assert load.measure({**ENGINE, "steps": 240, "prefill_s": 0.1}, CAPACITY, now=12.0).busy == pytest.approx(0.35)
    assert load.measure({**ENGINE, "steps": 240, "prefill_s": 0.1}, CAPACITY, now=13.0).busy == 0
    assert load.measure({**ENGINE, "steps": 900, "prefill_s": 0.9}, CAPACITY, now=14.0).busy == 1, "two threads overlap"


def test_an_engine_whose_slots_are_held_by_slow_listeners_is_busy():
    assert EngineLoad().measure({**ENGINE, "slots_used": 6}, CAPACITY, now=1.0).busy == 0.75
    assert EngineLoad().measure({**ENGINE, "slots_used": 9}, CAPACITY, now=1.0).busy == 1, "the pace has become slower"


def test_what_waits_is_predicted_steps_over_steps_a_second():
    load = EngineLoad()
    with load.waiting(320) as first:
        with load.waiting(640):
            assert load.measure(ENGINE, CAPACITY, now=1.0).backlog_s == pytest.approx(3.0)
        # A reader that has left waits no longer.
        assert load.measure(ENGINE, CAPACITY, now=2.0).backlog_s == pytest.approx(1.0)
        first.begun()
        first.begun()
        assert load.measure(ENGINE, CAPACITY, now=3.0).backlog_s == 0
    assert load.measure(ENGINE, CAPACITY, now=4.0).backlog_s == 0


def test_before_its_first_round_an_engine_promises_nothing():
    load = EngineLoad()
    with load.waiting(100):
        assert load.measure(ENGINE, 0.0, now=1.0) == Load(0.0, 0.0)


@given(st.sampled_from([8, 16, 24, 48, 64, 256]), st.floats(1e-3, 0.1), st.floats(0.05, 2.0))
def test_books_that_fill_an_engine_ask_for_another_replica(slots: int, fixed_s: float, row_share: float):
    """Whatever a row costs: where it is dear, few rows fill the engine, and most of its slots are free."""
    report = make_report("r", usable=slots, fixed_s=fixed_s, row_s=row_share * fixed_s)
    rows = max(1, int(rows_to_fill(report)))
    steps_per_s, load = rows / report.step_s(rows), EngineLoad()
    load.measure({**ENGINE, "slots_usable": slots, "slots_used": rows}, report.capacity, now=0.0)
    busy = load.measure(
        {**ENGINE, "slots_usable": slots, "slots_used": rows, "steps": 10 * steps_per_s}, report.capacity, now=10.0
    ).busy
    assert target_of(StepBacklogPolicy(), [busy]) == 2


def test_a_vocoder_is_busy_while_it_calls_and_waits_by_calls():
    load = VocoderLoad(rows=2)
    stats = {"calls": 0, "call_s": 0.25}
    assert load.measure(stats, now=1.0) == Load(0.0, 0.0)
    with load.call(), load.call():
        assert load.measure({**stats, "calls": 2}, now=2.0) == Load(0.5, 0.0), "as many as one call takes do not wait"
        with load.call():
            assert load.measure({**stats, "calls": 9}, now=3.0) == Load(1.0, 0.25)
    assert load.inside == 0


def test_a_text_replicas_load_is_the_time_its_workers_were_reading():
    load = TextLoad()
    assert load.measure({"busy_s": 5.0, "waiting": 0, "read_s": 0.01}, 100.0).busy == 0.0
    now = load.measure({"busy_s": 5.5, "waiting": 4, "read_s": 0.01}, 102.0)
    assert now.busy == pytest.approx(0.25)
    assert now.backlog_s == pytest.approx(0.04)
    assert load.measure({"busy_s": 15.5, "waiting": 0, "read_s": 0.01}, 103.0).busy == 1.0
