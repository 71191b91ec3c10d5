"""Stage clients: the protocols of the domain over the stages, wherever they run.

In:    protocol calls
Out:   the answer of a replica, or of the next one where the first has died
Owns:  the breaker of each stage
Never: Ray, business rules
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.capabilities import Capabilities
from pipeline.errors import AtCapacity, EngineDead, OtherBuild, SynthesisError, WorkerDied
from pipeline.text.frontend_client import FrontendClient, TextOperation
from pipeline.types import (
    DecodedAudio,
    DecoderTraits,
    Followed,
    HiddenWindow,
    Prompt,
    SamplingParams,
    SpeechPlan,
    StepBatch,
    StepBlock,
    SynthesisRequest,
)
from pipeline.voices.persons import Persons
from serve.config.model_versions import ONLY
from serve.observability.stage_timings import current_timings
from serve.observability.tracing import carried
from serve.resilience.circuit_breaker import Breaker
from serve.resilience.quarantine import CURRENT_REQUEST
from serve.stages.stage_handle import ReplicaDied, StageHandle
from serve.stages.taken_over import Segment

T = TypeVar("T")

BACK_OFF_S = 0.1  # before the second fail-over; each further one waits longer by that: the router may not know of the death yet


class StageFrontend(FrontendClient):
    """protocols.TextFrontend over TextNormalizer, for one version of the model."""

    def __init__(self, handle: StageHandle, breaker: Breaker | None = None, version: str = ONLY) -> None:
        self._handle = handle
        self._version = version
        self.breaker = breaker or Breaker("text")

    async def ask(self, operation: TextOperation, subject: SynthesisRequest | SpeechPlan, *arguments: object) -> Any:
        """Asks a replica of the text stage, and records the time of a plan."""
        began = time.perf_counter()
        answer = await _pure(
            self.breaker, lambda: self._handle.ask("ask", self._version, operation, subject, *arguments, trace=carried())
        )
        if isinstance(answer, SpeechPlan):
            current_timings().planned(len(answer.prompts), began)
        return answer


class StageGenerator:
    """protocols.CodeGenerator over AcousticModel."""

    def __init__(self, handle: StageHandle, breaker: Breaker | None = None) -> None:
        self._handle = handle
        self.breaker = breaker or Breaker("acoustic")

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        """Streams the steps of one segment, as protocols.CodeGenerator.

        If a replica dies, another one of the same build generates the same steps from the same prompt and seed, and those that
        were already yielded are left out: the segment goes on at the exact step and sample.
        """
        timings, started, deadline = current_timings(), time.perf_counter(), time.monotonic() + timeout_s
        segment, table = Segment(prompt), self._handle.table
        with self.breaker.watch() as call:
            while True:
                began = time.monotonic()
                arguments = segment.prompt(), sampling, deadline - began, admitted or segment.has_begun, carried()
                try:
                    async with aclosing(self._handle.stream("generate", *arguments, segment.route)) as blocks:
                        async for block in blocks:
                            if block.report is not None:
                                table.report(block.report)
                            rest = segment.rest_of(block)
                            call.gave_sign()
                            if not rest.is_empty:
                                segment.deliver(rest)
                                timings.generated(prompt, rest, started)
                                yield rest
                    return
                except AtCapacity as refusal:
                    if not segment.may_follow_refusal(refusal, table):
                        raise
                except OtherBuild as other:
                    if not segment.may_follow_other_build(other, table):
                        raise
                except SynthesisError as failure:
                    _record_death(failure, self.breaker.stage, began)
                    if not (segment.may_follow_death() and _may_try_again(failure)) or time.monotonic() >= deadline:
                        raise
                    self.breaker.retries += 1
                    segment.lose_replica()
                    await asyncio.sleep(BACK_OFF_S * (segment.deaths - 1))


class StageDecoder:
    """protocols.WaveDecoder over Vocoder. Results are pure functions of their arguments, so a second try is always allowed."""

    def __init__(self, handle: StageHandle, breaker: Breaker | None = None) -> None:
        self._handle = handle
        self.breaker = breaker or Breaker("vocoder")
        self._traits: DecoderTraits | None = None

    async def traits(self) -> DecoderTraits:
        """Returns the traits of the replicas; requested once, and again after a failure, when other replicas may answer."""
        if self._traits is None:
            self._traits = await self._answer(lambda: self._handle.ask("traits"))
        return self._traits

    async def decode(self, window: HiddenWindow) -> NDArray[np.float32]:
        """Returns the samples (m,) of a window, and records the time."""
        began = time.perf_counter()
        samples: NDArray[np.float32] = await self._answer(lambda: self._handle.ask("decode", window, carried()))
        current_timings().decoded(len(samples), began)
        return samples

    async def feed(self, batch: StepBatch) -> DecodedAudio:
        """Returns what the next steps of an utterance complete, and records the time."""
        began = time.perf_counter()
        decoded: DecodedAudio = await self._answer(lambda: self._handle.ask("feed", batch, carried()))
        current_timings().decoded(len(decoded.samples), began)
        return decoded

    async def _answer(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await _pure(self.breaker, call)
        except SynthesisError:
            self._traits = None
            raise


class StageFollower:
    """protocols.TextFollower over AcousticModel. Answers are pure functions of their arguments."""

    def __init__(self, handle: StageHandle, breaker: Breaker | None = None) -> None:
        self._handle = handle
        self.breaker = breaker or Breaker("acoustic")

    async def follow(
        self, prompt: Prompt, codes: NDArray[np.int64], tokens: tuple[int, int], *, ended: bool
    ) -> Followed | None:
        """Returns where the model looks in a prompt while it speaks; None: no head of the checkpoint follows the text."""
        followed: Followed | None = await _pure(self.breaker, lambda: self._handle.ask("follow", prompt, codes, tokens, ended))
        return followed


class StageEncoder:
    """protocols.RecordingEncoder over AcousticModel."""

    def __init__(self, handle: StageHandle, breaker: Breaker | None = None) -> None:
        self._handle = handle
        self.breaker = breaker or Breaker("acoustic")

    async def encode(self, samples: NDArray[np.float32]) -> NDArray[np.int64]:
        """Returns the codes (n, 4) of a recording (m,)."""
        codes: NDArray[np.int64] = await _pure(self.breaker, lambda: self._handle.ask("encode", samples))
        return codes


async def as_value(answer: Awaitable[T]) -> T | SynthesisError:
    """Returns the answer, or the domain error in its place, for the way back to the caller.

    Serve logs a traceback for every exception that leaves a replica: a refusal would cost more than the work it refuses.
    """
    try:
        return await answer
    except SynthesisError as error:
        return error


async def ask_speakers(handle: StageHandle) -> tuple[int, NDArray[np.float16] | None, Persons]:
    """Returns the width of the checkpoint's speaker embeddings, their statistics, their names; waits until it is loaded."""
    breaker = Breaker("acoustic")
    speakers: tuple[int, NDArray[np.float16] | None, Persons] = await _pure(breaker, lambda: handle.ask("speakers"))
    return speakers


async def ask_capabilities(handle: StageHandle) -> dict[str, Capabilities]:
    """Returns version id -> capabilities of its checkpoint; waits until a replica of the text stage has read them."""
    capabilities: dict[str, Capabilities] = await _pure(Breaker("text"), lambda: handle.ask("capabilities"))
    return capabilities


async def ask_fingerprint(handle: StageHandle) -> str:
    """Returns the fingerprint of the engine behind a handle (pipeline/engine/engine_fingerprint.py)."""
    fingerprint: str = await _pure(Breaker("acoustic"), lambda: handle.ask("fingerprint"))
    return fingerprint


async def await_replica(handle: StageHandle) -> None:
    """Returns once a replica answers. Meanwhile the call waits, which is what makes Serve start one."""
    await _pure(Breaker("any"), lambda: handle.ask("stats"))


async def ask_stats(handle: StageHandle) -> list[dict[str, Any]]:
    """Returns the stats of every replica behind the handle that answers in time."""
    return [answer for answer in await handle.ask_all("stats") if isinstance(answer, dict)]


async def _pure(breaker: Breaker, call: Callable[[], Awaitable[Any]]) -> Any:
    """Awaits a call without side effects, and repeats it once on another replica if the first one died."""
    with breaker.watch():
        for last in (False, True):
            began = time.monotonic()
            try:
                return await call()
            except SynthesisError as failure:
                _record_death(failure, breaker.stage, began)
                if last or not _may_try_again(failure):
                    raise
                breaker.retries += 1
    raise AssertionError("unreachable")


def _record_death(failure: SynthesisError, stage: str, began: float) -> None:
    """Records the death of a replica, or of its worker process, with the request it worked for, if the failure is one.

    The request was running there: requests that a dead replica had not accepted yet, Serve's router sends to another one.
    """
    tracked = CURRENT_REQUEST.get()
    if tracked is None:
        return
    if isinstance(failure, ReplicaDied):
        tracked.record_death(failure.replica, stage, began)
    elif isinstance(failure, WorkerDied) and failure.worker:
        tracked.record_death(failure.worker, stage, began)


def _may_try_again(failure: SynthesisError) -> bool:
    """True if another replica may be tried: one has died, and no record blames this request for it."""
    tracked = CURRENT_REQUEST.get()
    return isinstance(failure, EngineDead) and not (tracked is not None and tracked.is_poisonous)
