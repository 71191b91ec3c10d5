"""Handles: Serve's deployment handles behind the protocols of the domain. The only file that says `.remote`.

In:    protocol calls
Out:   what the replica behind the handle answers, errors as the domain's own
Owns:  the configured handles, a breaker for each
Never: business rules; a second try of anything that has been heard

A replica that dies is forgotten by Serve's router at the moment its death is noticed, so the second try lands on another one
wherever there is one. (A replica whose engine or vocoder has died ends its process for that reason:
serve/deployments/process_exit.py.)
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from pipeline.checkpoint.capabilities import Capabilities
from pipeline.errors import AtCapacity, EngineDead, EngineFault, SynthesisError, WorkerDied
from pipeline.text.frontend_client import FrontendClient, TextOperation
from pipeline.types import (
    DecodedAudio,
    DecoderTraits,
    HiddenWindow,
    Prompt,
    SamplingParams,
    SpeechPlan,
    StepBatch,
    StepBlock,
    SynthesisRequest,
)
from serve.config.model_versions import ONLY
from serve.config.policies import BreakerConfig
from serve.observability.stage_timings import current_timings
from serve.observability.tracing import carried
from serve.resilience.circuit_breaker import Breaker, Call
from serve.resilience.quarantine import CURRENT_REQUEST

# Serve types a handle by the deployed class, which lives in another process and may load torch.
Handle = DeploymentHandle[Any]

T = TypeVar("T")

SERVE_ERRORS = (BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError)

ANSWER_TIMEOUT_S = 2.0  # a status question that takes longer is answered "no answer"


class RemoteFrontend(FrontendClient):
    """protocols.TextFrontend over TextNormalizer, for one version of the model."""

    def __init__(self, handle: Handle, breaker: Breaker | None = None, version: str = ONLY) -> None:
        self._handle = handle
        self._version = version
        self.breaker = breaker or Breaker("text", BreakerConfig())

    async def ask(self, operation: TextOperation, subject: SynthesisRequest | SpeechPlan, *arguments: object) -> Any:
        """Asks a replica of the text stage, and records the time of a plan."""
        ask, began = self._handle.ask, time.perf_counter()
        answer = await _pure(self.breaker, lambda: ask.remote(self._version, operation, subject, *arguments, trace=carried()))
        if isinstance(answer, SpeechPlan):
            current_timings().planned(len(answer.prompts), began)
        return answer


class RemoteGenerator:
    """protocols.CodeGenerator over AcousticModel."""

    def __init__(self, handle: Handle, breaker: Breaker | None = None) -> None:
        self._handle = handle.options(stream=True)
        self.breaker = breaker or Breaker("acoustic", BreakerConfig())

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        """See protocols.CodeGenerator.

        A replica that dies is not the end: another one makes the same steps from the same prompt and seed, and what was
        handed on already is left out. Not once audio of the request has left: then only what had not begun is tried again.
        """
        timings, began = current_timings(), time.perf_counter()
        with self.breaker.watch() as call:
            tries = self._tries(prompt, sampling, time.monotonic() + timeout_s, admitted, call)
            async with aclosing(tries) as blocks:
                async for block in blocks:
                    timings.generated(prompt, block, began)
                    yield block

    async def _tries(
        self, prompt: Prompt, sampling: SamplingParams, deadline: float, admitted: bool, call: Call
    ) -> AsyncGenerator[StepBlock, None]:
        tracked, handed_on = CURRENT_REQUEST.get(), 0
        for last in (False, True):
            began = time.monotonic()
            blocks: Any = self._handle.generate.remote(prompt, sampling, deadline - time.monotonic(), admitted, carried())
            try:
                async for item in blocks:
                    block = unheard(raised(item), handed_on)
                    call.gave_sign()
                    if block is not None:
                        handed_on = block.first_step + len(block.hidden)
                        yield block
                return
            except (RayError, SynthesisError, *SERVE_ERRORS) as error:
                failure = to_domain(error)
                _tell_death(error, self.breaker.stage, began)
                begun_and_heard = handed_on > 0 and (tracked is None or tracked.has_sent_audio)
                if last or begun_and_heard or not _may_try_again(failure) or time.monotonic() >= deadline:
                    raise failure from None
                self.breaker.retries += 1
            finally:
                blocks.cancel()  # leaving the loop alone would let the replica's generator run to its end


class RemoteDecoder:
    """protocols.WaveDecoder over Vocoder. An answer is a pure function of what was asked: a second try is always the same."""

    def __init__(self, handle: Handle, breaker: Breaker | None = None) -> None:
        self._handle = handle
        self.breaker = breaker or Breaker("vocoder", BreakerConfig())
        self._traits: DecoderTraits | None = None

    async def traits(self) -> DecoderTraits:
        """See protocols.WaveDecoder. Asked once, and again after a failure: the replicas may be others by then."""
        if self._traits is None:
            self._traits = await self._answer(lambda: self._handle.traits.remote())
        return self._traits

    async def decode(self, window: HiddenWindow) -> NDArray[np.float32]:
        """See protocols.WaveDecoder."""
        began = time.perf_counter()
        samples: NDArray[np.float32] = await self._answer(lambda: self._handle.decode.remote(window, carried()))
        current_timings().decoded(len(samples), began)
        return samples

    async def feed(self, batch: StepBatch) -> DecodedAudio:
        """See protocols.WaveDecoder."""
        began = time.perf_counter()
        decoded: DecodedAudio = await self._answer(lambda: self._handle.feed.remote(batch, carried()))
        current_timings().decoded(len(decoded.samples), began)
        return decoded

    async def _answer(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await _pure(self.breaker, call)
        except SynthesisError:
            self._traits = None
            raise


class RemoteEncoder:
    """protocols.RecordingEncoder over AcousticModel."""

    def __init__(self, handle: Handle, breaker: Breaker | None = None) -> None:
        self._handle = handle
        self.breaker = breaker or Breaker("acoustic", BreakerConfig())

    async def encode(self, samples: NDArray[np.float32]) -> NDArray[np.int64]:
        """See protocols.RecordingEncoder."""
        codes: NDArray[np.int64] = await _pure(self.breaker, lambda: self._handle.encode.remote(samples))
        return codes


def unheard(block: StepBlock, handed_on: int) -> StepBlock | None:
    """The part of a block after the first `handed_on` steps of its sequence; None when there is nothing in it."""
    skipped = handed_on - block.first_step
    if skipped > 0 and skipped >= len(block.hidden) and block.finish is None:
        return None
    return block.after(handed_on)


async def as_value(answer: Awaitable[T]) -> T | SynthesisError:
    """The answer, or the domain error in its place, for the way back to the caller.

    Serve logs a traceback for every exception that leaves a replica: a refusal would cost more than the work it refuses.
    """
    try:
        return await answer
    except SynthesisError as error:
        return error


def raised(answer: Any) -> Any:
    """What came from behind a handle; an error that travelled as a value is raised again."""
    if isinstance(answer, SynthesisError):
        raise answer
    return answer


async def ask_speakers(handle: Handle) -> tuple[int, NDArray[np.float16] | None]:
    """Numbers in a speaker embedding of the loaded checkpoint, and its statistics; waits until a replica has loaded it."""
    breaker = Breaker("acoustic", BreakerConfig())
    speakers: tuple[int, NDArray[np.float16] | None] = await _pure(breaker, lambda: handle.speakers.remote())
    return speakers


async def ask_capabilities(handle: Handle) -> dict[str, Capabilities]:
    """Returns version id -> capabilities of its checkpoint; waits until a replica of the text stage has read them."""
    capabilities: dict[str, Capabilities] = await _pure(Breaker("text", BreakerConfig()), lambda: handle.capabilities.remote())
    return capabilities


async def ask_fingerprint(handle: Handle) -> str:
    """What makes the steps behind a handle; see pipeline/engine/fingerprint.py."""
    fingerprint: str = await _pure(Breaker("acoustic", BreakerConfig()), lambda: handle.fingerprint.remote())
    return fingerprint


async def ask_stats(handle: Handle) -> list[dict[str, Any]]:
    """The stats of every replica behind the handle that answers in time. One that hangs takes no other's answer with it."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            # `results_async` would wait for all of them, or for none.
            asked = await handle.broadcast("stats")._fetch_replica_results_async()
    except Exception:  # of whatever kind: there is no answer
        return []
    answers = await asyncio.gather(*map(_in_time, asked))
    return [answer for answer in answers if isinstance(answer, dict)]


async def _in_time(asked: Any) -> object:
    """One replica's answer, None when it gives none."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await asked.get_async()
    except Exception:
        asked.cancel()
        return None


def to_domain(error: BaseException) -> SynthesisError:
    """What an error from behind a handle means here."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        # The domain's error as it was raised; RayTaskError is a made-up subclass of it with a remote traceback.
        return to_domain(error.cause)
    match error:
        case SynthesisError():
            return error
        case BackPressureError():
            return AtCapacity("a part of the service is at its limit", retry_after_s=error.retry_after_s or 1.0)
        case RayActorError() | DeploymentUnavailableError() | ReplicaUnavailableError():
            return EngineDead("a part of the service has just failed and is being replaced")
        case TaskCancelledError():
            return EngineDead("a part of the service is being replaced")
        case _:
            return EngineFault(f"a part of the service failed ({type(error).__name__})")


async def _pure(breaker: Breaker, call: Callable[[], Awaitable[Any]]) -> Any:
    """Await a call without side effects; once more, on whatever replica is left, when the first one died."""
    with breaker.watch():
        for last in (False, True):
            began = time.monotonic()
            response = call()
            try:
                return raised(await response)
            except (RayError, SynthesisError, *SERVE_ERRORS) as error:
                failure = to_domain(error)
                _tell_death(error, breaker.stage, began)
                if last or not _may_try_again(failure):
                    raise failure from None
                breaker.retries += 1
            finally:
                cancel = getattr(response, "cancel", None)
                if cancel is not None:
                    cancel()
    raise AssertionError("unreachable")


def _tell_death(error: BaseException, stage: str, began: float) -> None:
    """Put a replica's death on record for the request it worked for, if the error is one.

    The request was inside: what a dead replica had not taken yet, Serve's router has sent to another one without a word.
    A replica's worker process counts as one.
    """
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    tracked = CURRENT_REQUEST.get()
    if tracked is None:
        return
    if isinstance(error, RayActorError) and error.actor_id is not None:
        tracked.record_death(error.actor_id, stage, began)
    elif isinstance(error, WorkerDied) and error.worker:
        tracked.record_death(error.worker, stage, began)


def _may_try_again(failure: SynthesisError) -> bool:
    """Whether another replica may be asked: one is gone, and not for this request's sake as far as anybody knows."""
    tracked = CURRENT_REQUEST.get()
    return isinstance(failure, EngineDead) and not (tracked is not None and tracked.is_poisonous)
