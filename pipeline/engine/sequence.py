"""Sequence: one segment's life inside the engine, and the stream its reader holds.

In:    a Prompt and its SamplingParams; steps as the runner makes them
Out:   StepBlocks, in order, to one reader
Owns:  how far the segment is, what was not read yet
Never: slots of others, tensors

A Sequence belongs to the engine: everything on it is read and written under the engine's lock. The StepStream is the
one thing both sides hold: the engine puts, an asyncio task reads.
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
            on_read: called after every read, on the reader's thread: room has become free.
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
        """Steps put and not yet read."""
        return self._put_steps - self._read_steps

    def put(self, item: StepBlock | Exception) -> None:
        """Hand an item over; called on the engine's thread. An exception is the last item."""
        if isinstance(item, StepBlock):
            self._put_steps += len(item.codes)
        self._items.append(item)
        # A reader whose loop is closed will not read again; its deadline ends the sequence.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def get(self) -> StepBlock:
        """The next block; raises what ended the sequence otherwise."""
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
    """One segment in the engine: waiting while `slot` is None (for the first time, or interrupted), then decoding."""

    prompt: Prompt
    sampling: SamplingParams
    stream: StepStream
    width: int
    """of a hidden state"""
    max_steps: int
    deadline: float
    """monotonic seconds"""
    submitted_at: float
    """monotonic seconds"""
    blocks: tuple[int, ...] = (1,)
    """steps of its first block, its second, ...; the last size repeats"""
    scheduled_at: float | None = None
    """when it got its first slot [monotonic s]"""
    prefilled_at: float | None = None
    """when its first decode round began [monotonic s]"""
    slot: int | None = None
    steps: int = 0
    """steps emitted so far"""
    promised_at: float | None = None
    """its first audio is there by then [monotonic s]"""
    virtual_start: float = 0.0
    """in its lane's virtual time (engine/line.py)"""
    must_yield: bool = False
    """it decodes no more until it has been parked"""
    last_planned: int = 0
    """number of the last plan it decoded in"""
    preempted_state: object = None
    """while it is interrupted: all its slot was, as its runner keeps it"""
    cancelled: bool = False
    paused_since: float | None = None
    """since when its buffer is full and nothing is read; None while it runs [monotonic s]"""
    pending_at_pause: int = 0
    """what was unread when the scheduler last found the buffer full: less of it later means that somebody reads"""
    _hidden: list[NDArray[np.float32]] = field(default_factory=list)
    _codes: list[NDArray[np.int64]] = field(default_factory=list)
    _stops: Iterator[int] = field(init=False)  # steps after which a block is due
    _due: int = field(init=False)  # the next of them

    def __post_init__(self) -> None:
        self._stops = accumulate(chain(self.blocks, repeat(self.blocks[-1])))
        self._due = next(self._stops)

    @property
    def lane(self) -> Lane:
        """How urgent it is."""
        return self.prompt.scheduling.lane

    @property
    def tenant(self) -> str:
        """Who shares with the others of its lane."""
        return self.prompt.scheduling.tenant

    @property
    def books(self) -> int:
        """Tokens a step."""
        return 1 if self.prompt.head is Head.TEXT else CODEBOOKS

    @property
    def length(self) -> int:
        """KV positions written or about to be."""
        return len(self.prompt.ids) + self.steps

    @property
    def pending_steps(self) -> int:
        """Steps made and not read by anybody yet."""
        return self.stream.unread_steps + len(self._codes)

    def emit(self, hidden: NDArray[np.float32], codes: NDArray[np.int64]) -> None:
        """Take one step: hidden (width,), codes (4,) or (1,)."""
        self._hidden.append(hidden)
        self._codes.append(codes)
        self.steps += 1

    def flush(self, finish: FinishReason | None = None) -> None:
        """Deliver the steps held back once a block is full, or the sequence has ended."""
        if self.steps < self._due and finish is None:
            return
        held = len(self._codes)
        self._due = next(stop for stop in self._stops if stop > self.steps)
        block = StepBlock(
            hidden=np.array(self._hidden, np.float32).reshape(held, self.width),
            codes=np.array(self._codes, np.int64).reshape(held, self.books),
            first_step=self.steps - held,
            finish=finish,
            admission=self._admission() if held == self.steps else None,
        )
        self._hidden.clear()
        self._codes.clear()
        self.stream.put(block)

    def _admission(self) -> Admission | None:
        if self.scheduled_at is None or self.prefilled_at is None:
            return None
        return Admission(self.scheduled_at - self.submitted_at, self.prefilled_at - self.scheduled_at)
