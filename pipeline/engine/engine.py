"""Engine: decodes many segments together, each as if it were alone.

In:    Prompts with their SamplingParams, from asyncio tasks
Out:   StepBlocks, to the same tasks
Owns:  the loop thread, the lock, the scheduler and the runner
Never: waveforms, text

    reader task                                  loop thread
    open -> submit -> read .. read               plan = scheduler.next_plan(now)
        |  (lock)        ^                       runner.prefill, runner.launch(plan)
        '--> scheduler   '---- StepStream <----- deliver(plan, runner.read()): on a GPU the plan before, while this one runs

A sequence has one slot of fixed shape, so its numbers depend on its prompt, its sampling values and the engine's
configuration, never on its neighbours, its slot or its time of arrival (tests/unit, test_engine.py).
"""

import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine.cpu_runner import CpuRunner
from pipeline.engine.device import DeviceRunner
from pipeline.engine.loop import EngineLoop
from pipeline.engine.observer import EngineObserver, NullEngineObserver
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.sequence import Sequence, StepStream
from pipeline.errors import SynthesisError, TextTooLong
from pipeline.model.gpu.placement import on_this_machine
from pipeline.model.out_of_memory import named_out_of_memory
from pipeline.types import LoadReport, Prompt, SamplingParams, StepBlock
from pipeline.with_torch import check_seed_mode, torch_part

WARM_UP_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's load and counters at one moment."""

    slots: int
    slots_usable: int
    """the most that may be taken at the present pace (engine.max_rtf)"""
    slots_used: int
    waiting: int
    rounds: int
    """rounds run since start"""
    steps: int
    """steps emitted since start, by all sequences"""
    sequences: int
    """sequences that have ended by themselves since start"""
    prefill_s: float
    """time in prefill calls since start [s]"""
    decode_s: float
    """time in decode rounds since start [s]"""
    round_s: float
    """running mean duration of a decode round [s]"""
    listened_rounds: int
    """rounds since start in which more than books decoded"""
    listened_s: float
    """time in them, and in the prefill calls before them [s]"""
    kv_bytes: int
    """size of the KV cache [bytes]"""


def make_runner(config: EngineConfig, checkpoint: Checkpoint) -> DeviceRunner:
    """Creates the configured device's runner; call it on the thread that will use the runner."""
    if config.device == "cpu":
        return CpuRunner(config, checkpoint)
    # Looked up here: it needs Triton, which not every machine without a GPU has.
    runner: DeviceRunner = torch_part("pipeline.engine.gpu_runner", wanted_for="engine.device cuda").GpuRunner(
        config, checkpoint
    )
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
            observer: receives the engine's events, on the engine's thread.
            factory: creates the device's runner, on the engine's thread.

        Raises:
            ConfigError: the KV cache does not fit its budget, or the settings the device. CheckpointError: the files are wrong.
            OutOfMemory: the model does not fit into memory.
        """
        self._config = config = on_this_machine(config)
        self._clock = clock
        self._width = checkpoint.gpt_spec.width
        self._scheduler = Scheduler(config)
        self._loop = EngineLoop(config, self._scheduler, observer or NullEngineObserver(), clock)
        with named_out_of_memory("the acoustic model", "lower engine.slots and engine.kv_budget_mib, or give it more memory"):
            self._runner = self._loop.start(lambda: factory(config, checkpoint))

    def open(self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float) -> Sequence:
        """Creates a sequence for the running asyncio task, without queueing it.

        Args:
            timeout_s: from now until the sequence must be finished [s].

        Raises:
            TextTooLong: the prompt does not fit a slot. InvalidRequest: its randomness cannot be drawn here.
        """
        check_seed_mode(sampling.seed_mode)
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
            stream=StepStream(on_read=self._loop.block_was_read),
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
        """Queues sequences, each with True if its request is admitted already; a refused one gets its error from `read`."""
        with self._loop.wake:
            for sequence, admitted in sequences:
                try:
                    if self._loop.dead is not None:
                        raise self._loop.dead
                    self._scheduler.submit(
                        sequence,
                        admitted=admitted,
                        retry_after_s=self._loop.retry_after_s(),
                        throughput=self._loop.throughput(),
                    )
                except SynthesisError as refusal:
                    sequence.stream.put(refusal)
            self._loop.wake.notify()

    async def read(self, sequence: Sequence) -> AsyncGenerator[StepBlock, None]:
        """Yields the blocks of a submitted sequence; closing the generator frees the slot within one round.

        Raises:
            AtCapacity, DeadlineUnmeetable, DeadlineExceeded, ReaderStalled, NonFiniteOutput, EngineDead: what ended it.
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
        """Removes a sequence before the next round; has no effect on one that has ended."""
        with self._loop.wake:
            self._scheduler.cancel(sequence)
            self._loop.wake.notify()

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        """Opens, submits and reads one sequence, as pipeline/protocols.py, CodeGenerator, declares."""
        sequence = self.open(prompt, sampling, timeout_s=timeout_s)
        self.submit([(sequence, admitted)])
        async with aclosing(self.read(sequence)) as blocks:
            async for block in blocks:
                yield block

    async def warm_up(self, prompt: Prompt) -> None:
        """Runs a prompt to its end, so that no request waits for a kernel's first run."""
        async for _ in self.generate(prompt, SamplingParams(), timeout_s=WARM_UP_TIMEOUT_S):
            pass

    def check_health(self) -> None:
        """Raises:
        EngineDead: the loop has died, or a round takes longer than `round_timeout_s`.
        """
        self._loop.check_health()

    def stats(self) -> EngineStats:
        """Returns the engine's load and counters at this moment."""
        with self._loop.wake:
            return EngineStats(
                slots=self._config.slots,
                slots_usable=self._scheduler.usable_slots,
                slots_used=self._scheduler.num_running,
                waiting=self._scheduler.num_waiting,
                rounds=self._loop.rounds,
                steps=self._loop.steps,
                sequences=self._loop.sequences,
                prefill_s=self._loop.prefill_s,
                decode_s=self._loop.decode_s,
                round_s=self._loop.times.round_s.value,
                listened_rounds=self._loop.listened_rounds,
                listened_s=self._loop.listened_s,
                kv_bytes=self._runner.kv_bytes,
            )

    def load_report(self) -> LoadReport:
        """Returns the work before the engine."""
        with self._loop.wake:
            steps = self._loop.listened_rounds * self._config.steps_per_round
            return replace(self._scheduler.load_report(), listened_steps=steps, listened_s=self._loop.listened_s)

    @property
    def num_graphs(self) -> int:
        """Number of rounds held as CUDA graphs."""
        return self._runner.num_graphs

    def drop_graphs(self) -> None:
        """Discards the CUDA graphs, to compare with eager rounds; call it only while nothing runs."""
        with self._loop.wake:
            self._runner.drop_graphs()

    def close(self) -> None:
        """Stops the loop; the readers of unfinished sequences get EngineDead."""
        self._loop.close()
