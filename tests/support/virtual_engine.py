"""Virtual engine: the real scheduler and loop on a runner of paper, in virtual time.

Steps of n rows take `fixed_s` + `each_s` x n. Arrivals come at their moments, also in the middle of a call of the runner.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.config import EngineConfig
from pipeline.engine.device import RoundOutput
from pipeline.engine.loop import EngineLoop
from pipeline.engine.observer import NullEngineObserver
from pipeline.engine.scheduler import Plan, Scheduler
from pipeline.engine.sequence import Sequence, StepStream, slot_of
from pipeline.errors import AtCapacity
from pipeline.types import Lane, SamplingParams, SchedulingParams
from tests.support.factories import WIDTH, make_prompt


@dataclass(frozen=True)
class Arrival:
    """One request. It ends by itself after `steps`, of at most `max_steps`."""

    at: float
    steps: int
    max_steps: int
    lane: Lane = Lane.INTERACTIVE
    tenant: str = ""
    promise_s: float | None = None
    first_steps: int = 24


@dataclass(eq=False)
class Outcome:
    """What became of an arrival; times in virtual seconds."""

    arrival: Arrival
    refused: str | None = None
    heard_at: float | None = None
    step_times: list[float] = field(default_factory=list)

    @property
    def late_s(self) -> float | None:
        """How much later than promised the first audio came; None if nothing was promised or it was refused."""
        if self.refused or self.arrival.promise_s is None:
            return None
        assert self.heard_at is not None, "whoever is admitted is heard"
        return self.heard_at - self.arrival.at - self.arrival.promise_s


class VirtualEngine:
    """Plays arrivals to their ends. It is the loop's runner, clock and condition."""

    def __init__(
        self, config: EngineConfig, *, fixed_s: float, each_s: float, prefill_s: float = 0.02, rounds_ahead: int = 0
    ) -> None:
        self.config, self.rounds_ahead = config, rounds_ahead
        self.fixed_s, self.each_s, self.prefill_s = fixed_s, each_s, prefill_s
        self.now = 0.0
        self.scheduler = Scheduler(config)
        self.loop = EngineLoop(config, self.scheduler, NullEngineObserver(), lambda: self.now)
        self.loop.wake = self  # type: ignore[assignment]
        self.scheduler.rounds_ahead = rounds_ahead
        self.copied_back_at_once = 0
        self.rounds: list[tuple[int, int]] = []  # rows with a listener, rows of bulk
        self._coming: deque[Arrival] = deque()
        self._inside: dict[Sequence, Outcome] = {}
        self._made: deque[tuple[Plan, RoundOutput]] = deque()

    def play(self, arrivals: Iterable[Arrival]) -> list[Outcome]:
        """Returns the outcomes, in the order of arrival."""
        self._coming = deque(sorted(arrivals, key=lambda arrival: arrival.at))
        self._outcomes: list[Outcome] = []

        async def inside_a_loop() -> None:
            self.loop._loop(self)  # type: ignore[arg-type]

        asyncio.run(inside_a_loop())
        return self._outcomes

    # -- the condition --------------------------------------------------------------------------------------------

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def notify(self) -> None: ...

    def wait(self, timeout: float | None = None) -> None:
        """Nothing can run: time passes to the next arrival."""
        if self._coming:
            self.pass_time(max(0.0, self._coming[0].at - self.now))
        else:
            assert not self.scheduler.num_waiting, "who waits is served"
            self.loop._closing = True

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        while self._coming and self._coming[0].at <= self.now:
            self._submit(self._coming.popleft())

    def _submit(self, arrival: Arrival) -> None:
        scheduling = SchedulingParams(arrival.lane, arrival.tenant, first_steps=arrival.first_steps)
        sequence = Sequence(
            prompt=replace(make_prompt(12, max_steps=arrival.max_steps), scheduling=scheduling),
            sampling=SamplingParams(),
            stream=StepStream(lambda: None),
            width=WIDTH,
            max_steps=arrival.max_steps,
            deadline=1e9,
            submitted_at=self.now,
            blocks=(arrival.max_steps,),
            promised_at=None if arrival.promise_s is None else arrival.at + arrival.promise_s,
        )
        outcome = Outcome(arrival)
        self._outcomes.append(outcome)
        try:
            self.scheduler.submit(
                sequence,
                admitted=arrival.promise_s is None,
                retry_after_s=1.0,
                throughput=self.loop.throughput(),
            )
        except AtCapacity as refusal:
            outcome.refused = type(refusal).__name__
        else:
            self._inside[sequence] = outcome

    # -- the runner -----------------------------------------------------------------------------------------------

    def prefill(self, sequences: Iterable[Sequence]) -> None:
        self.pass_time(self.prefill_s)

    def launch(self, plan: Plan) -> None:
        assert len(self._made) <= self.rounds_ahead
        steps, slots = self.config.steps_per_round, self.config.slots
        self.copied_back_at_once += len({row for row, _ in plan.preempt} & set(plan.restore))
        listened = sum(row.lane is not Lane.BULK for row in plan.decode)
        self.rounds.append((listened, len(plan.decode) - listened))
        emitted, ended = np.zeros((steps, slots), bool), np.zeros(slots, bool)
        for row in plan.decode:
            in_flight = sum(
                int(output.emitted[:, slot_of(row)].sum()) for earlier, output in self._made if row in earlier.decode
            )
            left = self._inside[row].arrival.steps - row.steps - in_flight if row in self._inside else 0
            emitted[: max(0, left), slot_of(row)] = True
            ended[slot_of(row)] = left < steps
        hidden, tokens = np.zeros((steps, slots, WIDTH), np.float32), np.zeros((steps, slots, 4), np.int64)
        self._made.append((plan, RoundOutput(hidden, tokens, emitted, ended, np.zeros(slots, bool))))

    def read(self) -> RoundOutput:
        plan, output = self._made.popleft()
        self.pass_time(self.config.steps_per_round * (self.fixed_s + self.each_s * len(plan.decode)))
        for row in plan.decode:
            outcome = self._inside.get(row)
            if outcome is None:
                continue
            made = row.steps + int(output.emitted[:, slot_of(row)].sum())
            outcome.step_times.append(self.now)
            ends = bool(output.ended[slot_of(row)]) or made >= row.max_steps
            if outcome.heard_at is None and (ends or made >= outcome.arrival.first_steps):
                outcome.heard_at = self.now
            row.stream._read_steps = row.stream._put_steps  # it is read at once
            if ends:
                del self._inside[row]
        return output

    def preempt(self, slot: int, length: int) -> object:
        return object()

    def restore(self, slot: int, preempted: object) -> None: ...

    def reset_slot(self, slot: int) -> None: ...
