"""Isolated front end: normalises texts in a child process, so that no text can block or crash a replica.

In:    the arguments of protocols.TextFrontend
Out:   its results; TextTooHard when a text took too much processor time, WorkerDied when the worker ended or hung
Owns:  one worker process (worker.py), started by the first call and again after it has ended
Never: two calls in the worker at a time; a retry (serve/stages/stage_clients.py decides that)

A text's limit is processor time, which the worker enforces itself, so a busy machine does not use it up. A limit of wall-clock
time is far above it: a worker that reaches that one hangs.
"""

import asyncio
import math
import pickle
import signal
import sys
import time
import uuid
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import EngineDead, SynthesisError, TextTooHard, WorkerDied
from pipeline.ewma import Ewma
from pipeline.text.frontend_client import FrontendClient, TextOperation
from pipeline.text.segment import SPOKEN, SegmentLimits
from pipeline.types import SpeechPlan, SynthesisRequest

PROJECT = Path(__file__).resolve().parents[3]
WORKER = "pipeline.text.isolation.worker"
FRAME = 4  # bytes of the length before each message

CPU_S_PER_1000_CHARS = 0.5  # of processor time, per 1000 characters or part of them: far more than any ordinary text takes
HANG_S = 4.0  # after that limit, until a worker without an answer counts as hung: it may have to wait for a core
START_S = 60.0  # longest start of a worker, until its first call
END_S = 1.0  # longest time between the failure of a worker's pipes and its exit code
SLOW_S = 2.0  # if an answer takes longer, the replica reports trouble
MOST_FAILURES = 3  # workers in a row without an answer: no longer the fault of a text
EWMA_WEIGHT = 0.2  # of the latest answer in the moving average

HEALTH = SynthesisRequest("health-check", "Are you there?", "health-check")


@dataclass(frozen=True, slots=True)
class TextStats:
    """State of a text worker at one moment."""

    waiting: int
    """calls that wait behind the present one"""
    asked_s: float
    """age of the present call; 0: there is none [s]"""
    answers: int
    """so far, health checks included"""
    read_s: float
    """moving average of the time of an answer [s]"""
    busy_s: float
    """spent on calls so far, without health checks: they must keep nothing awake [s]"""
    restarts: int
    """workers that ended or were ended, so far"""


class IsolatedFrontend(FrontendClient):
    """A front end in a child process. Every method also raises EngineDead if no worker can be started."""

    def __init__(self, checkpoint: Path, limits: SegmentLimits = SPOKEN, *, max_prompt: int, max_steps: int) -> None:
        """Takes the arguments of LocalTextFrontend; a checkpoint without a tokenizer fails at the first call."""
        self._arguments = pickle.dumps((checkpoint, limits, max_prompt, max_steps))
        self._turn = asyncio.Lock()  # one call at a time
        self._child: Process | None = None
        self._waiting = 0
        self._asked_at: float | None = None
        self._answers = 0
        self._read_s = Ewma(EWMA_WEIGHT, 0.0, is_guess=True)
        self._busy_s = 0.0
        self._is_checked = False  # it answers a health check, which is no work
        self._restarts = 0
        self._failures = 0  # workers in a row without an answer

    async def check_health(self) -> None:
        """Lets the worker normalise a few words, unless it is busy: then the limits of its call apply.

        Raises:
            EngineDead: the worker cannot be started, has died or hangs. The next call starts another one.
        """
        if not self._turn.locked():
            await self.read(HEALTH)
        elif self._failures >= MOST_FAILURES:
            raise EngineDead(f"the last {self._failures} text workers gave no answer")

    @property
    def trouble(self) -> str:
        """The reason why no answer can be expected now; empty if there is none."""
        if self._asked_at is not None and (asked_s := time.monotonic() - self._asked_at) > SLOW_S:
            return f"the text worker has not answered for {asked_s:.0f} s"
        if self._failures >= MOST_FAILURES:
            return f"the last {self._failures} text workers gave no answer"
        return ""

    def stats(self) -> TextStats:
        """Returns the state of the worker now."""
        asked_s = 0.0 if self._asked_at is None else time.monotonic() - self._asked_at
        busy_s = self._busy_s + (0.0 if self._is_checked else asked_s)
        return TextStats(self._waiting, asked_s, self._answers, self._read_s.value, busy_s, self._restarts)

    async def ask(self, operation: TextOperation, subject: SynthesisRequest | SpeechPlan, *arguments: object) -> Any:
        """Sends a call to the worker, in order of arrival, and returns its result."""
        limit_s = CPU_S_PER_1000_CHARS * max(1, math.ceil(_characters(subject) / 1000))
        question = pickle.dumps((limit_s, operation, (subject, *arguments)))
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        # A cancelled caller must not leave half an answer in the pipe: an answer that has begun is always read.
        self._is_checked = subject is HEALTH
        answering = asyncio.create_task(self._answer(question, limit_s))
        answering.add_done_callback(lambda _: self._turn.release())
        answer = await asyncio.shield(answering)
        if isinstance(answer, SynthesisError):
            raise answer
        return answer

    async def _answer(self, question: bytes, limit_s: float) -> Any:
        """Returns the worker's answer, or a SynthesisError in its place."""
        began = self._asked_at = time.monotonic()
        try:
            child = await self._worker()
            if child is None:
                return EngineDead("no text worker can be started; its error is in the log of the replica")
            try:
                async with asyncio.timeout(limit_s + HANG_S):
                    answer = await _exchange(child, question)
            except Exception as error:  # a pipe to a dead process fails otherwise on every event loop
                return await self._buried(child, error, limit_s)
            self._failures = 0
            self._answers += 1
            self._read_s.add(time.monotonic() - began)
            return answer
        finally:
            self._busy_s += 0.0 if self._is_checked else time.monotonic() - began
            self._asked_at = None

    async def _worker(self) -> Process | None:
        """Returns the living worker, or a new one that is ready; None when none can be started."""
        if self._child is not None and self._child.returncode is not None:
            self._forget()
        if self._child is None:
            command = (sys.executable, "-m", WORKER)
            try:
                child = await asyncio.create_subprocess_exec(*command, cwd=PROJECT, stdin=PIPE, stdout=PIPE)
            except OSError:
                self._failures += 1
                return None
            try:
                async with asyncio.timeout(START_S):
                    await _exchange(child, self._arguments)
            except Exception:
                self._failures += 1
                await _ended(child, hangs=True)
                return None
            self._child = child
        return self._child

    async def _buried(self, child: Process, error: Exception, limit_s: float) -> SynthesisError:
        """Ends a worker that gave no answer, and returns the error for its call."""
        self._forget()
        self._failures += 1
        code = await _ended(child, hangs=isinstance(error, TimeoutError))
        if code == -signal.SIGPROF:  # sent by the kernel: a library used up twice the text's processor time
            return TextTooHard(
                f"reading this text took more than twice its {limit_s:g} s of processor time: send it in smaller pieces",
                param="input",
            )
        if isinstance(error, TimeoutError):
            message = f"the text worker gave no answer in {limit_s + HANG_S:g} s and is replaced"
        else:
            message = f"the text worker ended (exit code {code}) and is replaced"
        return WorkerDied(message, worker=uuid.uuid4().hex)

    def _forget(self) -> None:
        self._child = None
        self._restarts += 1


def _characters(subject: SynthesisRequest | SpeechPlan) -> int:
    """Returns the length of the text that a request or a plan is about."""
    if isinstance(subject, SynthesisRequest):
        return len(subject.text)
    return sum(len(prompt.segment.text) for prompt in subject.prompts)


async def _exchange(child: Process, question: bytes) -> Any:
    """Sends one call and reads its answer."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(len(question).to_bytes(FRAME) + question)
    await child.stdin.drain()
    size = int.from_bytes(await child.stdout.readexactly(FRAME))
    return pickle.loads(await child.stdout.readexactly(size))  # noqa: S301  # written by our own child


async def _ended(child: Process, *, hangs: bool) -> int:
    """Ends a worker that has not ended by itself. Returns its exit code, the negative number of a signal.

    A worker whose pipes failed is already dying. It is awaited, because kill() would poll it first and so take its exit code
    from the event loop, which then reports a wrong one.
    """
    if not hangs:
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                return await child.wait()
    with suppress(ProcessLookupError):
        child.kill()
    return await child.wait()
