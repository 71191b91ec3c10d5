"""Remote handle: a stage behind Serve's deployment handle. The only file that calls `.remote`.

In:    calls of StageHandle
Out:   the answer of the replica behind the handle, errors as the domain's own
Never: a second try: serve/stages/stage_clients.py decides

Serve's router drops a replica as soon as its death is noticed, so a second call reaches another replica if there is one. (A
replica whose engine or vocoder has died ends its process for that reason: serve/stages/process_exit.py.)
"""

import asyncio
from collections.abc import AsyncGenerator
from functools import cached_property
from typing import Any

from ray.exceptions import RayActorError, RayError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from pipeline.errors import AtCapacity, EngineDead, EngineFault, SynthesisError
from serve.remote.ray_private import broadcast, may_sleep
from serve.stages.replica_table import ReplicaTable
from serve.stages.stage_handle import ReplicaDied, raised

SERVE_ERRORS = (BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError)

ANSWER_TIMEOUT_S = 2.0  # a replica that takes longer to report its state counts as one that does not answer


class RemoteHandle:
    """stages.stage_handle.StageHandle over a deployment handle.

    Serve types a handle by the deployed class, which lives in another process and may load torch. Its default is cloudpickle,
    which is written in Python and takes classes and functions that cannot be imported: all that is sent here can be. Where
    Serve sends references, Ray writes the messages in its own way, and the choice changes nothing.
    """

    def __init__(self, handle: DeploymentHandle[Any], table: ReplicaTable | None = None) -> None:
        """
        Args:
            table: the table that the deployment's router keeps; None: there is none.
        """
        self.table = table or ReplicaTable()
        self._handle = handle.options(request_serialization="pickle", response_serialization="pickle")

    @cached_property
    def _streaming(self) -> DeploymentHandle[Any]:
        return self._handle.options(stream=True)

    async def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """As StageHandle says."""
        response = getattr(self._handle, method).remote(*arguments, **named)
        try:
            return raised(await response)
        except (RayError, SynthesisError, *SERVE_ERRORS) as error:
            raise to_domain(error) from None
        finally:
            cancel = getattr(response, "cancel", None)
            if cancel is not None:
                cancel()

    async def stream(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """As StageHandle says."""
        items: Any = getattr(self._streaming, method).remote(*arguments)
        try:
            async for item in items:
                yield raised(item)
        except (RayError, SynthesisError, *SERVE_ERRORS) as error:
            raise to_domain(error) from None
        finally:
            items.cancel()  # leaving the loop alone would let the replica's generator run to its end

    async def ask_all(self, method: str) -> list[Any]:
        """As StageHandle says."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                results = await broadcast(self._handle, method)
        except Exception:  # whatever its kind, there is no answer
            return []
        answers = await asyncio.gather(*map(_in_time, results))
        return [answer for answer in answers if answer is not None]

    @property
    def is_asleep(self) -> bool:
        """As StageHandle says."""
        return self.table.is_empty and may_sleep(self._handle)


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
        case RayActorError() if error.actor_id is not None:
            return ReplicaDied("a part of the service has just failed and is being replaced", replica=error.actor_id)
        case RayActorError() | DeploymentUnavailableError() | ReplicaUnavailableError():
            return EngineDead("a part of the service has just failed and is being replaced")
        case TaskCancelledError():
            return EngineDead("a part of the service is being replaced")
        case _:
            return EngineFault(f"a part of the service failed ({type(error).__name__})")
