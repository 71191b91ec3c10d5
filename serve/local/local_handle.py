"""Local handle: a stage in this process.

In:    calls of StageHandle
Out:   the answer of the stage, errors as the domain's own
Never: Ray; a copy: whoever sends changes nothing afterwards, as across processes
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pipeline.errors import EngineFault, SynthesisError
from serve.stages.stage_handle import raised


class LocalHandle:
    """stages.stage_handle.StageHandle over one stage, which is there as long as its callers are."""

    def __init__(self, stage: Any) -> None:
        self._stage = stage

    async def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """As StageHandle says."""
        try:
            return raised(await getattr(self._stage, method)(*arguments, **named))
        except SynthesisError:
            raise
        except Exception as error:
            raise _fault(error) from error

    async def stream(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """As StageHandle says."""
        async with aclosing(getattr(self._stage, method)(*arguments)) as items:
            try:
                async for item in items:
                    yield raised(item)
            except SynthesisError:
                raise
            except Exception as error:
                raise _fault(error) from error

    async def ask_all(self, method: str) -> list[Any]:
        """As StageHandle says."""
        return [await getattr(self._stage, method)()]

    def has_no_replica(self) -> bool:
        """As StageHandle says."""
        return False


def _fault(error: Exception) -> EngineFault:
    return EngineFault(f"a part of the service failed ({type(error).__name__})")
