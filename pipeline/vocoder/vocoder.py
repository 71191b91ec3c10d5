"""Vocoder: decodes the windows of many streams, several in one call.

In:    HiddenWindows, from any thread or event loop
Out:   the samples of each window's body
Owns:  the network, the worker thread, the windows that wait
Never: streams, the order of an utterance (pipeline/vocoder/stream.py keeps it)

The worker takes the window that has waited longest and the next ones of its shape, up to `rows`, and decodes them
in one call. It never waits for more: a lone window is decoded at once.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.config import VocoderConfig
from pipeline.errors import AtCapacity, EngineDead, EngineFault
from pipeline.model.weights import Checkpoint
from pipeline.types import HiddenWindow
from pipeline.vocoder.network import Calls, build_calls
from pipeline.vocoder.windows import Schedule

EMA_WEIGHT = 0.2  # of the latest call in the mean call time
FIRST_GUESS_S = 0.1  # the mean call time before any call: only retry_after_s rests on it


@dataclass(frozen=True, slots=True)
class VocoderStats:
    """One look at the vocoder."""

    waiting: int
    """windows"""
    calls: int
    windows: int
    """decoded so far; windows / (calls * rows) is how full the calls were"""
    call_s: float
    """mean time of the latest calls [s]"""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    window: HiddenWindow
    done: "Future[NDArray[np.float32]]" = field(default_factory=Future)


class Vocoder:
    """Implements protocols.WindowDecoder. Nothing is kept between calls but their timing."""

    def __init__(
        self,
        config: VocoderConfig,
        checkpoint: Checkpoint,
        *,
        clock: Callable[[], float] = time.monotonic,
        build: Callable[[VocoderConfig, Checkpoint], Calls] = build_calls,
    ) -> None:
        self._config = config
        self._clock = clock
        self._shapes = Schedule(config.chunk_steps, config.look_ahead).shapes
        self._changed = threading.Condition()  # guards everything below
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._call_began_s: float | None = None
        self._call_s = FIRST_GUESS_S
        self._num_calls = 0
        self._num_windows = 0
        self._ended: str | None = None  # why no window is taken any more
        built: Future[Calls] = Future()
        self._thread = threading.Thread(
            target=self._work, args=(lambda: build(config, checkpoint), built), name="vocoder", daemon=True
        )
        self._thread.start()
        self._calls = built.result()

    async def decode(self, window: HiddenWindow) -> NDArray[np.float32]:
        """The samples of the window's body. A window whose caller has been cancelled is not decoded.

        Raises:
            AtCapacity: `max_waiting` windows wait.
            EngineDead: the worker has ended, or ends before this window is decoded.
            EngineFault: the window has none of the configured shapes.
        """
        (job,) = self._submit([window])
        return await asyncio.wrap_future(job.done)

    def decode_batch(self, windows: Sequence[HiddenWindow]) -> list[NDArray[np.float32]]:
        """The samples of several windows, of any shapes, in their order. Blocks; raises like `decode`."""
        return [job.done.result() for job in self._submit(windows)]

    def warm_up(self) -> None:
        """Run every shape once, on a GPU with every number of windows, so that nothing is recorded while somebody waits."""
        rows = self._config.rows
        counts = (
            [1] if self._config.device == "cpu" else sorted({min(1 << power, rows) for power in range(rows.bit_length() + 1)})
        )
        for count in counts:
            for steps, body in self._shapes:
                self.decode_batch([self._blank(steps, body)] * count)

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
                        f"a vocoder call of {len(self._running)} windows has taken {taken_s:.1f} s; "
                        f"the limit is {self._config.call_timeout_s:g} s (vocoder.call_timeout_s)"
                    )

    def stats(self) -> VocoderStats:
        """The numbers of this moment."""
        with self._changed:
            return VocoderStats(len(self._waiting), self._num_calls, self._num_windows, self._call_s)

    def close(self) -> None:
        """Refuse new windows, fail the waiting ones, let the running call end. May be called twice."""
        self._end("the vocoder is closed")
        self._thread.join()

    def _submit(self, windows: Sequence[HiddenWindow]) -> list[_Job]:
        for window in windows:
            self._check(window)
        jobs = [_Job(window) for window in windows]
        with self._changed:
            if self._ended is not None:
                raise EngineDead(self._ended)
            waiting = len(self._waiting)
            # A batch larger than the waiting room may still enter when it is empty: it could never enter otherwise.
            if waiting and waiting + len(jobs) > self._config.max_waiting:
                raise AtCapacity(
                    f"{waiting} windows wait for the vocoder; the limit is {self._config.max_waiting} (vocoder.max_waiting)",
                    retry_after_s=self._call_s * math.ceil(waiting / self._config.rows),
                )
            self._waiting.extend(jobs)
            self._changed.notify()
        return jobs

    def _check(self, window: HiddenWindow) -> None:
        """The worker must never fail on what it is given: one caller's mistake would end it for all."""
        steps, width = window.frames.shape
        body = range(self._config.look_ahead, steps - self._config.look_ahead + 1)
        if steps not in self._calls.by_steps or width != self._calls.width:
            raise EngineFault(
                f"a window is ({steps}, {width}); the vocoder takes {self._calls.width} numbers a step and windows of "
                f"{sorted(self._calls.by_steps)} steps: both sides need the same look_ahead, chunk_steps and use_decoder"
            )
        if window.body_start not in body or window.body_stop not in body or window.body_start > window.body_stop:
            raise EngineFault(
                f"a window's body is [{window.body_start}, {window.body_stop}); it must lie in [{body[0]}, {body[-1]})"
            )

    def _blank(self, steps: int, body: int) -> HiddenWindow:
        start = self._config.look_ahead
        return HiddenWindow(
            frames=np.zeros((steps, self._calls.width), np.float32),
            valid_start=0,
            valid_stop=steps,
            body_start=start,
            body_stop=start + body,
            is_last=False,
        )

    def _work(self, build: Callable[[], Calls], built: "Future[Calls]") -> None:
        """The worker: build, then take, decode, deliver, until the end."""
        try:
            if self._config.threads is not None:
                torch.set_num_threads(self._config.threads)  # counts for the thread that calls it
            # Built on the thread that runs it: see pipeline/engine/engine.py on OpenMP's teams.
            calls = build()
        except Exception as error:
            built.set_exception(error)
            return
        built.set_result(calls)
        try:
            with torch.inference_mode():
                while jobs := self._take():
                    samples = self._calls.by_steps[len(jobs[0].window.frames)]([job.window for job in jobs])
                    self._deliver(jobs, samples)
        except BaseException as failure:
            # What a call is given was checked at the door, so a failure is the device's or ours: nothing to go on with.
            self._end(f"the vocoder's thread died of {type(failure).__name__}: {failure}")

    def _take(self) -> list[_Job]:
        """Wait for windows; returns those of the next call, none at the end."""
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
        """The oldest waiting window whose caller is still there, and the next ones of its shape."""
        jobs: list[_Job] = []
        others: list[_Job] = []
        while self._waiting and len(jobs) < self._config.rows:
            job = self._waiting.popleft()
            if jobs and job.window.frames.shape != jobs[0].window.frames.shape:
                others.append(job)
            elif job.done.set_running_or_notify_cancel():
                jobs.append(job)
        self._waiting.extendleft(reversed(others))
        return jobs

    def _deliver(self, jobs: list[_Job], samples: list[NDArray[np.float32]]) -> None:
        with self._changed:
            assert self._call_began_s is not None
            taken_s = self._clock() - self._call_began_s
            self._call_s = taken_s if not self._num_calls else self._call_s + EMA_WEIGHT * (taken_s - self._call_s)
            self._num_calls += 1
            self._num_windows += len(jobs)
            self._running = []
            self._call_began_s = None
        for job, own in zip(jobs, samples, strict=True):
            job.done.set_result(own)

    def _end(self, reason: str) -> None:
        """Take no more windows; everyone who waits is told why."""
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
