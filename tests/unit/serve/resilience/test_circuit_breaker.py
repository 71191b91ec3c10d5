"""The breaker: when it opens, who may try, when it closes. A clock of its own."""

import asyncio
from contextlib import AbstractContextManager

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.errors import AtCapacity, AudioFault, EngineDead, InvalidRequest, NonFiniteOutput, StageUnavailable
from serve.resilience.circuit_breaker import MIN_FAILURES, OPEN_S, SILENCE_S, WINDOW_S, Breaker, Call, State
from tests.support.clock import HeldClock

ERRORS = {
    "dead": EngineDead("dead"),
    "bug": RuntimeError("a bug"),
    "full": AtCapacity("full", retry_after_s=1),
    "invalid": InvalidRequest("the client's"),
    "audio": AudioFault("an encoder"),
    "nan": NonFiniteOutput("one row"),
    "cancelled": asyncio.CancelledError(),
    "gone": GeneratorExit(),
}
PROBES = {"ill": (False, False), "busy": (True, True), "idle": (True, False)}


class Stage:
    """A stage behind a breaker on a clock that stands still."""

    def __init__(self) -> None:
        self.clock = HeldClock()
        self.breaker = Breaker("acoustic", clock=self.clock)
        self.calls: dict[str, tuple[AbstractContextManager[Call], Call]] = {}

    def call(self, error: BaseException | None = None) -> None:
        """A call from its begin to its end."""
        self.begin("call")
        self.end("call", error)

    def begin(self, name: str) -> None:
        watching = self.breaker.watch()
        self.calls[name] = watching, watching.__enter__()

    def end(self, name: str, error: BaseException | None = None) -> None:
        watching, _ = self.calls.pop(name)
        assert not watching.__exit__(error and type(error), error, None), "the error goes on to the caller"

    def play(self, steps: str) -> None:
        """Words: a time that passes; a call's end; `a:begin`, `a:sign`, `a:<end>` of a call that lasts; what is found then."""
        for step in steps.split():
            name, _, event = step.rpartition(":")
            if step.startswith("+"):
                self.clock.now += float(step[1:])
            elif event in PROBES:
                is_well, has_work = PROBES[event]
                self.breaker.judge_silence(is_well=is_well, has_work=has_work)
            elif event == "begin":
                self.begin(name)
            elif event == "sign":
                self.calls[name][1].gave_sign()
            elif event == "ok" or event in ERRORS:
                if not name:
                    self.begin("")
                self.end(name, ERRORS.get(event))
            elif event == "refused":
                with pytest.raises(StageUnavailable, match="acoustic"):
                    self.breaker.watch().__enter__()
            elif event in ("silent", "lively"):
                assert self.breaker.is_silent == (event == "silent"), steps
            elif event.isdecimal():
                assert self.breaker.failures == int(event), steps
            else:
                assert self.breaker.state == event, steps


OPENED = "dead " * MIN_FAILURES + "open "
SOON = f"+{WINDOW_S / (MIN_FAILURES - 1) + 0.01} "
HUNG = f"a:begin +{SILENCE_S} "  # a stage that hangs ends no call
IMPATIENT = f"a:begin b:begin +{SILENCE_S / 4} a:cancelled b:cancelled +0.1 "


@pytest.mark.parametrize(
    "steps",
    {
        "deaths open it": "dead " * (MIN_FAILURES - 1) + "closed dead open refused",
        "so do bugs": "bug " * (MIN_FAILURES - 1) + "closed bug open refused",
        "no client, load, encoder or single row does": "full invalid audio nan cancelled gone " * 20 + "closed 0",
        "failures that are few among many do not": "ok ok dead " * 20 + "closed",
        "old failures do not count": f"dead {SOON}" * 20 + "closed",
        "an error inside a stream is counted once": "a:begin a:sign a:dead 1",
        "the first answer to a trial counts, not its end": OPENED + f"+{OPEN_S} a:begin half_open refused a:sign closed ok 0",
        "a trial that fails opens again": OPENED + f"+{OPEN_S} dead open refused",
        "a trial that is given up leaves its place": OPENED + f"+{OPEN_S} gone ok closed",
        "a trial without a sign keeps nobody out": OPENED + f"+{OPEN_S} a:begin +{OPEN_S} ok closed",
        "no sign and no replica that is well open it": (
            f"+600 a:begin +{SILENCE_S - 0.1} lively +0.1 silent ill open refused +{OPEN_S} ok closed"
        ),
        "callers that leave early hide no silence": IMPATIENT * 5 + "a:begin silent ill open",
        "a time without calls is no silence": f"a:begin +{SILENCE_S / 2} a:cancelled +60 lively a:begin lively",
        "calls that wait while others are answered are not silent": (
            "a:begin b:begin " + f"+{SILENCE_S / 2} b:sign lively " * 10 + f"+{SILENCE_S} silent"
        ),
        "replicas at work are no failure": "a:begin " + f"+{SILENCE_S} silent busy " * 20 + "closed 0",
        "a call no replica knows has failed once": HUNG + "b:begin idle idle idle 1 a:cancelled b:cancelled 1",
        "calls no replica knows open it": "".join(f"{name}:begin " for name in "abcde") + f"+{SILENCE_S} idle 5 open",
        "a sign during a probe": HUNG + "silent a:sign ill closed",
        "any answer ends a silence": HUNG + "ill open a:sign closed ok",
        "an answer under way does not close what failures opened": "a:begin " + OPENED + "a:sign open",
        "a trial that fails after a silence is a failure": HUNG + f"ill open +{OPEN_S} dead a:sign open",
    }.items(),
    ids=lambda row: row[0].replace(" ", "_"),
)
def test_the_breaker_follows_its_calls(steps: tuple[str, str]):
    Stage().play(steps[1])


def test_a_refusal_has_the_time_to_try_again_and_the_summary_the_counts():
    stage = Stage()
    stage.play(OPENED + "+0.5")
    with pytest.raises(StageUnavailable) as refusal:
        stage.call()
    assert refusal.value.retry_after_s == pytest.approx(OPEN_S - 0.5)
    stage.play(f"+{OPEN_S} dead")
    assert stage.breaker.summary() == {"state": "open", "failures": MIN_FAILURES + 1, "opened": 2, "retries": 0}


class Machine(RuleBasedStateMachine):
    """Whatever happens: nobody is shut out for longer than open_s by anything but a newer try, and no fault is no opening."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.breaker = self.stage.breaker
        self.faults = 0

    @rule(wait=st.floats(0, 15))
    def wait(self, wait):
        self.stage.clock.now += wait

    @rule(fault=st.booleans())
    def whole_call(self, fault):
        try:
            self.stage.call(EngineDead("x") if fault else None)
            self.faults += fault
        except StageUnavailable as refusal:
            wait_s, state = refusal.retry_after_s, self.breaker.state
        else:
            return
        assert 0 < wait_s <= OPEN_S
        assert state is not State.CLOSED

    @rule(name=st.sampled_from("abcdef"))
    def open_stream(self, name):
        if name not in self.stage.calls:
            try:
                self.stage.begin(name)
            except StageUnavailable:
                assert self.breaker.state is not State.CLOSED

    @precondition(lambda self: self.stage.calls)
    @rule(end=st.sampled_from(["sign", "dead", "gone"]), data=st.data())
    def go_on(self, end, data):
        name = data.draw(st.sampled_from(sorted(self.stage.calls)))
        self.stage.play(f"{name}:{end}")
        self.faults += end == "dead"

    @rule()
    def patience_is_rewarded(self):
        self.stage.clock.now += OPEN_S
        self.stage.call()
        assert self.breaker.state is State.CLOSED

    @invariant()
    def it_opens_for_enough_faults_only(self):
        assert self.breaker.opened <= self.faults
        if self.faults < MIN_FAILURES:
            assert self.breaker.state is State.CLOSED


TestMachine = Machine.TestCase
