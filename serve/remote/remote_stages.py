"""Remote stages: the protocols of the domain over Serve's deployment handles. The only file that calls `.remote`.

In:    protocol calls
Out:   the answer of the replica behind the handle, errors as the domain's own
Owns:  the configured handles, the breaker of each
Never: business rules

Serve's router drops a replica as soon as its death is noticed, so the second try reaches another replica if there is one. (A
replica whose engine or vocoder has died ends its process for that reason: serve/deployments/process_exit.py.)
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import count
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from pipeline.checkpoint.capabilities import Capabilities
from pipeline.errors import AtCapacity, EngineDead, EngineFault, OtherBuild, SynthesisError, WorkerDied
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
from serve.config.model_versions import ONLY
from serve.observability.stage_timings import current_timings
from serve.observability.tracing import carried
from serve.remote.ray_private import broadcast
from serve.remote.taken_over import Segment
from serve.resilience.circuit_breaker import Breaker
from serve.resilience.quarantine import CURRENT_REQUEST

# Serve types a handle by the deployed class, which lives in another process and may load torch.
Handle = DeploymentHandle[Any]

T = TypeVar("T")

SERVE_ERRORS = (BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError)

BACK_OFF_S = 0.1  # before the second fail-over; each further one waits longer by that: the router may not know of the death yet
ANSWER_TIMEOUT_S = 2.0  # a replica that takes longer to report its state counts as one that does not answer


def plainly_pickled(handle: Handle) -> Handle:
    """Returns a handle whose messages Python's own pickle writes, where Serve sends values.

    Serve's default is cloudpickle, which is written in Python and takes classes and functions that cannot be imported: all that
    is sent here can be. Where Serve sends references, Ray writes the messages in its own way, and this changes nothing.
    """
    return handle.options(request_serialization="pickle", response_serialization="pickle")


class RemoteFrontend(FrontendClient):
    """protocols.TextFrontend over TextNormalizer, for one version of the model."""

    def __init__(self, handle: Handle, breaker: Breaker | None = None, version: str = ONLY) -> None:
        self._handle = handle
        self._version = version
        self.breaker = breaker or Breaker("text")

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
        self._generate = handle.options(stream=True).generate
        self.breaker = breaker or Breaker("acoustic")

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        """Streams the steps of one segment, as protocols.CodeGenerator.

        If a replica dies, another one of the same build generates the same steps from the same prompt and seed, and those that
        were already yielded are left out: the segment goes on at the exact step and sample.
        """
        timings, started, deadline = current_timings(), time.perf_counter(), time.monotonic() + timeout_s
        segment = Segment(prompt)
        with self.breaker.watch() as call:
            for tries in count(1):
                began = time.monotonic()
                blocks: Any = self._generate.remote(
                    segment.prompt(), sampling, deadline - began, admitted or segment.has_begun, carried()
                )
                try:
                    async for item in blocks:
                        rest = segment.rest_of(raised(item))
                        call.gave_sign()
                        if not rest.is_empty:
                            segment.deliver(rest)
                            timings.generated(prompt, rest, started)
                            yield rest
                    return
                except (RayError, SynthesisError, *SERVE_ERRORS) as error:
                    failure = to_domain(error)
                    _record_death(error, self.breaker.stage, began)
                    if tries >= segment.most_tries or not _may_try_again(failure) or time.monotonic() >= deadline:
                        raise failure from None
                    self.breaker.retries += 1
                    segment.lose_replica()
                finally:
                    blocks.cancel()  # leaving the loop alone would let the replica's generator run to its end
                await asyncio.sleep(BACK_OFF_S * (tries - 1))


class RemoteDecoder:
    """protocols.WaveDecoder over Vocoder. Results are pure functions of their arguments, so a second try is always allowed."""

    def __init__(self, handle: Handle, breaker: Breaker | None = None) -> None:
        self._handle = handle
        self.breaker = breaker or Breaker("vocoder")
        self._traits: DecoderTraits | None = None

    async def traits(self) -> DecoderTraits:
        """Returns the traits of the replicas; requested once, and again after a failure, when other replicas may answer."""
        if self._traits is None:
            self._traits = await self._answer(lambda: self._handle.traits.remote())
        return self._traits

    async def decode(self, window: HiddenWindow) -> NDArray[np.float32]:
        """Returns the samples (m,) of a window, and records the time."""
        began = time.perf_counter()
        samples: NDArray[np.float32] = await self._answer(lambda: self._handle.decode.remote(window, carried()))
        current_timings().decoded(len(samples), began)
        return samples

    async def feed(self, batch: StepBatch) -> DecodedAudio:
        """Returns what the next steps of an utterance complete, and records the time."""
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


class RemoteFollower:
    """protocols.TextFollower over AcousticModel. Answers are pure functions of their arguments."""

    def __init__(self, handle: Handle, breaker: Breaker | None = None) -> None:
        self._handle = handle
        self.breaker = breaker or Breaker("acoustic")

    async def follow(
        self, prompt: Prompt, codes: NDArray[np.int64], tokens: tuple[int, int], *, ended: bool
    ) -> Followed | None:
        """Returns where the model looks in a prompt while it speaks; None: no head of the checkpoint follows the text."""
        followed: Followed | None = await _pure(self.breaker, lambda: self._handle.follow.remote(prompt, codes, tokens, ended))
        return followed


class RemoteEncoder:
    """protocols.RecordingEncoder over AcousticModel."""

    def __init__(self, handle: Handle, breaker: Breaker | None = None) -> None:
        self._handle = handle
        self.breaker = breaker or Breaker("acoustic")

    async def encode(self, samples: NDArray[np.float32]) -> NDArray[np.int64]:
        """Returns the codes (n, 4) of a recording (m,)."""
        codes: NDArray[np.int64] = await _pure(self.breaker, lambda: self._handle.encode.remote(samples))
        return codes


async def as_value(answer: Awaitable[T]) -> T | SynthesisError:
    """Returns the answer, or the domain error in its place, for the way back to the caller.

    Serve logs a traceback for every exception that leaves a replica: a refusal would cost more than the work it refuses.
    """
    try:
        return await answer
    except SynthesisError as error:
        return error


def raised(answer: Any) -> Any:
    """Returns an answer from behind a handle; raises it if it is an error that travelled as a value."""
    if isinstance(answer, SynthesisError):
        raise answer
    return answer


async def ask_speakers(handle: Handle) -> tuple[int, NDArray[np.float16] | None, str]:
    """Returns the width of the checkpoint's speaker embeddings, their statistics, its hash; waits until it is loaded."""
    breaker = Breaker("acoustic")
    speakers: tuple[int, NDArray[np.float16] | None, str] = await _pure(breaker, lambda: handle.speakers.remote())
    return speakers


async def ask_capabilities(handle: Handle) -> dict[str, Capabilities]:
    """Returns version id -> capabilities of its checkpoint; waits until a replica of the text stage has read them."""
    capabilities: dict[str, Capabilities] = await _pure(Breaker("text"), lambda: handle.capabilities.remote())
    return capabilities


async def ask_fingerprint(handle: Handle) -> str:
    """Returns the fingerprint of the engine behind a handle (pipeline/engine/engine_fingerprint.py)."""
    fingerprint: str = await _pure(Breaker("acoustic"), lambda: handle.fingerprint.remote())
    return fingerprint


async def await_replica(handle: Handle) -> None:
    """Returns once a replica answers. Meanwhile the call waits in Serve's router, which is what makes Serve start one."""
    await _pure(Breaker("any"), lambda: handle.stats.remote())


async def ask_stats(handle: Handle) -> list[dict[str, Any]]:
    """Returns the stats of every replica behind the handle that answers in time; one that hangs does not hide the others."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            results = await broadcast(handle, "stats")
    except Exception:  # whatever its kind, there is no answer
        return []
    answers = await asyncio.gather(*map(_in_time, results))
    return [answer for answer in answers if isinstance(answer, dict)]


async def _in_time(result: Any) -> object:
    """Returns one replica's answer; None if there is none."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await result.get_async()
    except Exception:
        result.cancel()
        return None


def to_domain(error: BaseException) -> SynthesisError:
    """Returns the domain error that an error from behind a handle stands for."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        # The cause is the domain's error; RayTaskError is a subclass of it that Ray generates to add a remote traceback.
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
    """Awaits a call without side effects, and repeats it once on another replica if the first one died."""
    with breaker.watch():
        for last in (False, True):
            began = time.monotonic()
            response = call()
            try:
                return raised(await response)
            except (RayError, SynthesisError, *SERVE_ERRORS) as error:
                failure = to_domain(error)
                _record_death(error, breaker.stage, began)
                if last or not _may_try_again(failure):
                    raise failure from None
                breaker.retries += 1
            finally:
                cancel = getattr(response, "cancel", None)
                if cancel is not None:
                    cancel()
    raise AssertionError("unreachable")


def _record_death(error: BaseException, stage: str, began: float) -> None:
    """Records the death of a replica, or of its worker process, with the request it worked for, if the error is one.

    The request was running there: requests that a dead replica had not accepted yet, Serve's router sends to another one.
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
    """True if another replica may be tried: one has died, and no record blames this request for it."""
    tracked = CURRENT_REQUEST.get()
    return (
        type(failure) is not OtherBuild
        and isinstance(failure, EngineDead)
        and not (tracked is not None and tracked.is_poisonous)
    )
