"""Random histories of the scheduler and its loop: cancellations, slow and dead readers, broken rows, a runner that fails.

Whatever happens: a sequence's steps are its own, in order and without a gap; every reader gets an end; a slot has one owner
and is clean when it gets a new one; nothing is preempted in flight, or preempted and restored in one round. A failure names its
seed.
"""

import asyncio
import random
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pytest

from pipeline.config import EngineConfig
from pipeline.engine.device import RoundOutput
from pipeline.engine.loop import EngineLoop
from pipeline.engine.observer import NullEngineObserver
from pipeline.engine.scheduler import Plan, Scheduler, prefill_bucket
from pipeline.engine.sequence import Sequence, StepStream, slot_of
from pipeline.errors import EngineDead, SynthesisError
from pipeline.types import Lane, SamplingParams, SchedulingParams, StepBlock
from tests.support.effort import new_seeds
from tests.support.factories import WIDTH, make_prompt

MOST_STEPS, NEVER = 64, 10**9


class RunnerFailed(Exception):
    """What a device raises at a random moment."""


@dataclass(eq=False)
class Reader:
    """One sequence, what its steps will be, and what has been read."""

    number: int
    sequence: Sequence
    eos: int
    breaks: int
    pace: float
    steps: int = 0
    end: str | None = None
    is_cancelled: bool = False

    @property
    def last(self) -> int:
        return min(self.eos, self.breaks, self.sequence.max_steps)


class History:
    """One engine's life. It is the loop's runner, clock and condition, and all its readers."""

    def __init__(self, seed: int, *, fails: bool) -> None:
        self.chance = chance = random.Random(seed)
        steps, block = chance.choice([1, 1, 2, 4]), chance.choice([1, 4, 8])
        self.config = EngineConfig.varied(
            {
                "slots": chance.choice([1, 2, 3, 4, 8]),
                "steps_per_round": steps,
                "prefill_rows": chance.choice([1, 1, 2, 4]),
                "max_waiting": chance.choice([0, 2, 8, 32]),
                "max_preempted": chance.choice([0, 1, 4]),
                "buffer_steps": max(2 * steps + block, chance.choice([8, 16, 64])),
                "block_steps": block,
                "bulk_patience_s": chance.choice([0.5, 2.0, 20.0]),
                "standard_patience_s": chance.choice([0.0, 2.0]),
                "stall_timeout_s": chance.choice([2.0, 30.0]),
                "max_rtf": chance.choice([None, 0.8, 0.2]),
                "max_prompt": 64,
                "max_steps": MOST_STEPS,
            }
        )
        self.rounds_ahead = chance.choice([0, 1])
        self.now, self.fails, self.coming, self.is_locked = 0.0, fails, chance.choice([20, 60]), False
        self.scheduler = Scheduler(self.config)
        self.scheduler.rounds_ahead = self.rounds_ahead
        self.loop = EngineLoop(self.config, self.scheduler, NullEngineObserver(), lambda: self.now)
        self.loop.wake = self  # type: ignore[assignment]
        self.readers: dict[Sequence, Reader] = {}
        self.owners: list[tuple[Reader, int] | None] = [None] * self.config.slots  # each slot's owner and its steps
        self.dirty: set[int] = set()
        self.in_flight: deque[tuple[Plan, RoundOutput]] = deque()

    def play(self) -> None:
        async def inside_a_loop() -> None:
            with suppress(RunnerFailed):
                self.loop._loop(self)  # type: ignore[arg-type]
            self.loop._die(EngineDead("over"))
            for reader in self.readers.values():
                while self._read(reader):
                    pass
                assert reader.end or reader.is_cancelled, f"{reader.number} waits for ever"

        asyncio.run(inside_a_loop())

    # -- the condition --------------------------------------------------------------------------------------------

    def __enter__(self) -> None:
        assert not self.is_locked
        self.is_locked = True

    def __exit__(self, *_: object) -> None:
        self.is_locked = False

    def notify(self) -> None: ...

    def wait(self, timeout: float | None = None) -> None:
        self.is_locked = False
        if self.coming:
            self._submit()
        elif True not in [self._read(reader) for reader in self._open() if reader.pace]:
            if timeout is None:
                self.loop._closing = True
            else:
                self.now += timeout
        self.is_locked = True

    # -- the readers ----------------------------------------------------------------------------------------------

    def _open(self) -> list[Reader]:
        return [reader for reader in self.readers.values() if reader.end is None and not reader.is_cancelled]

    def _meanwhile(self, seconds: float) -> None:
        """Others act while the runner computes; or it fails."""
        if self.is_locked:
            return
        chance = self.chance
        self.now += chance.random() * seconds + (chance.random() < 0.003) * chance.choice([3.0, 31.0])
        if self.fails and chance.random() < 0.003:
            raise RunnerFailed
        while self.coming and chance.random() < 0.35:
            self._submit()
        for reader in self._open():
            if chance.random() < 0.01:
                reader.is_cancelled = True
                self.scheduler.cancel(reader.sequence)
            elif chance.random() < reader.pace:
                self._read(reader)

    def _submit(self) -> None:
        chance, self.coming = self.chance, self.coming - 1
        steps, first = chance.choice([1, 3, 20, MOST_STEPS]), chance.choice([1, 4, 20])
        scheduling = SchedulingParams(chance.choice(list(Lane)), chance.choice("abc"), first_steps=first)
        sequence = Sequence(
            prompt=replace(make_prompt(chance.choice([5, 12, 17, 40, 64]), max_steps=steps), scheduling=scheduling),
            sampling=SamplingParams(),
            stream=StepStream(self.loop.block_was_read),
            width=WIDTH,
            max_steps=steps,
            deadline=self.now + chance.choice([0.5, 5.0, 1000.0]),
            submitted_at=self.now,
            blocks=chance.choice([(self.config.block_steps,), (1, self.config.block_steps)]),
            promised_at=self.now + chance.choice([0.2, 2.0, 30.0]) if chance.random() < 0.5 else None,
        )
        eos, breaks = chance.choice([NEVER, 0, 1, 5, 30]), chance.choice([*[NEVER] * 12, 0, 2, 7])
        reader = Reader(len(self.readers), sequence, eos, breaks, chance.choice([1.0, 1.0, 0.2, 0.02, 0.0]))
        self.readers[sequence] = reader
        try:
            self.scheduler.submit(
                sequence,
                admitted=chance.random() < 0.3,
                retry_after_s=self.loop.retry_after_s(),
                throughput=self.loop.throughput(),
            )
        except SynthesisError as refusal:
            sequence.stream.put(refusal)

    def _read(self, reader: Reader) -> bool:
        stream = reader.sequence.stream
        if not stream._items:
            return False
        item = stream._items.popleft()
        assert reader.end is None, "nothing follows the end"
        if not isinstance(item, StepBlock):
            reader.end = type(item).__name__
            return True
        assert item.first_step == reader.steps, "blocks join without a gap"
        count = len(item.codes)
        steps = np.arange(reader.steps, reader.steps + count)
        np.testing.assert_array_equal(item.codes[:, :2], np.stack([np.full(count, reader.number), steps], 1))
        reader.steps += count
        stream._read_steps += count
        if item.finish is not None:
            reader.end = item.finish.name
            assert reader.steps == reader.last, "all steps, and no more"
        return True

    # -- the runner -----------------------------------------------------------------------------------------------

    def prefill(self, sequences: tuple[Sequence, ...]) -> None:
        assert len({prefill_bucket(len(sequence.prompt.ids)) for sequence in sequences}) == 1
        for sequence in sequences:
            self._occupy(slot_of(sequence), (self.readers[sequence], 0))
        self._meanwhile(0.05)

    def launch(self, plan: Plan) -> None:
        self.scheduler.check()
        assert not {row for row, _ in plan.preempt} & set(plan.restore), "preempted and restored in one round"
        shape = self.config.steps_per_round, self.config.slots
        output = RoundOutput(
            np.zeros((*shape, WIDTH), np.float32), np.zeros((*shape, 4), np.int64), np.zeros(shape, bool),
            np.zeros(shape[1], bool), np.zeros(shape[1], bool),
        )  # fmt: skip
        for row in plan.decode:
            slot = slot_of(row)
            owner = self.owners[slot]
            assert owner is not None, "a slot that decodes has been filled"
            assert owner[0].sequence is row, "a slot's state is its owner's"
            self._decode(slot, *owner, output)
        self.in_flight.append((plan, output))
        self._meanwhile(0.03)

    def _decode(self, slot: int, reader: Reader, steps_made: int, output: RoundOutput) -> None:
        for step in range(self.config.steps_per_round):
            if steps_made >= reader.last:
                break
            output.tokens[step, slot, :2] = reader.number, steps_made
            output.emitted[step, slot] = True
            steps_made += 1
        else:
            self.owners[slot] = reader, steps_made
            return
        self.owners[slot] = reader, steps_made
        if steps_made == reader.breaks:
            output.broken[slot] = True
            self.dirty.add(slot)
        elif steps_made == reader.eos:
            output.ended[slot] = True

    def read(self) -> RoundOutput:
        self._meanwhile(0.0)
        return self.in_flight.popleft()[1]

    def preempt(self, slot: int, length: int) -> object:
        owner = self.owners[slot]
        assert owner is not None
        assert not any(owner[0].sequence in plan.decode for plan, _ in self.in_flight), "preempted in flight"
        self.owners[slot] = None
        self._meanwhile(0.01)
        return owner

    def restore(self, slot: int, preempted: tuple[Reader, int]) -> None:
        self._occupy(slot, preempted)
        self._meanwhile(0.01)

    def _occupy(self, slot: int, owner: tuple[Reader, int]) -> None:
        assert slot not in self.dirty, "a broken slot is zeroed before its next owner"
        self.owners[slot] = owner

    def reset_slot(self, slot: int) -> None:
        if self.fails and self.chance.random() < 0.3:
            raise RunnerFailed
        self.dirty.discard(slot)


@pytest.mark.parametrize(
    "lives",
    [
        range(30),
        pytest.param(range(30, 430), marks=pytest.mark.slow),
        pytest.param(None, marks=pytest.mark.nightly),  # new ones, for half an hour
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_any_history(fails, lives):
    for seed in new_seeds(90) if lives is None else lives:
        try:
            History(seed, fails=fails).play()
        except Exception as error:
            raise AssertionError(f"seed {seed}, fails={fails}") from error
