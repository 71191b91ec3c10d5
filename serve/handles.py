"""Handles: Serve's deployment handles behind the protocols of the domain. The only file that says `.remote`.

In:    protocol calls
Out:   what the replica behind the handle answers, errors as the domain's own
Owns:  the configured handles
Never: business rules; a second try of anything that has been heard
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from pipeline.errors import AtCapacity, EngineDead, EngineFault, SynthesisError
from pipeline.text.guard import Refined
from pipeline.text.script import Script
from pipeline.types import HiddenWindow, Prompt, SamplingParams, SpeechPlan, StepBlock, SynthesisRequest, Voice

# Serve types a handle by the deployed class, which lives in another process and may load torch.
Handle = DeploymentHandle[Any]

T = TypeVar("T")

SERVE_ERRORS = (BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError)

ANSWER_TIMEOUT_S = 2.0  # a status question that takes longer is answered "no answer"


class RemoteFrontend:
    """protocols.TextFrontend over TextNormalizer."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def read(self, request: SynthesisRequest) -> Script:
        """See protocols.TextFrontend."""
        script: Script = await _pure(lambda: self._handle.read.remote(request))
        return script

    async def compare(self, plan: SpeechPlan, refined: list[NDArray[np.int64]]) -> list[Refined]:
        """See protocols.TextFrontend."""
        compared: list[Refined] = await _pure(lambda: self._handle.compare.remote(plan, refined))
        return compared

    async def plan(self, request: SynthesisRequest, voices: Mapping[str, Voice]) -> SpeechPlan:
        """See protocols.TextFrontend."""
        plan: SpeechPlan = await _pure(lambda: self._handle.plan.remote(request, voices))
        return plan

    async def replan(
        self, request: SynthesisRequest, voices: Mapping[str, Voice], plan: SpeechPlan, refined: list[NDArray[np.int64]]
    ) -> SpeechPlan:
        """See protocols.TextFrontend."""
        replanned: SpeechPlan = await _pure(lambda: self._handle.replan.remote(request, voices, plan, refined))
        return replanned


class RemoteGenerator:
    """protocols.CodeGenerator over AcousticModel."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle.options(stream=True)

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        """See protocols.CodeGenerator.

        A replica that dies before the first block is not the end: another one makes the same steps from the same prompt.
        """
        deadline = time.monotonic() + timeout_s
        for last in (False, True):
            blocks: Any = self._handle.generate.remote(prompt, sampling, deadline - time.monotonic(), admitted)
            begun = False
            try:
                async for block in blocks:
                    answer = raised(block)
                    begun = True
                    yield answer
                return
            except (RayError, SynthesisError, *SERVE_ERRORS) as error:
                failure = to_domain(error)
                if last or begun or not isinstance(failure, EngineDead):
                    raise failure from None
            finally:
                blocks.cancel()  # leaving the loop alone would let the replica's generator run to its end


class RemoteDecoder:
    """protocols.WindowDecoder over Vocoder."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def decode(self, window: HiddenWindow) -> NDArray[np.float32]:
        """See protocols.WindowDecoder."""
        samples: NDArray[np.float32] = await _pure(lambda: self._handle.decode.remote(window))
        return samples


class RemoteEncoder:
    """protocols.RecordingEncoder over AcousticModel."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def encode(self, samples: NDArray[np.float32]) -> NDArray[np.int64]:
        """See protocols.RecordingEncoder."""
        codes: NDArray[np.int64] = await _pure(lambda: self._handle.encode.remote(samples))
        return codes


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
    speakers: tuple[int, NDArray[np.float16] | None] = await _pure(lambda: handle.speakers.remote())
    return speakers


async def ask_stats(handle: Handle) -> list[dict[str, Any]]:
    """The stats of every replica behind the handle that answers in time."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answers = await handle.broadcast("stats").results_async(return_exceptions=True)
    except (TimeoutError, RayError, *SERVE_ERRORS):
        return []
    return [answer for answer in answers if isinstance(answer, dict)]


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


async def _pure(call: Callable[[], Awaitable[Any]]) -> Any:
    """Await a call without side effects; once more, on whatever replica is left, when the first one's process died."""
    for last in (False, True):
        response = call()
        try:
            return raised(await response)
        except (RayError, SynthesisError, *SERVE_ERRORS) as error:
            if last or not isinstance(error, RayActorError):
                raise to_domain(error) from None
        finally:
            cancel = getattr(response, "cancel", None)
            if cancel is not None:
                cancel()
    raise AssertionError("unreachable")
