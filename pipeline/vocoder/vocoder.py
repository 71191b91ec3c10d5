"""Vocoder: decodes for many streams, one call after another.

In:    StepBatches or HiddenWindows, whichever its method takes, from any thread or event loop
Out:   DecodedAudio, or the samples of each window's body
Owns:  the method, the worker thread, the work that waits
Never: streams, the order of an utterance (pipeline/vocoder/stream.py keeps it)

The worker takes what is urgent, else what has waited longest, and whatever may join it, up to `rows`, and decodes that
in one call. It never waits for more: a lone piece is decoded at once.
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
import torch
from numpy.typing import NDArray

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import VocoderConfig
from pipeline.errors import AtCapacity, EngineDead
from pipeline.ewma import Ewma
from pipeline.model.out_of_memory import named_out_of_memory
from pipeline.types import DecodedAudio, DecoderTraits, HiddenWindow, StepBatch
from pipeline.vocoder.strategies import DecodeStrategy, Work, make_strategy

EWMA_WEIGHT = 0.2  # of the latest call in the mean call time
FIRST_GUESS_S = 0.1  # the mean call time before any call: only retry_after_s rests on it


@dataclass(frozen=True, slots=True)
class VocoderStats:
    """One look at the vocoder."""

    waiting: int
    """windows or feeds"""
    calls: int
    jobs: int
    """windows or feeds decoded so far; jobs / (calls * rows) is how full the calls were"""
    call_s: float
    """mean time of the latest calls [s]"""
    is_stateful: bool
    """every step is decoded once; otherwise in windows"""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    work: Work
    done: "Future[Any]" = field(default_factory=Future)


class Vocoder:
    """Implements protocols.WaveDecoder. Nothing is kept between calls but their timing."""

    def __init__(
        self,
        config: VocoderConfig,
        checkpoint: Checkpoint,
        *,
        clock: Callable[[], float] = time.monotonic,
        factory: Callable[[VocoderConfig, Checkpoint], DecodeStrategy] = make_strategy,
    ) -> None:
        self._config = config
        self._clock = clock
        self._changed = threading.Condition()  # guards everything below
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._call_began_s: float | None = None
        self._call_s = Ewma(EWMA_WEIGHT, FIRST_GUESS_S, is_guess=True)
        self._num_calls = 0
        self._num_jobs = 0
        self._ended: str | None = None  # why nothing is taken any more
        built: Future[DecodeStrategy] = Future()
        self._thread = threading.Thread(
            target=self._work, args=(lambda: factory(config, checkpoint), built), name="vocoder", daemon=True
        )
        with named_out_of_memory("the vocoder", "lower vocoder.rows, or give it more memory"):
            self._thread.start()
            self._method = built.result()

    async def traits(self) -> DecoderTraits:
        """What it takes, as this machine allows it."""
        return self._method.traits

    async def decode(self, window: HiddenWindow) -> NDArray[np.float32]:
        """The samples of the window's body. A window whose caller has been cancelled is not decoded.

        Raises:
            AtCapacity: `max_waiting` calls wait.
            EngineDead: the worker has ended, or ends before this window is decoded.
            EngineFault: the window has none of the configured shapes, or this vocoder takes none.
        """
        samples: NDArray[np.float32] = await self._done(window)
        return samples

    async def feed(self, batch: StepBatch) -> DecodedAudio:
        """The samples the next steps of an utterance complete. A feed whose caller has been cancelled is not decoded.

        Raises:
            AtCapacity: `max_waiting` calls wait.
            EngineDead: the worker has ended, or ends before this feed is decoded.
            EngineFault: what is carried is another network's, or this vocoder carries nothing.
        """
        decoded: DecodedAudio = await self._done(batch)
        return decoded

    def decode_batch(self, works: Sequence[Work]) -> list[Any]:
        """The answers to several pieces of work, in their order. Blocks; raises like `decode` and `feed`."""
        return [job.done.result() for job in self._submit(works)]

    def warm_up(self) -> None:
        """Run everything once, so that nothing is made while somebody waits."""
        for works in self._method.blanks():
            self.decode_batch(works)

    def check_health(self) -> None:
        """Return if the vocoder works.

        Raises:
            EngineDead: the worker has ended, or a call takes longer than `call_timeout_s`.
        """
        with self._changed:
            if self._ended is not None:
                raise EngineDead(self._ended)
            if not self._thread.is_alive():
                raise EngineDead("the vocoder's thread is gone")
            if self._call_began_s is not None:
                taken_s = self._clock() - self._call_began_s
                if taken_s > self._config.call_timeout_s:
                    raise EngineDead(
                        f"a vocoder call of {len(self._running)} jobs has taken {taken_s:.1f} s; "
                        f"the limit is {self._config.call_timeout_s:g} s (vocoder.call_timeout_s)"
                    )

    def stats(self) -> VocoderStats:
        """The numbers of this moment."""
        with self._changed:
            return VocoderStats(
                waiting=len(self._waiting),
                calls=self._num_calls,
                jobs=self._num_jobs,
                call_s=self._call_s.value,
                is_stateful=self._method.traits.is_stateful,
            )

    def close(self) -> None:
        """Refuse new work, fail the waiting ones, let the running call end. May be called twice."""
        self._end("the vocoder is closed")
        self._thread.join()

    async def _done(self, work: Work) -> Any:
        (job,) = self._submit([work])
        return await asyncio.wrap_future(job.done)

    def _submit(self, works: Sequence[Work]) -> list[_Job]:
        for work in works:
            self._method.check(work)
        jobs = [_Job(work) for work in works]
        with self._changed:
            if self._ended is not None:
                raise EngineDead(self._ended)
            waiting = len(self._waiting)
            # A batch larger than the waiting room may still enter when it is empty: it could never enter otherwise.
            if waiting and waiting + len(jobs) > self._config.max_waiting:
                raise AtCapacity(
                    f"{waiting} calls wait for the vocoder; the limit is {self._config.max_waiting} (vocoder.max_waiting)",
                    retry_after_s=self._call_s.value * math.ceil(waiting / self._method.rows),
                )
            self._waiting.extend(jobs)
            self._changed.notify()
        return jobs

    def _work(self, factory: Callable[[], DecodeStrategy], built: "Future[DecodeStrategy]") -> None:
        """The worker: build, then take, decode, deliver, until the end."""
        try:
            if self._config.threads is not None:
                torch.set_num_threads(self._config.threads)  # counts for the thread that calls it
            # Built on the thread that runs it: see pipeline/engine/loop.py on OpenMP's teams.
            method = factory()
        except Exception as error:
            built.set_exception(error)
            return
        built.set_result(method)
        try:
            with torch.inference_mode():
                while jobs := self._take():
                    self._deliver(jobs, method.run([job.work for job in jobs]))
        except BaseException as failure:
            # What a call is given was checked at the door, so a failure is the device's or ours: nothing to go on with.
            self._end(f"the vocoder's thread died of {type(failure).__name__}: {failure}")

    def _take(self) -> list[_Job]:
        """Wait for work; returns that of the next call, none at the end."""
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
        """The oldest urgent job, else the oldest, whose caller is still there, and the next ones that may join it."""
        # Sorting is stable: the urgent ones first, each kind by age.
        queue = deque(sorted(self._waiting, key=lambda job: not self._method.is_urgent(job.work)))
        jobs: list[_Job] = []
        while queue and len(jobs) < self._method.rows:
            job = queue.popleft()
            if jobs and not self._method.may_join(job.work, jobs[0].work):
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
        for job, own in zip(jobs, answers, strict=True):
            job.done.set_result(own)

    def _end(self, reason: str) -> None:
        """Take no more work; everyone who waits is told why."""
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
