"""Virtual time: engines and ingresses whose clock is an agenda. Every decision is made by the classes of the service.

In:    devices, calls
Out:   the first audio and the outcome of each call
Owns:  the agenda
Never: threads, clocks, a model

What is written anew is what EngineLoop does between a plan and its delivery, because it owns a thread, and Serve's counts.
"""

import heapq
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

import numpy as np

from pipeline.config import EngineConfig
from pipeline.engine.round_times import RoundTimes
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.sequence import Sequence, StepStream
from pipeline.errors import AtCapacity
from pipeline.types import Head, Lane, LoadReport, Prompt, SamplingParams, SchedulingParams, Segment
from serve.stages.replica_table import ReplicaTable, Route

IDS, MASK, SEGMENT = np.zeros((32, 4), np.int64), np.ones(32, np.bool_), Segment("", 0, is_last=True)
TIMEOUT_S = 600.0
PROMISE_S, MAX_WAITING = 15.0, 64
HOP_S = 0.002  # from an ingress to an engine, and back
CAP = 2.0  # times its steps, and SPARE more, are the cap of a call's steps: the engine does not know its length before
SPARE = 40
DETECTION_S = 0.1  # of the death of a replica


@dataclass(frozen=True, slots=True)
class Device:
    """What an engine runs on."""

    name: str
    slots: int
    one_s: float
    full_s: float
    """duration of a step of one row, and of all slots, with the vocoder's share [s]"""
    prefill_s: float
    """of one call [s]"""
    first_steps: int
    """before the first audio"""
    source: str = ""
    """of these figures"""

    def step_s(self, rows: int) -> float:
        """Returns the duration of a step [s]."""
        return self.one_s + (self.full_s - self.one_s) * (rows - 1) / max(1, self.slots - 1)

    @property
    def steps_per_s(self) -> float:
        """The most steps per second."""
        return self.slots / self.full_s


@dataclass(slots=True, eq=False)
class Call:
    """A segment that a client has asked for."""

    at: float
    """[s]"""
    steps: int
    lane: Lane = Lane.STANDARD
    tenant: str = ""
    promise_s: float | None = PROMISE_S
    ingress: int = 0
    first_s: float | None = None
    """from the call to its first audio [s]"""
    end_s: float | None = None
    """to its end, or its refusal [s]"""
    is_refused: bool = False
    refusals: int = 0
    repeated: int = 0
    """steps by replicas that have died since: the next one makes them again"""
    route: Route = field(default_factory=Route)


class _Reader:
    """A reader that is never behind."""

    unread_steps = 0


_READER = cast(StepStream, _Reader())


class Agenda:
    """What happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Adds an event."""
        heapq.heappush(self._events, (when, next(self._numbers), event))

    def run(self, until: float) -> None:
        """Lets everything happen up to a time [s]."""
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until


@dataclass(slots=True)
class _Round:
    """A round under way."""

    rows: tuple[Sequence, ...]
    prefill_s: float
    decode_s: float
    ends_at: float

    def follow(self) -> None:
        """Becomes the next round of the same rows."""
        self.prefill_s = 0.0
        self.ends_at += self.decode_s


class VirtualEngine:
    """The shipped scheduler over a device.

    Rounds are made when somebody looks: while no row is heard or ends, and no newcomer could get a slot, the plan stays what it
    was, and the scheduler is not asked.
    """

    def __init__(self, agenda: Agenda, name: str, device: Device, config: EngineConfig, service: "VirtualService") -> None:
        self.name, self.device, self.config = name, device, config
        self._agenda, self._service = agenda, service
        self.scheduler = Scheduler(config)
        self.calls: dict[Sequence, Call] = {}
        self.is_alive = True
        self._steps = 0
        self._times = RoundTimes(config.steps_per_round)
        self._round: _Round | None = None
        self._marks: list[tuple[int, int, Sequence]] = []  # a heap: in which round a row is heard or ends, at the earliest
        self._numbers = count()
        self._num_bulk = 0  # of the calls
        self._deadline = math.inf  # the earliest, or an earlier one
        self._wakes_at = -1.0

    @property
    def steps(self) -> int:
        """Made so far."""
        self._catch_up()
        return self._steps

    def submit(self, call: Call) -> None:
        """Queues a call. Raises AtCapacity and DeadlineUnmeetable as the engine does."""
        self._catch_up()
        now, has_begun = self._agenda.now, call.first_s is not None
        lane = Lane.INTERACTIVE if has_begun and call.lane is not Lane.BULK else call.lane
        promise_s = None if has_begun else call.promise_s
        scheduling = SchedulingParams(lane, call.tenant, promise_s, min(self.device.first_steps, call.steps))
        is_known = self.config.ignore_eos
        most = call.steps if is_known else int(CAP * call.steps) + SPARE
        sequence = Sequence(
            Prompt(IDS, MASK, Head.CODE, SEGMENT, most, scheduling=scheduling),
            SamplingParams(min_steps=most if is_known else 1),
            _READER,
            1,
            most,
            now + TIMEOUT_S,
            now,
            promised_at=None if promise_s is None else call.at + promise_s,
        )
        throughput = self._times.throughput(now) if self.scheduler.pace.rounds else None
        retry_after_s = self._times.retry_after_s(self.scheduler)
        self.scheduler.submit(sequence, admitted=has_begun, retry_after_s=retry_after_s, throughput=throughput)
        self.calls[sequence] = call
        self._num_bulk += lane is Lane.BULK
        self._deadline = min(self._deadline, sequence.deadline)
        if self._round is None:
            self._wake_at(now)
        elif not self._plan_stays:
            self._wake_at(self._round.ends_at)

    def report(self) -> LoadReport:
        """Returns what travels with an answer."""
        return replace(self.scheduler.load_report(), replica=self.name)

    def die(self) -> list[Call]:
        """Returns the calls that it was working on."""
        self._catch_up()
        self.is_alive, self._round = False, None
        for sequence, call in self.calls.items():
            call.repeated += sequence.steps
        return list(self.calls.values())

    @property
    def _plan_stays(self) -> bool:
        """True while the rows of the next round are those of this one that do not end."""
        scheduler, round_ = self.scheduler, self._round
        is_full = scheduler.num_running == self.config.slots
        return (
            round_ is not None
            and len(round_.rows) == scheduler.num_running > 0
            and (is_full or not scheduler.num_waiting)
            and self._num_bulk in (0, len(self.calls))
            and self._agenda.now < self._deadline
        )

    def _wake_at(self, when: float) -> None:
        if when != self._wakes_at:
            self._wakes_at = when
            self._agenda.at(when, self._wake)

    def _wake(self) -> None:
        now = self._agenda.now
        if now != self._wakes_at or not self.is_alive:
            return
        self._wakes_at = -1.0
        self._catch_up()
        if self._round is not None:
            self._deliver(self._round)
        if self._round is not None and self._plan_stays:
            self._begin(self._round.rows, 0.0)
        else:
            self._plan()

    def _plan(self) -> None:
        plan = self.scheduler.next_plan(self._agenda.now)
        for sequence in plan.restore:
            sequence.preempted_state = None
        for sequence, _ in plan.removed:
            self._num_bulk -= sequence.lane is Lane.BULK
            self._service.fail(self, self.calls.pop(sequence))
        if self._agenda.now >= self._deadline:
            self._deadline = self.scheduler.next_deadline() or math.inf
        for sequence in plan.prefill:
            self._mark(sequence)
        self._round = None
        if not plan.decode and not plan.fills_slots:
            return
        if plan.prefill:
            self._times.prefill_call_s.add(self.device.prefill_s)
        self._begin(plan.decode, self.device.prefill_s if plan.prefill else 0.0)

    def _begin(self, rows: tuple[Sequence, ...], prefill_s: float) -> None:
        """Begins a round, and wakes at the next end of one at which anything may happen."""
        decode_s = self.config.steps_per_round * self.device.step_s(len(rows))
        self._round = _Round(rows, prefill_s, decode_s, ends_at := self._agenda.now + prefill_s + decode_s)
        if self._plan_stays:
            for _ in range(self._marks[0][0] - self.scheduler.pace.rounds - 1):
                if ends_at >= self._deadline:
                    break
                ends_at += decode_s
        self._wake_at(ends_at)

    def _catch_up(self) -> None:
        """Makes the rounds that have ended since, at which nothing happened."""
        now, steps, round_ = self._agenda.now, 0, self._round
        if round_ is None:
            return
        while round_.ends_at < now:
            self._count(round_)
            round_.follow()
            steps += self.config.steps_per_round
        if steps:
            self._steps += steps * len(round_.rows)
            for sequence in round_.rows:
                sequence.steps += steps

    def _deliver(self, round_: _Round) -> None:
        """Ends a round, row by row: what is heard and what ends goes to the ingresses."""
        number, each_round = self.scheduler.pace.rounds + 1, self.config.steps_per_round
        marked = set[Sequence]()
        while self._marks and self._marks[0][0] <= number:
            marked.add(heapq.heappop(self._marks)[2])
        for sequence in round_.rows:
            if sequence in marked:
                self._advance(sequence)
            else:
                sequence.steps += each_round
                self._steps += each_round
        self._count(round_)
        for sequence in marked & self.calls.keys():
            self._mark(sequence)
        round_.rows = tuple([sequence for sequence in round_.rows if sequence not in marked or sequence in self.calls])

    def _advance(self, sequence: Sequence) -> None:
        """Counts the steps of a row that may be heard or end with them."""
        now, call, before = self._agenda.now, self.calls[sequence], sequence.steps
        sequence.steps = min(call.steps, before + self.config.steps_per_round)
        self._steps += sequence.steps - before
        if before < sequence.prompt.scheduling.first_steps <= sequence.steps:
            sequence.first_block_at = now
            self._service.hear(self, call)
        if sequence.steps >= call.steps:
            self.scheduler.release(sequence)
            self.scheduler.queue.learn(sequence)
            self._times.sequence_s.add(now - sequence.submitted_at)
            self._num_bulk -= sequence.lane is Lane.BULK
            self._service.end(self, self.calls.pop(sequence))

    def _mark(self, sequence: Sequence) -> None:
        """Sets the round in which a row is heard or ends next, if it decodes in all until then."""
        first = sequence.prompt.scheduling.first_steps
        due = first if sequence.steps < first else self.calls[sequence].steps
        rounds = -(-(due - sequence.steps) // self.config.steps_per_round)
        heapq.heappush(self._marks, (self.scheduler.pace.rounds + rounds, next(self._numbers), sequence))

    def _count(self, round_: _Round) -> None:
        self._times.round_s.add(round_.decode_s)
        each_round = self.config.steps_per_round
        self.scheduler.pace.add(len(round_.rows), round_.decode_s / each_round, round_.prefill_s / each_round)


class VirtualService:
    """Ingresses before engines. Each ingress has a table of its own, and Serve's count of the calls of each replica."""

    def __init__(
        self,
        devices: Iterable[Device],
        *,
        ingresses: int = 2,
        by_steps: bool = True,
        overhead_s: float = 0.0,
        seed: int = 1,
        **engine: Any,
    ) -> None:
        """
        Args:
            by_steps: calls are routed by steps; False: the less busy of two, as Serve does, and a refusal is final.
            overhead_s: of each first audio, besides engine and hops [s].
            engine: settings of EngineConfig.
        """
        self.agenda, self.draws = Agenda(), random.Random(seed)
        self.engines: dict[str, VirtualEngine] = {}
        for number, device in enumerate(devices):
            config = EngineConfig(slots=device.slots, **{"max_steps": 2048, "max_waiting": MAX_WAITING, **engine})
            name = f"{device.name}-{number}"
            self.engines[name] = VirtualEngine(self.agenda, name, device, config, self)
        self._by_steps, self._overhead_s = by_steps, overhead_s
        self._tables = [ReplicaTable(clock=lambda: self.agenda.now, draws=self.draws) for _ in range(ingresses)]
        self._counts = [dict.fromkeys(self.engines, 0) for _ in range(ingresses)]
        self.on_end: Callable[[Call], None] = lambda call: None
        """called with each call that is over, or refused"""
        for table in self._tables:
            table.set_replicas(self.engines)

    @property
    def steps_per_s(self) -> float:
        """The most steps per second of those that are alive."""
        return sum(engine.device.steps_per_s for engine in self.engines.values() if engine.is_alive)

    @property
    def steps(self) -> int:
        """Made so far."""
        return sum(engine.steps for engine in self.engines.values())

    def reports(self, ingress: int) -> list[LoadReport]:
        """Returns the latest report of each engine that an ingress knows."""
        return self._tables[ingress].reports

    def ask(self, call: Call) -> None:
        """Routes a call, now."""
        call.ingress %= len(self._tables)
        counts = self._counts[call.ingress]
        names = [name for name, engine in self.engines.items() if engine.is_alive]
        if not names:
            self._refuse(call)
        elif self._by_steps:
            first_steps = self.engines[names[0]].device.first_steps
            self._send(call, self._tables[call.ingress].order(call.lane, first_steps, counts.__getitem__, call.route)[0])
        else:
            self._send(call, min(self.draws.sample(names, min(2, len(names))), key=counts.__getitem__))

    def kill(self, name: str) -> int:
        """Ends a replica; its calls are made anew elsewhere. Returns how many they are."""
        engine = self.engines[name]
        calls = engine.die()
        alive = [other for other, entry in self.engines.items() if entry.is_alive]
        for table in self._tables:
            table.set_replicas(alive)
        for call in calls:
            self.agenda.at(self.agenda.now + DETECTION_S, lambda call=call: self.ask(call))  # type: ignore[misc]
        return len(calls)

    def hear(self, engine: VirtualEngine, call: Call) -> None:
        """Called by an engine with the first audio of a call."""
        if call.first_s is None:
            call.first_s = self.agenda.now - call.at + HOP_S + self._overhead_s
        self._tables[call.ingress].report(engine.report())

    def end(self, engine: VirtualEngine, call: Call) -> None:
        """Called by an engine with the end of a call."""
        self._leave(engine, call)
        call.end_s = self.agenda.now - call.at + HOP_S
        self._tables[call.ingress].report(engine.report())
        self.on_end(call)

    def fail(self, engine: VirtualEngine, call: Call) -> None:
        """Called by an engine with a call that it gives up."""
        self._leave(engine, call)
        self._refuse(call)

    def _send(self, call: Call, name: str) -> None:
        self._counts[call.ingress][name] += 1
        self.agenda.at(self.agenda.now + HOP_S, lambda: self._arrive(call, name))

    def _arrive(self, call: Call, name: str) -> None:
        engine = self.engines[name]
        if not engine.is_alive:
            self.ask(call)
            return
        try:
            engine.submit(call)
        except AtCapacity as refusal:
            self._leave(engine, call)
            call.refusals += 1
            refusal.replica = name
            table = self._tables[call.ingress]
            if not self._by_steps or (following := table.after_refusal(refusal, call.lane, call.route)) is None:
                self._refuse(call)
            else:
                call.route = following
                self.ask(call)
        else:
            self._counts[call.ingress][name] = len(engine.calls)  # the answer of a replica says how many it has

    def _leave(self, engine: VirtualEngine, call: Call) -> None:
        counts = self._counts[call.ingress]
        counts[engine.name] = max(0, counts[engine.name] - 1)

    def _refuse(self, call: Call) -> None:
        call.is_refused, call.end_s = True, self.agenda.now - call.at
        self.on_end(call)
