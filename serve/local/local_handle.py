"""Local handle: a stage in this process.

In:    calls of StageHandle
Out:   the answer of the stage, errors as the domain's own
Owns:  which stage a request goes on with
Never: Ray; a copy: whoever sends changes nothing afterwards, as across processes
"""

from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from pipeline.errors import EngineFault, SynthesisError
from serve.resilience.quarantine import CURRENT_REQUEST, TrackedRequest
from serve.stages.replica_table import ReplicaTable
from serve.stages.stage_handle import raised


class LocalHandle:
    """stages.stage_handle.StageHandle over one stage. Another may take its place: a request ends with the one it began with."""

    def __init__(self, stage: Any) -> None:
        self.stage = stage
        """takes the requests that begin now"""
        self.table = ReplicaTable()
        self._begun: WeakKeyDictionary[TrackedRequest, Any] = WeakKeyDictionary()
        self._calls: Counter[Any] = Counter()

    def is_used(self, stage: Any) -> bool:
        """True while a request that has begun with a stage goes on."""
        for request in [request for request in self._begun if request.has_ended]:
            del self._begun[request]
        return self._calls[stage] > 0 or any(begun is stage for begun in self._begun.values())

    @contextmanager
    def _call(self) -> Iterator[Any]:
        request = CURRENT_REQUEST.get()
        # Tasks inherit the request of the task that has started them.
        stage = self.stage if request is None or request.has_ended else self._begun.setdefault(request, self.stage)
        self._calls[stage] += 1
        try:
            yield stage
        finally:
            self._calls[stage] -= 1
            if not self._calls[stage]:
                del self._calls[stage]

    async def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """As StageHandle says."""
        with self._call() as stage:
            try:
                return raised(await getattr(stage, method)(*arguments, **named))
            except SynthesisError:
                raise
            except Exception as error:
                raise _fault(error) from error

    async def stream(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """As StageHandle says."""
        with self._call() as stage:
            async with aclosing(getattr(stage, method)(*arguments)) as items:
                try:
                    async for item in items:
                        yield raised(item)
                except SynthesisError:
                    raise
                except Exception as error:
                    raise _fault(error) from error

    async def ask_all(self, method: str) -> list[Any]:
        """As StageHandle says."""
        return [await getattr(self.stage, method)()]

    @property
    def is_asleep(self) -> bool:
        """As StageHandle says."""
        return False


def _fault(error: Exception) -> EngineFault:
    return EngineFault(f"a part of the service failed ({type(error).__name__})")
