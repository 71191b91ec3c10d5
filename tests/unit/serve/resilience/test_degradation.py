"""The degrade ladder: how it climbs, how it comes back, and what a request goes without. A clock of its own."""

from hypothesis import given
from hypothesis import strategies as st

from serve.config.policies import REFUSALS, DegradationStep, DegradeConfig
from serve.speech.load_shedding import (
    ESCALATE_ABOVE,
    ESCALATE_AFTER_S,
    RECOVER_AFTER_S,
    RECOVER_BELOW,
    SLOW_RTF,
    DegradationLadder,
)
from tests.support.clock import HeldClock

CONFIG = DegradeConfig(steps=tuple(DegradationStep), version="small@v1")
FULL, CALM = 0.9, 0.1


def looks(ladder: DegradationLadder, clock: HeldClock, seconds: int, fullness: float, rtf: float = 0.0) -> list[int]:
    """A look a second; the levels."""
    levels = []
    for _ in range(seconds):
        clock.now += 1
        ladder.observe(fullness, rtf)
        levels.append(ladder.level)
    return levels


# The policy.


def test_it_adds_steps_while_full_and_removes_them_by_itself():
    clock = HeldClock(0.0)
    ladder = DegradationLadder(CONFIG, clock=clock)
    levels = looks(ladder, clock, 100, FULL)
    assert levels == sorted(levels)
    assert levels[-1] == len(DegradationStep)
    assert levels.index(1) == 5
    levels = looks(ladder, clock, 400, CALM)
    assert levels == sorted(levels, reverse=True)
    assert (levels[0], levels[-1]) == (len(DegradationStep), 0)


def test_between_the_two_marks_nothing_changes():
    clock = HeldClock(0.0)
    ladder = DegradationLadder(CONFIG, clock=clock)
    looks(ladder, clock, 13, FULL)
    assert len(set(looks(ladder, clock, 500, 0.65))) == 1


def test_a_slow_engine_adds_steps_but_no_refusal():
    clock = HeldClock(0.0)
    ladder = DegradationLadder(CONFIG, clock=clock)
    looks(ladder, clock, 500, CALM, rtf=2.0)
    assert ladder.active_steps == tuple(DegradationStep)[:-2]
    looks(ladder, clock, 100, FULL, rtf=2.0)
    assert ladder.active_steps == tuple(DegradationStep)
    looks(ladder, clock, 500, CALM, rtf=2.0)
    assert ladder.active_steps == tuple(DegradationStep)[:-2], "and keeps nobody out either"


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 3), st.floats(0.1, 20)), max_size=200),
    st.lists(st.sampled_from(DegradationStep), unique=True),
)
def test_it_never_changes_faster_than_its_hysteresis_and_always_comes_back(weather, steps):
    ordered = tuple(step for step in DegradationStep if step in steps)
    config = DegradeConfig(steps=ordered, version="small@v1")
    clock = HeldClock(0.0)
    ladder = DegradationLadder(config, clock=clock)
    changed_at = 0.0
    for fullness, rtf, wait_s in weather:
        before = ladder.level
        clock.now += wait_s
        ladder.observe(fullness, rtf)
        assert abs(ladder.level - before) <= 1
        assert 0 <= ladder.level <= len(ordered)
        if ladder.level > before:
            assert fullness >= ESCALATE_ABOVE or (rtf > SLOW_RTF and ladder.active_steps[-1] not in REFUSALS)
            assert clock.now - changed_at >= ESCALATE_AFTER_S
        elif ladder.level < before:
            assert fullness <= RECOVER_BELOW
            assert clock.now - changed_at >= RECOVER_AFTER_S
        changed_at = clock.now if ladder.level != before else changed_at
    for _ in range(2 * len(ordered) + 2):
        clock.now += RECOVER_AFTER_S
        ladder.observe(CALM, 0.0)
    assert ladder.level == 0
