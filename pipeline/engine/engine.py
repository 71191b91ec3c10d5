"""Engine: many segments decoded together, each as if it were alone.

In:    Prompts with their SamplingParams, from asyncio tasks
Out:   StepBlocks, to the same tasks
Owns:  the loop thread, the lock, the scheduler and the runner
Never: HTTP, waveforms, text

    reader task                                  loop thread
    open -> submit -> read .. read               plan = scheduler.next_plan(now)
        |  (lock)        ^                       runner.prefill, runner.launch(plan)
        '--> scheduler   '---- StepStream <----- deliver(plan, runner.read()): on a GPU the plan before, while this one runs

A sequence lives in one slot of fixed shape, so its numbers depend on its prompt, its sampling values and the engine's
configuration, never on its neighbours, its slot or the moment it came (tests/unit, test_engine.py).
"""

import importlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, replace

import torch

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine.cpu_runner import CpuRunner
from pipeline.engine.device import DeviceRunner, RoundOutput
from pipeline.engine.observer import EngineObserver, NullEngineObserver
from pipeline.engine.scheduler import Plan, Scheduler, ThroughputEstimate
from pipeline.engine.sequence import Sequence, StepStream
from pipeline.errors import DeadlineExceeded, EngineDead, NonFiniteOutput, SynthesisError, TextTooLong
from pipeline.model.out_of_memory import named_out_of_memory
from pipeline.types import FinishReason, Prompt, SamplingParams, StepBlock

logger = logging.getLogger(__name__)

SMOOTHING = 0.1
MOST_TIMES = 4.0
"""weight of the newest value in the running means"""
WARM_UP_TIMEOUT_S = 600.0
RESERVE = 1.25
"""promises are made at this much slower a pace than the present one"""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at one moment."""

    slots: int
    slots_used: int
    waiting: int
    rounds: int
    """since start"""
    steps: int
    """emitted since start, all sequences"""
    sequences: int
    """finished by themselves since start"""
    round_s: float
    """running mean of a decode round [s]"""
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class _InFlightRound:
    """A round that was launched and not yet read."""

    plan: Plan
    launched_at: float
    """monotonic seconds"""


def make_runner(config: EngineConfig, checkpoint: Checkpoint) -> DeviceRunner:
    """The configured device's runner, ready to run; on the thread that will use it."""
    if config.device == "cpu":
        return CpuRunner(config, checkpoint)
    # Looked up here: it needs Triton, which not every machine without a GPU has.
    runner: DeviceRunner = importlib.import_module("pipeline.engine.gpu_runner").GpuRunner(config, checkpoint)
    return runner


class Engine:
    """The continuously batched acoustic model."""

    def __init__(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint,
        clock: Callable[[], float] = time.monotonic,
        observer: EngineObserver | None = None,
        factory: Callable[[EngineConfig, Checkpoint], DeviceRunner] = make_runner,
    ) -> None:
        """
        Args:
            clock: monotonic seconds; a test may hold it.
            observer: is told what happens, on the engine's thread.
            factory: makes the device side, on the engine's thread.

        Raises:
            ConfigError: the KV cache does not fit its budget. CheckpointError: the files are wrong.
            OutOfMemory: the model does not fit into memory.
        """
        self._config = config
        self._clock = clock
        self._observer: EngineObserver = observer or NullEngineObserver()
        self._width = checkpoint.gpt_spec.width
        self._scheduler = Scheduler(config)
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._closing = False
        self._dead: EngineDead | None = None
        self._round_started: float | None = None
        self._rounds = self._steps = self._sequences = 0
        self._round_s = self._collected_at = 0.0
        self._sequence_s = 1.0
        self._prefill_s = 0.0
        built: Future[DeviceRunner] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(lambda: factory(config, checkpoint), built), name="engine", daemon=True
        )
        with named_out_of_memory("the acoustic model", "lower engine.slots and engine.kv_budget_mib, or give it more memory"):
            self._thread.start()
            self._runner = built.result()

    def open(self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float) -> Sequence:
        """Make a sequence for the running asyncio task; nothing is queued yet.

        Raises:
            TextTooLong: the prompt does not fit a slot.
        """
        length = len(prompt.ids)
        if length > self._config.max_prompt:
            raise TextTooLong(
                f"a segment's prompt has {length} positions; the limit is {self._config.max_prompt} "
                "(engine.max_prompt): shorten the text or the voice's sample",
                param="input",
            )
        now = self._clock()
        max_steps = min(prompt.max_steps, self._config.max_steps)
        return Sequence(
            prompt=prompt,
            sampling=replace(sampling, min_steps=max_steps) if self._config.ignore_eos else sampling,
            stream=StepStream(on_read=self._on_read),
            width=self._width,
            max_steps=max_steps,
            deadline=now + timeout_s,
            submitted_at=now,
            blocks=tuple(
                min(size, self._config.largest_block) for size in prompt.scheduling.blocks or (self._config.block_steps,)
            ),
            promised_at=None if prompt.scheduling.first_audio_s is None else now + prompt.scheduling.first_audio_s,
        )

    def submit(self, sequences: Iterable[tuple[Sequence, bool]]) -> None:
        """Queue sequences, each with whether its request is admitted already; a refusal reaches its reader alone."""
        with self._wake:
            for sequence, admitted in sequences:
                try:
                    if self._dead is not None:
                        raise self._dead
                    self._scheduler.submit(
                        sequence, admitted=admitted, retry_after_s=self._retry_after_s(), throughput=self._throughput()
                    )
                except SynthesisError as refusal:
                    sequence.stream.put(refusal)
            self._wake.notify()

    async def read(self, sequence: Sequence) -> AsyncGenerator[StepBlock, None]:
        """The blocks of a submitted sequence; closing it frees the slot within one round.

        Raises:
            AtCapacity, DeadlineExceeded, ReaderStalled, NonFiniteOutput, EngineDead: whatever ended the sequence.
        """
        try:
            while True:
                block = await sequence.stream.get()
                yield block
                if block.finish is not None:
                    return
        finally:
            self.cancel(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """The reader has gone; harmless for a sequence that is over."""
        with self._wake:
            self._scheduler.cancel(sequence)
            self._wake.notify()

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        """Open, submit and read in one; see pipeline/protocols.py, CodeGenerator."""
        sequence = self.open(prompt, sampling, timeout_s=timeout_s)
        self.submit([(sequence, admitted)])
        async with aclosing(self.read(sequence)) as blocks:
            async for block in blocks:
                yield block

    async def warm_up(self, prompt: Prompt) -> None:
        """Run a prompt to its end, so that no request meets a kernel for the first time."""
        async for _ in self.generate(prompt, SamplingParams(), timeout_s=WARM_UP_TIMEOUT_S):
            pass

    def check_health(self) -> None:
        """Raises:
        EngineDead: the loop has died, or a round takes longer than `round_timeout_s`.
        """
        started, now = self._round_started, self._clock()
        if self._dead is not None:
            raise self._dead
        if not self._thread.is_alive():
            raise EngineDead("the engine's loop has ended")
        if started is not None and now - started > self._config.round_timeout_s:
            raise EngineDead(
                f"a round has been running for {now - started:.1f} s; "
                f"the limit is {self._config.round_timeout_s:g} s (engine.round_timeout_s)"
            )

    def stats(self) -> EngineStats:
        """The engine at this moment."""
        with self._lock:
            return EngineStats(
                slots=self._config.slots,
                slots_used=self._scheduler.num_running,
                waiting=self._scheduler.num_waiting,
                rounds=self._rounds,
                steps=self._steps,
                sequences=self._sequences,
                round_s=self._round_s,
                kv_bytes=self._runner.kv_bytes,
            )

    @property
    def num_graphs(self) -> int:
        """Rounds captured as CUDA graphs."""
        return self._runner.num_graphs

    def drop_graphs(self) -> None:
        """Go on eagerly, to compare; only while nothing runs."""
        self._runner.drop_graphs()

    def close(self) -> None:
        """Stop the loop; whoever still reads gets EngineDead."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout=self._config.round_timeout_s)

    # -- the loop thread ------------------------------------------------------------------------------------------

    def _run(self, factory: Callable[[], DeviceRunner], built: "Future[DeviceRunner]") -> None:
        try:
            if self._config.threads is not None:
                torch.set_num_threads(self._config.threads)  # counts for the thread that calls it
            # The model is made on the thread that runs it. OpenMP keeps a team of workers for every thread that ever ran
            # in parallel, and once teams outnumber the cores it puts them to sleep between operations: a step of full
            # size took 45 ms instead of 29 on two cores.
            runner = factory()
        except Exception as error:
            built.set_exception(error)
            return
        self._scheduler.rounds_ahead = runner.rounds_ahead
        built.set_result(runner)
        try:
            self._loop(runner)
            self._die(EngineDead("the engine was closed"))
        except Exception as error:
            logger.exception("the engine's loop died")
            self._die(EngineDead(f"the engine's loop died of {type(error).__name__}: {error}"))

    def _loop(self, runner: DeviceRunner) -> None:
        """Launch and deliver until the engine is closed."""
        in_flight: deque[_InFlightRound] = deque()
        while (plan := self._next_plan(wait=not in_flight)) is not None:
            if plan.decode:
                in_flight.append(self._launch(runner, plan))
            if len(in_flight) > runner.rounds_ahead or not plan.decode:
                self._collect(runner, in_flight.popleft())
                self._round_started = self._clock() if in_flight else None

    def _next_plan(self, *, wait: bool) -> Plan | None:
        """The next round's plan; None when closing. With `wait` it has somebody to decode."""
        with self._wake:
            while not self._closing:
                plan = self._scheduler.next_plan(self._clock())
                for sequence, error in plan.left:
                    self._observer.wasted(sequence.steps, _why_wasted(error))
                    if error is not None:
                        sequence.stream.put(error)
                if plan.decode or not wait:
                    return plan
                # Nobody can run: sleep until a submit, a read or a cancel, or until somebody's time is over.
                deadline = self._scheduler.next_deadline()
                self._wake.wait(None if deadline is None else max(deadline - self._clock(), 0.001))
            return None

    def _launch(self, runner: DeviceRunner, plan: Plan) -> _InFlightRound:
        started = self._clock()
        self._round_started = self._round_started or started
        for sequence, slot in plan.preempt:
            sequence.preempted_state = runner.preempt(slot, sequence.length)
            self._observer.preempted()
        for sequence in plan.restore:
            runner.restore(_placed(sequence), sequence.preempted_state)
            sequence.preempted_state = None
        if plan.prefill:
            for sequence in plan.prefill:
                self._observer.scheduled(started - sequence.submitted_at, sequence.lane)
                sequence.scheduled_at = sequence.scheduled_at or started
            runner.prefill(plan.prefill)
            self._prefill_s = smoothed(self._prefill_s, self._clock() - started)
        launched = _InFlightRound(plan, self._clock())
        for sequence in plan.prefill:
            sequence.prefilled_at = sequence.prefilled_at or launched.launched_at
        runner.launch(plan)
        return launched

    def _collect(self, runner: DeviceRunner, launched: _InFlightRound) -> None:
        output = runner.read()
        now = self._clock()
        round_s = now - max(launched.launched_at, self._collected_at)
        self._collected_at = now
        with self._lock:
            self._deliver(launched.plan, output, now)
            self._rounds += 1
            self._round_s = smoothed(self._round_s, round_s)

    def _deliver(self, plan: Plan, output: RoundOutput, now: float) -> None:
        for sequence in plan.decode:
            slot = sequence.slot
            if slot is None or not self._scheduler.holds(sequence):
                continue  # it has left while this round was in flight
            for step in output.emitted[:, slot].nonzero()[0]:
                sequence.emit(output.hidden[step, slot], output.tokens[step, slot, : sequence.books])
                self._steps += 1
            if output.broken[slot]:
                self._scheduler.release(sequence)
                self._runner.reset_slot(slot)
                self._observer.wasted(sequence.steps, "broken")
                sequence.stream.put(
                    NonFiniteOutput(f"the model produced non-finite numbers after {sequence.steps} steps of this segment")
                )
            elif output.ended[slot] or sequence.steps >= sequence.max_steps:
                self._scheduler.release(sequence)
                sequence.flush(FinishReason.EOS if output.ended[slot] else FinishReason.LENGTH)
                self._sequences += 1
                self._scheduler.queue.learn(sequence)
                self._sequence_s = smoothed(self._sequence_s, now - sequence.submitted_at)
            else:
                sequence.flush()

    def _die(self, death: EngineDead) -> None:
        with self._lock:
            self._dead = death
            for sequence in self._scheduler.drain():
                sequence.stream.put(death)

    # -- called under the lock ------------------------------------------------------------------------------------

    def _throughput(self) -> ThroughputEstimate | None:
        """What a step takes now, with a reserve: it varies."""
        if not self._rounds:
            return None
        return ThroughputEstimate(
            self._clock(), RESERVE * self._round_s / self._config.steps_per_round, RESERVE * self._prefill_s
        )

    def _retry_after_s(self) -> float:
        """When, at the present pace, a place will be free."""
        return max(self._sequence_s * (self._scheduler.num_waiting + 1) / self._config.slots, 0.1)

    def _on_read(self) -> None:
        with self._wake:
            self._wake.notify()


def smoothed(mean_s: float, measured_s: float) -> float:
    """The running mean after one more measurement; 0 is no mean yet.

    A process that was stopped for a minute is not slow: one measurement counts as MOST_TIMES the mean at most.
    """
    if not mean_s:
        return measured_s
    return mean_s + SMOOTHING * (min(measured_s, MOST_TIMES * mean_s) - mean_s)


def _placed(sequence: Sequence) -> int:
    assert sequence.slot is not None, "who is resumed has a slot"
    return sequence.slot


def _why_wasted(error: SynthesisError | None) -> str:
    if error is None:
        return "cancelled"
    return "deadline" if isinstance(error, DeadlineExceeded) else "stalled"
