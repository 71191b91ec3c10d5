"""Vocoder: decodes for many streams, one call after another.

In:    StepBatches or HiddenWindows, whichever its strategy takes, from any thread or event loop
Out:   DecodedAudio, or the samples of each window's body
Owns:  the strategy, the worker thread, the waiting work
Never: streams, the order of an utterance (pipeline/vocoder/stream.py keeps it)

The worker takes the oldest urgent job, else the one whose listener needs it first, and up to `rows` jobs that may join it, and
decodes them in one call. It never waits for more: a single job is decoded at once.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import VocoderConfig
from pipeline.errors import AtCapacity, EngineDead
from pipeline.ewma import Ewma
from pipeline.model.gpu.placement import on_this_machine
from pipeline.model.out_of_memory import named_out_of_memory
from pipeline.types import DecodedAudio, DecoderTraits, HiddenWindow, StepBatch
from pipeline.vocoder.strategies import DecodeStrategy, Work, make_strategy

EWMA_WEIGHT = 0.2  # of the latest call in the mean call time
MAX_WAITING = 256  # calls; further ones are refused
CALL_TIMEOUT_S = 8.0  # after which a call counts as hung: some hundred times what one takes
MOST_LEAD_S = 2.0  # a reply that nobody plays yet waits no longer than this behind others that arrive later
FIRST_GUESS_S = 0.1  # the mean call time before any call: only retry_after_s depends on it


@dataclass(frozen=True, slots=True)
class VocoderStats:
    """The vocoder at one moment; counts are since start."""

    waiting: int
    """windows or step batches"""
    calls: int
    jobs: int
    """windows or step batches decoded so far; jobs / (calls * rows) is how full the calls were"""
    call_s: float
    """moving average of the time of a call [s]"""
    is_stateful: bool
    """every step is decoded once; otherwise in windows"""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    work: Work
    due_s: float
    """on the vocoder's clock: when its listener needs it [s]"""
    done: "Future[Any]" = field(default_factory=Future)


class Vocoder:
    """Implements protocols.WaveDecoder. Keeps nothing between calls but their timing."""

    def __init__(
        self,
        config: VocoderConfig,
        checkpoint: Checkpoint,
        *,
        clock: Callable[[], float] = time.monotonic,
        factory: Callable[[VocoderConfig, Checkpoint], DecodeStrategy] = make_strategy,
    ) -> None:
        config = on_this_machine(config)
        self._clock = clock
        self._changed = threading.Condition()  # guards everything below
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._call_began_s: float | None = None
        self._call_s = Ewma(EWMA_WEIGHT, FIRST_GUESS_S, is_guess=True)
        self._num_calls = 0
        self._num_jobs = 0
        self._ended: str | None = None  # why new work is refused
        built: Future[DecodeStrategy] = Future()
        self._thread = threading.Thread(
            target=self._work, args=(lambda: factory(config, checkpoint), built), name="vocoder", daemon=True
        )
        with named_out_of_memory("the vocoder", "lower vocoder.rows, or give it more memory"):
            self._thread.start()
            self._strategy = built.result()

    async def traits(self) -> DecoderTraits:
        """Returns the properties of the vocoder as built on this machine."""
        return self._strategy.traits

    async def decode(self, window: HiddenWindow) -> NDArray[np.float32]:
        """Returns the samples of a window's body. A window whose caller has been cancelled is not decoded.

        Raises:
            AtCapacity: `max_waiting` calls wait.
            EngineDead: the worker has ended, or ends before this window is decoded.
            EngineFault: the window has none of the configured shapes, or this vocoder takes none.
        """
        samples: NDArray[np.float32] = await self._done(window)
        return samples

    async def feed(self, batch: StepBatch) -> DecodedAudio:
        """Returns the samples that the next steps complete. A batch whose caller has been cancelled is not decoded.

        Raises:
            AtCapacity: `max_waiting` calls wait.
            EngineDead: the worker has ended, or ends before this batch is decoded.
            EngineFault: the state comes from another network, or this vocoder decodes windows.
        """
        decoded: DecodedAudio = await self._done(batch)
        return decoded

    def decode_batch(self, works: Sequence[Work]) -> list[Any]:
        """Returns the results of several windows or step batches, in order. Blocks; raises like `decode` and `feed`."""
        return [job.done.result() for job in self._submit(works)]

    def warm_up(self) -> None:
        """Runs every kind of call once, so that the first request finds buffers and graphs ready."""
        for works in self._strategy.blanks():
            self.decode_batch(works)

    def check_health(self) -> None:
        """Returns normally if the vocoder works.

        Raises:
            EngineDead: the worker has ended, or a call takes longer than CALL_TIMEOUT_S.
        """
        with self._changed:
            if self._ended is not None:
                raise EngineDead(self._ended)
            if not self._thread.is_alive():
                raise EngineDead("the vocoder's thread has ended")
            if self._call_began_s is not None:
                taken_s = self._clock() - self._call_began_s
                if taken_s > CALL_TIMEOUT_S:
                    raise EngineDead(
                        f"a vocoder call of {len(self._running)} jobs has taken {taken_s:.1f} s; "
                        f"the limit is {CALL_TIMEOUT_S:g} s"
                    )

    def stats(self) -> VocoderStats:
        """Returns the numbers of this moment."""
        with self._changed:
            return VocoderStats(
                waiting=len(self._waiting),
                calls=self._num_calls,
                jobs=self._num_jobs,
                call_s=self._call_s.value,
                is_stateful=self._strategy.traits.is_stateful,
            )

    def close(self) -> None:
        """Refuses new work, fails waiting work, lets the running call end. May be called twice."""
        self._end("the vocoder is closed")
        self._thread.join()

    async def _done(self, work: Work) -> Any:
        (job,) = self._submit([work])
        return await asyncio.wrap_future(job.done)

    def _submit(self, works: Sequence[Work]) -> list[_Job]:
        for work in works:
            self._strategy.check(work)
        now_s = self._clock()
        jobs = [_Job(work, now_s + min(max(work.lead_s, -MOST_LEAD_S), MOST_LEAD_S)) for work in works]
        with self._changed:
            if self._ended is not None:
                raise EngineDead(self._ended)
            waiting = len(self._waiting)
            # A batch larger than the waiting room may still enter when it is empty: it could never enter otherwise.
            if waiting and waiting + len(jobs) > MAX_WAITING:
                raise AtCapacity(
                    f"{waiting} calls wait for the vocoder; the limit is {MAX_WAITING}",
                    retry_after_s=self._call_s.value * math.ceil(waiting / self._strategy.rows),
                )
            self._waiting.extend(jobs)
            self._changed.notify()
        return jobs

    def _work(self, factory: Callable[[], DecodeStrategy], built: "Future[DecodeStrategy]") -> None:
        """The worker: builds the strategy, then takes, decodes and delivers work until the end."""
        try:
            # Built on the thread that runs it; pipeline/engine/loop.py says why.
            strategy = factory()
        except Exception as error:
            built.set_exception(error)
            return
        built.set_result(strategy)
        try:
            while jobs := self._take():
                self._deliver(jobs, strategy.run([job.work for job in jobs]))
        except BaseException as failure:
            # The input was checked on submission, so this is a fault of the device or of this code: do not go on.
            self._end(f"the vocoder's thread died of {type(failure).__name__}: {failure}")

    def _take(self) -> list[_Job]:
        """Waits for work. Returns the jobs of the next call; an empty list at the end."""
        with self._changed:
            while self._ended is None:
                jobs = self._pick()
                if jobs:
                    self._running = jobs
                    self._call_began_s = self._clock()
                    return jobs
                self._changed.wait()
            return []

    def _pick(self) -> list[_Job]:
        """Removes and returns the first urgent job, else the first due, and those that may join it; drops cancelled ones."""
        # The sort is stable: urgent jobs by age, then the others by when they are due.
        urgent = [job for job in self._waiting if self._strategy.is_urgent(job.work)]
        others = [job for job in self._waiting if not self._strategy.is_urgent(job.work)]
        queue = deque([*urgent, *sorted(others, key=lambda job: job.due_s)])
        jobs: list[_Job] = []
        while queue and len(jobs) < self._strategy.rows:
            job = queue.popleft()
            if jobs and not self._strategy.may_join(job.work, jobs[0].work):
                continue
            self._waiting.remove(job)
            if job.done.set_running_or_notify_cancel():
                jobs.append(job)
        return jobs

    def _deliver(self, jobs: list[_Job], answers: Sequence[Any]) -> None:
        with self._changed:
            assert self._call_began_s is not None
            taken_s = self._clock() - self._call_began_s
            self._call_s.add(taken_s)
            self._num_calls += 1
            self._num_jobs += len(jobs)
            self._running = []
            self._call_began_s = None
        for job, answer in zip(jobs, answers, strict=True):
            job.done.set_result(answer)

    def _end(self, reason: str) -> None:
        """Takes no more work and fails all waiting jobs with EngineDead(reason)."""
        with self._changed:
            self._ended = self._ended or reason
            abandoned, self._waiting = list(self._waiting), deque()
            if threading.current_thread() is self._thread:
                abandoned += self._running
                self._running, self._call_began_s = [], None
            self._changed.notify_all()
        for job in abandoned:
            if job.done.running() or job.done.set_running_or_notify_cancel():
                job.done.set_exception(EngineDead(self._ended))
