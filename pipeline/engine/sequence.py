"""Sequence: one segment inside the engine, and the stream from which its reader takes the steps.

In:    a Prompt and its SamplingParams; the steps that the runner generates
Out:   StepBlocks, in order, to one reader
Owns:  the segment's progress, the steps not read yet
Never: other sequences' slots, tensors

A Sequence belongs to the engine: everything on it is read and written under the engine's lock. Both sides hold the
StepStream: the engine puts, an asyncio task reads.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, chain, repeat

import numpy as np
from numpy.typing import NDArray

from pipeline.spec import CODEBOOKS
from pipeline.types import Admission, FinishReason, Head, Lane, Prompt, SamplingParams, StepBlock


class StepStream:
    """A queue from the engine's thread to one asyncio reader, bounded by the engine's pausing."""

    def __init__(self, on_read: Callable[[], None]) -> None:
        """
        Args:
            on_read: called after every read, on the reader's thread: there is more room in the buffer.
        """
        self._loop = asyncio.get_running_loop()
        self._items: deque[StepBlock | Exception] = deque()
        self._arrived = asyncio.Event()
        self._on_read = on_read
        # Each count has one writer: the engine's thread the first, the reader's the second.
        self._put_steps = 0
        self._read_steps = 0

    @property
    def unread_steps(self) -> int:
        """Number of steps put and not yet read."""
        return self._put_steps - self._read_steps

    def put(self, item: StepBlock | Exception) -> None:
        """Appends an item; called on the engine's thread. An exception is the last item."""
        if isinstance(item, StepBlock):
            self._put_steps += len(item.codes)
        self._items.append(item)
        # A reader whose loop is closed will not read again; its deadline ends the sequence.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def get(self) -> StepBlock:
        """Waits for the next block and returns it; raises the error that ended the sequence, if one did."""
        while not self._items:
            self._arrived.clear()
            await self._arrived.wait()
        item = self._items.popleft()
        if isinstance(item, Exception):
            raise item
        self._read_steps += len(item.codes)
        self._on_read()
        return item


@dataclass(slots=True, eq=False)
class Sequence:
    """One segment in the engine. It waits while `slot` is None, before its first slot or preempted; otherwise it decodes."""

    prompt: Prompt
    sampling: SamplingParams
    stream: StepStream
    width: int
    """size of a hidden state"""
    max_steps: int
    deadline: float
    """when it must be finished [monotonic s]"""
    submitted_at: float
    """monotonic seconds"""
    blocks: tuple[int, ...] = (1,)
    """steps of its first block, its second, ...; the last size repeats"""
    scheduled_at: float | None = None
    """when it got its first slot [monotonic s]"""
    prefilled_at: float | None = None
    """when its first decode round began [monotonic s]"""
    first_block_at: float | None = None
    """when its reader got the first block [monotonic s]"""
    slot: int | None = None
    steps: int = 0
    """steps emitted so far"""
    promised_at: float | None = None
    """when its first audio is due; None if nothing is promised [monotonic s]"""
    rank: float = 0.0
    """its place among lanes: when it was submitted, delayed by its lane's patience [monotonic s]"""
    virtual_start: float = 0.0
    """when it starts in its lane's virtual time (waiting_queue.py) [steps]"""
    charged: float = 0.0
    """what its tenant has paid for it so far [steps]"""
    preempt_pending: bool = False
    """it decodes no more; a later plan preempts it"""
    last_planned: int = 0
    """number of the last plan it decoded in"""
    preempted_state: object = None
    """while it is preempted: its slot's whole state, as its runner keeps it"""
    cancelled: bool = False
    paused_since: float | None = None
    """since when its buffer is full and nothing is read; None while it runs [monotonic s]"""
    pending_at_pause: int = 0
    """unread steps when the scheduler last found the buffer full: fewer of them later mean that the reader is alive"""
    _hidden: list[NDArray[np.float32]] = field(default_factory=list)
    _codes: list[NDArray[np.int64]] = field(default_factory=list)
    _stops: Iterator[int] = field(init=False)  # steps after which a block is due
    _due: int = field(init=False)  # the next of them

    def __post_init__(self) -> None:
        self._stops = accumulate(chain(self.blocks, repeat(self.blocks[-1])))
        self._due = next(self._stops)

    @property
    def lane(self) -> Lane:
        """The priority class of its request."""
        return self.prompt.scheduling.lane

    @property
    def tenant(self) -> str:
        """The owner of its request: each tenant gets an equal share of its lane."""
        return self.prompt.scheduling.tenant

    @property
    def books(self) -> int:
        """Tokens per step: 1 or 4."""
        return 1 if self.prompt.head is Head.TEXT else CODEBOOKS

    @property
    def length(self) -> int:
        """KV positions written, or about to be."""
        return len(self.prompt.ids) + self.steps

    @property
    def pending_steps(self) -> int:
        """Steps generated and not read yet."""
        return self.stream.unread_steps + len(self._codes)

    def emit(self, hidden: NDArray[np.float32], codes: NDArray[np.int64]) -> None:
        """Appends one step: hidden (width,) float32, codes (4,) or (1,) int64."""
        self._hidden.append(hidden)
        self._codes.append(codes)
        self.steps += 1

    def flush(self, finish: FinishReason | None = None) -> None:
        """Puts the steps held back into the stream if they fill a block, or if the sequence ends with `finish`."""
        if self.steps < self._due and finish is None:
            return
        count = len(self._codes)
        self._due = next(stop for stop in self._stops if stop > self.steps)
        block = StepBlock(
            hidden=np.array(self._hidden, np.float32).reshape(count, self.width),
            codes=np.array(self._codes, np.int64).reshape(count, self.books),
            first_step=self.steps - count,
            finish=finish,
            admission=self._admission() if count == self.steps else None,
        )
        self._hidden.clear()
        self._codes.clear()
        self.stream.put(block)

    def _admission(self) -> Admission | None:
        if self.scheduled_at is None or self.prefilled_at is None:
            return None
        return Admission(self.scheduled_at - self.submitted_at, self.prefilled_at - self.scheduled_at)


def slot_of(sequence: Sequence) -> int:
    """Returns the slot of a sequence that has one."""
    assert sequence.slot is not None, "only scheduled sequences have a slot"
    return sequence.slot
