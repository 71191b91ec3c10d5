"""The breaker: when it opens, who may try, when it closes. A clock of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.errors import AtCapacity, EngineDead, InvalidRequest, NonFiniteOutput, StageUnavailable, SynthesisError
from serve.resilience import circuit_breaker
from serve.resilience.circuit_breaker import MIN_FAILURES, OPEN_S, SILENCE_S, WINDOW_S, Breaker, State
from tests.support.clock import HeldClock

FAULTS = [EngineDead("dead"), RuntimeError("a bug")]
NO_FAULTS = [
    AtCapacity("full", retry_after_s=1),
    InvalidRequest("the client's"),
    NonFiniteOutput("one row"),
    asyncio.CancelledError(),
    GeneratorExit(),
]


def call(breaker: Breaker, error: BaseException | None = None) -> None:
    try:
        with breaker.watch():
            if error is not None:
                raise error
    except BaseException as raised:
        if raised is not error:
            raise


def fail(breaker: Breaker) -> None:
    """Calls that fail, as many as open it."""
    for _ in range(MIN_FAILURES):
        call(breaker, EngineDead("dead"))
    assert breaker.state is State.OPEN


def fall_silent(breaker: Breaker, clock: HeldClock) -> None:
    """Calls under way without a sign of life, for as long as opens it, and no replica that is well."""
    clock.now += SILENCE_S
    breaker.judge_silence(is_well=False, has_work=False)
    assert breaker.state is State.OPEN


def opened(clock: HeldClock) -> Breaker:
    breaker = Breaker("acoustic", clock=clock)
    fail(breaker)
    return breaker


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_it_opens_after_enough_failures_and_names_the_time_to_try_again(fault):
    clock = HeldClock()
    breaker = Breaker("acoustic", clock=clock)
    for _ in range(MIN_FAILURES):
        assert breaker.state is State.CLOSED
        call(breaker, fault)
    clock.now += 0.5
    with pytest.raises(StageUnavailable, match="acoustic") as refusal:
        call(breaker)
    assert refusal.value.retry_after_s == pytest.approx(1.5)
    assert breaker.summary() == {"state": "open", "failures": MIN_FAILURES, "opened": 1, "retries": 0}


@pytest.mark.parametrize("error", NO_FAULTS, ids=repr)
def test_clients_load_and_single_rows_open_nothing(error):
    breaker = Breaker("acoustic", clock=HeldClock())
    for _ in range(20):
        call(breaker, error)
    assert breaker.state is State.CLOSED
    assert breaker.failures == 0


def test_failures_that_are_few_among_many_open_nothing():
    breaker = Breaker("vocoder", clock=HeldClock())
    for _ in range(20):
        call(breaker)
        call(breaker)
        call(breaker, EngineDead("one replica of several"))
    assert breaker.state is State.CLOSED


def test_old_failures_do_not_count():
    clock = HeldClock()
    breaker = Breaker("text", clock=clock)
    for _ in range(20):
        call(breaker, EngineDead("dead"))
        clock.now += WINDOW_S / (MIN_FAILURES - 1) + 0.01
    assert breaker.state is State.CLOSED


def test_one_call_tries_and_its_answer_closes():
    clock = HeldClock()
    breaker = opened(clock)
    clock.now += OPEN_S
    with breaker.watch() as trial:
        assert breaker.state is State.HALF_OPEN
        with pytest.raises(StageUnavailable):
            call(breaker)
        trial.gave_sign()
        assert breaker.state is State.CLOSED, "the first answer counts, not the end of the stream"
        call(breaker)
    assert breaker.failures == 0


def test_a_failed_try_opens_again():
    clock = HeldClock()
    breaker = opened(clock)
    clock.now += OPEN_S
    call(breaker, EngineDead("still dead"))
    with pytest.raises(StageUnavailable):
        call(breaker)
    assert breaker.opened == 2


def test_a_try_that_is_given_up_leaves_its_place_to_the_next():
    clock = HeldClock()
    breaker = opened(clock)
    clock.now += OPEN_S
    call(breaker, GeneratorExit())
    call(breaker)
    assert breaker.state is State.CLOSED


def test_a_try_without_a_sign_of_life_does_not_keep_others_out():
    clock = HeldClock()
    breaker = opened(clock)
    clock.now += OPEN_S
    with breaker.watch():
        clock.now += OPEN_S
        call(breaker)
        assert breaker.state is State.CLOSED


# A stage that hangs ends no call.


def hang(breaker: Breaker, calls: int) -> ExitStack:
    """Calls under way that nobody answers."""
    under_way = ExitStack()
    for _ in range(calls):
        under_way.enter_context(breaker.watch())
    return under_way


def test_a_stage_without_a_sign_of_life_opens_it_when_no_replica_is_well():
    clock = HeldClock()
    breaker = Breaker("acoustic", clock=clock)
    clock.now += 600
    with hang(breaker, 1):
        clock.now += SILENCE_S - 0.1
        assert not breaker.is_silent
        clock.now += 0.1
        assert breaker.is_silent
        breaker.judge_silence(is_well=False, has_work=False)
        assert breaker.state is State.OPEN
        with pytest.raises(StageUnavailable):
            call(breaker)
        clock.now += OPEN_S
        call(breaker)
        assert breaker.state is State.CLOSED


def test_impatient_callers_do_not_hide_that_no_call_is_answered():
    """Each leaves before silence_s is over, as one with a short deadline does; others come."""
    clock = HeldClock()
    breaker = Breaker("vocoder", clock=clock)
    for _ in range(5):
        with suppress(asyncio.CancelledError), hang(breaker, 2):
            clock.now += SILENCE_S / 4
            raise asyncio.CancelledError
        clock.now += 0.1
    with hang(breaker, 1):
        assert breaker.is_silent
        breaker.judge_silence(is_well=False, has_work=False)
        assert breaker.state is State.OPEN


def test_a_time_without_calls_is_no_silence():
    clock = HeldClock()
    breaker = Breaker("vocoder", clock=clock)
    with suppress(asyncio.CancelledError), hang(breaker, 1):
        clock.now += SILENCE_S / 2
        raise asyncio.CancelledError
    clock.now += 60
    assert not breaker.is_silent
    with hang(breaker, 1):
        assert not breaker.is_silent


def test_calls_that_wait_while_others_are_answered_are_not_silent():
    clock = HeldClock()
    breaker = Breaker("acoustic", clock=clock)
    with hang(breaker, 5), breaker.watch() as stream:
        for _ in range(10):
            clock.now += SILENCE_S / 2
            stream.gave_sign()
            assert not breaker.is_silent
        clock.now += SILENCE_S
        assert breaker.is_silent


def test_calls_whose_replicas_are_at_work_count_as_no_failure():
    clock = HeldClock()
    breaker = Breaker("acoustic", clock=clock)
    with hang(breaker, 20):
        for _ in range(20):
            clock.now += SILENCE_S
            assert breaker.is_silent
            breaker.judge_silence(is_well=True, has_work=True)
        assert breaker.state is State.CLOSED
        assert breaker.failures == 0


def test_calls_of_which_no_replica_knows_have_failed_once_each(monkeypatch):
    monkeypatch.setattr(circuit_breaker, "WINDOW_S", 2 * MIN_FAILURES * SILENCE_S)
    clock = HeldClock()
    breaker = Breaker("text", clock=clock)
    for count in range(1, MIN_FAILURES + 1):
        assert breaker.state is State.CLOSED
        with suppress(asyncio.CancelledError), hang(breaker, 1):  # its caller's time is over
            clock.now += SILENCE_S
            with hang(breaker, 1):  # has just come
                for _ in range(3):
                    breaker.judge_silence(is_well=True, has_work=False)
            assert breaker.failures == count
            raise asyncio.CancelledError
    assert breaker.state is State.OPEN


def test_progress_during_a_probe_opens_nothing():
    clock = HeldClock()
    breaker = Breaker("text", clock=clock)
    with breaker.watch() as one:
        clock.now += SILENCE_S
        assert breaker.is_silent
        one.gave_sign()
        breaker.judge_silence(is_well=False, has_work=False)
        assert breaker.state is State.CLOSED


def test_any_answer_ends_a_silence():
    """A replica is killed, a request waits for the next one and is answered: nobody else is shut out after that."""
    clock = HeldClock()
    breaker = Breaker("vocoder", clock=clock)
    with breaker.watch() as waiting:
        fall_silent(breaker, clock)
        waiting.gave_sign()
        assert breaker.state is State.CLOSED
    call(breaker)


def test_an_answer_under_way_does_not_close_what_failures_opened():
    breaker = Breaker("acoustic", clock=HeldClock())
    with breaker.watch() as early:
        fail(breaker)
        early.gave_sign()
        assert breaker.state is State.OPEN


def test_a_trial_that_fails_after_a_silence_is_a_failure():
    clock = HeldClock()
    breaker = Breaker("acoustic", clock=clock)
    with breaker.watch() as waiting:
        fall_silent(breaker, clock)
        clock.now += OPEN_S
        call(breaker, EngineDead("dead"))
        waiting.gave_sign()
        assert breaker.state is State.OPEN


class Machine(RuleBasedStateMachine):
    """Whatever happens: nobody is shut out for longer than open_s by anything but a newer try, and no fault is no opening."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HeldClock()
        self.breaker = Breaker("acoustic", clock=self.clock)
        self.faults = 0
        self.under_way: list = []

    def begin(self):
        watching = self.breaker.watch()
        return watching, watching.__enter__()

    @rule(wait=st.floats(0, 15))
    def wait(self, wait):
        self.clock.now += wait

    @rule(fault=st.booleans())
    def whole_call(self, fault):
        try:
            call(self.breaker, EngineDead("x") if fault else None)
            self.faults += fault
        except StageUnavailable as refusal:
            wait_s, state = refusal.retry_after_s, self.breaker.state
        else:
            return
        assert 0 < wait_s <= OPEN_S
        assert state is not State.CLOSED

    @rule()
    def open_stream(self):
        try:
            self.under_way.append(self.begin())
        except StageUnavailable:
            assert self.breaker.state is not State.CLOSED

    @precondition(lambda self: self.under_way)
    @rule(how=st.sampled_from(["answer", "fault", "leave"]), data=st.data())
    def go_on(self, how, data):
        watching, one = self.under_way[data.draw(st.integers(0, len(self.under_way) - 1))]
        if how == "answer":
            one.gave_sign()
            return
        self.under_way.remove((watching, one))
        error = EngineDead("x") if how == "fault" else GeneratorExit()
        self.faults += how == "fault"
        with pytest.raises(type(error)):
            watching.gen.throw(error)

    @rule()
    def patience_is_rewarded(self):
        self.clock.now += OPEN_S
        call(self.breaker)
        assert self.breaker.state is State.CLOSED

    @invariant()
    def it_opens_for_enough_faults_only(self):
        assert self.breaker.opened <= self.faults
        if self.faults < MIN_FAILURES:
            assert self.breaker.state is State.CLOSED


TestMachine = Machine.TestCase


# What a second try leaves out.


def test_an_error_inside_a_stream_is_counted_once():
    breaker = Breaker("acoustic", clock=HeldClock())

    async def stream() -> AsyncIterator[int]:
        with breaker.watch() as watched:
            watched.gave_sign()
            yield 1
            raise EngineDead("dead")

    async def read() -> None:
        async with aclosing(stream()) as items:
            async for _ in items:
                pass

    with pytest.raises(SynthesisError):
        asyncio.run(read())
    assert breaker.failures == 1
