"""EngineLoop: the thread that plans, launches and delivers round after round.

In:    a Scheduler that other threads fill under `wake`; the device's runner
Out:   steps and errors, into the streams of the sequences
Owns:  the thread, the lock
Never: asyncio, prompts
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from pipeline.config import EngineConfig
from pipeline.engine.device import DeviceRunner, RoundOutput
from pipeline.engine.observer import EngineObserver
from pipeline.engine.promises import ThroughputEstimate
from pipeline.engine.round_times import RoundTimes
from pipeline.engine.scheduler import Plan, Scheduler
from pipeline.engine.sequence import slot_of
from pipeline.errors import DeadlineExceeded, EngineDead, NonFiniteOutput, SynthesisError
from pipeline.types import FinishReason, Lane

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _InFlightRound:
    """A round that was launched and not yet read."""

    plan: Plan
    launched_at: float
    """monotonic seconds"""
    prefill_s: float
    """duration of the prefill call before it [s]"""


class EngineLoop:
    """Runs a scheduler's plans on one device, on a thread of its own."""

    def __init__(
        self, config: EngineConfig, scheduler: Scheduler, observer: EngineObserver, clock: Callable[[], float]
    ) -> None:
        """
        Args:
            observer: called on the loop's thread.
            clock: monotonic seconds.
        """
        self._config = config
        self._scheduler = scheduler
        self._observer = observer
        self._clock = clock
        self.wake = threading.Condition(threading.Lock())
        """guards the scheduler and everything below; notified when there may be work"""
        self.dead: EngineDead | None = None
        """why the loop has ended"""
        self.rounds = self.steps = self.sequences = 0
        """rounds delivered, steps emitted, sequences finished by themselves since start"""
        self.prefill_s = self.decode_s = 0.0
        """time in prefill calls and in rounds since start [s]"""
        self.listened_rounds, self.listened_s = 0, 0.0
        """rounds in which more than books decoded, and the time in them and in the prefill calls before them [s]"""
        self.times = RoundTimes(config.steps_per_round)
        self._closing = False
        self._may_sleep = False
        self._round_started: float | None = None
        self._collected_at = 0.0
        self._thread: threading.Thread | None = None

    def start(self, factory: Callable[[], DeviceRunner]) -> DeviceRunner:
        """Starts the thread, creates the runner on it and returns the runner; raises what `factory` raises."""
        started: Future[DeviceRunner] = Future()
        self._thread = threading.Thread(target=self._run, args=(factory, started), name="engine", daemon=True)
        self._thread.start()
        return started.result()

    def check_health(self) -> None:
        """Raises:
        EngineDead: the loop has ended, or a round takes longer than `round_timeout_s`.
        """
        started, now = self._round_started, self._clock()
        if self.dead is not None:
            raise self.dead
        if self._thread is None or not self._thread.is_alive():
            raise EngineDead("the engine's loop has ended")
        if started is not None and now - started > self._config.round_timeout_s:
            raise EngineDead(
                f"a round has been running for {now - started:.1f} s; "
                f"the limit is {self._config.round_timeout_s:g} s (engine.round_timeout_s)"
            )

    def close(self) -> None:
        """Ends the loop after the present round; the readers of unfinished sequences get EngineDead."""
        with self.wake:
            self._closing = True
            self.wake.notify()
        if self._thread is not None:
            self._thread.join(timeout=self._config.round_timeout_s)

    def block_was_read(self) -> None:
        """Wakes the loop if it sleeps; a busy one looks at the buffers by itself, and its lock is not taken."""
        if self._may_sleep:
            with self.wake:
                self.wake.notify()

    def _run(self, factory: Callable[[], DeviceRunner], started: "Future[DeviceRunner]") -> None:
        try:
            # The model is created on the thread that runs it. Native code and torch's OpenMP keep workers for every thread
            # that ever ran in parallel, and more workers than cores disturb each other: with torch, a step of full size
            # took 45 ms instead of 29 on two cores.
            runner = factory()
        except Exception as error:
            started.set_exception(error)
            return
        self._scheduler.rounds_ahead = runner.rounds_ahead
        started.set_result(runner)
        try:
            self._loop(runner)
            self._die(EngineDead("the engine was closed"))
        except Exception as error:
            logger.exception("the engine's loop died")
            self._die(EngineDead(f"the engine's loop died of {type(error).__name__}: {error}"))

    def _loop(self, runner: DeviceRunner) -> None:
        """Launches and delivers rounds until the engine is closed."""
        in_flight: deque[_InFlightRound] = deque()
        while (plan := self._next_plan(wait=not in_flight)) is not None:
            prefill_s = self._fill_slots(runner, plan)
            if plan.decode:
                in_flight.append(_InFlightRound(plan, self._clock(), prefill_s))
                runner.launch(plan)
            if in_flight and (len(in_flight) > runner.rounds_ahead or not plan.decode):
                self._collect(runner, in_flight.popleft())
                self._round_started = self._clock() if in_flight else None
            elif not in_flight:
                self._round_started = None

    def _next_plan(self, *, wait: bool) -> Plan | None:
        """Returns the next round's plan; None when closing. With `wait`, sleeps until there is something to do."""
        with self.wake:
            while not self._closing:
                # Before the buffers are looked at: a read that comes too late for the plan sees it, and notifies.
                self._may_sleep = wait
                plan = self._scheduler.next_plan(self._clock())
                for sequence, error in plan.removed:  # all before anything may raise: the scheduler knows them no more
                    if error is not None:
                        sequence.stream.put(error)
                for sequence, error in plan.removed:
                    self._observer.wasted(sequence.steps, _why_wasted(error))
                if plan.decode or plan.fills_slots or not wait:
                    self._may_sleep = False
                    return plan
                # No sequence can run: sleep until a submit, a read or a cancel, or until the next deadline.
                deadline = self._scheduler.next_deadline()
                self.wake.wait(None if deadline is None else max(deadline - self._clock(), 0.001))
            return None

    def _fill_slots(self, runner: DeviceRunner, plan: Plan) -> float:
        """Gives every sequence the slot that the plan says, also if none decodes: the scheduler counts on it.

        Returns:
            duration of the prefill call [s].
        """
        started = self._clock()
        self._round_started = self._round_started or started
        for sequence, slot in plan.preempt:
            sequence.preempted_state = runner.preempt(slot, sequence.length)
            self._observer.preempted()
        for sequence in plan.restore:
            runner.restore(slot_of(sequence), sequence.preempted_state)
            sequence.preempted_state = None
        prefill_s = 0.0
        if plan.prefill:
            for sequence in plan.prefill:
                self._observer.scheduled(started - sequence.submitted_at, sequence.lane)
                sequence.scheduled_at = sequence.scheduled_at or started
            runner.prefill(plan.prefill)
            prefill_s = self._clock() - started
            self.times.prefill_call_s.add(prefill_s)
            self.prefill_s += prefill_s
            for sequence in plan.prefill:
                sequence.prefilled_at = sequence.prefilled_at or self._clock()
        return prefill_s

    def _collect(self, runner: DeviceRunner, launched: _InFlightRound) -> None:
        output = runner.read()
        now = self._clock()
        round_s = now - max(launched.launched_at, self._collected_at)
        self._collected_at = now
        with self.wake:
            self._deliver(runner, launched.plan, output, now)
            self.rounds += 1
            self.decode_s += round_s
            self.times.round_s.add(round_s)
            if any(sequence.lane is not Lane.BULK for sequence in launched.plan.decode):
                self.listened_rounds += 1
                self.listened_s += round_s + launched.prefill_s
            steps = self._config.steps_per_round
            self._scheduler.pace.add(len(launched.plan.decode), round_s / steps, launched.prefill_s / steps)

    def _deliver(self, runner: DeviceRunner, plan: Plan, output: RoundOutput, now: float) -> None:
        for sequence in plan.decode:
            slot = sequence.slot
            if slot is None or not self._scheduler.holds(sequence):  # it has left while this round was in flight
                if slot is not None and output.broken[slot] and self._scheduler.is_cooling(slot):
                    runner.reset_slot(slot)
                continue
            for step in output.emitted[:, slot].nonzero()[0]:
                sequence.emit(output.hidden[step, slot], output.tokens[step, slot, : sequence.books])
                self.steps += 1
            # Whoever reads is told first: what follows may raise, and the scheduler would know the sequence no more.
            if output.broken[slot]:
                sequence.stream.put(
                    NonFiniteOutput(f"the model produced non-finite numbers after {sequence.steps} steps of this segment")
                )
                self._scheduler.release(sequence)
                runner.reset_slot(slot)
                self._observer.wasted(sequence.steps, "broken")
            elif output.ended[slot] or sequence.steps >= sequence.max_steps:
                sequence.flush(FinishReason.EOS if output.ended[slot] else FinishReason.LENGTH)
                self._scheduler.release(sequence)
                self.sequences += 1
                self._scheduler.queue.learn(sequence)
                self.times.sequence_s.add(now - sequence.submitted_at)
            else:
                sequence.flush()
            if sequence.first_block_at is None and sequence.steps >= sequence.blocks[0]:
                sequence.first_block_at = now

    def _die(self, death: EngineDead) -> None:
        with self.wake:
            self.dead = death
            for sequence in self._scheduler.drain():
                sequence.stream.put(death)

    # -- called under the lock ------------------------------------------------------------------------------------

    def throughput(self) -> ThroughputEstimate | None:
        """Returns the present speed less a reserve, because steps vary; None before the first round."""
        return self.times.throughput(self._clock()) if self.rounds else None

    def retry_after_s(self) -> float:
        """Returns after how long a slot will probably be free [s]."""
        return self.times.retry_after_s(self._scheduler)


def _why_wasted(error: SynthesisError | None) -> str:
    if error is None:
        return "cancelled"
    return "deadline" if isinstance(error, DeadlineExceeded) else "stalled"
