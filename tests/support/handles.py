"""Deployment handles whose calls run in this process, for the adapters of serve/remote."""

from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any, cast

from pipeline.protocols import TextFrontend
from pipeline.text.frontend_client import TextOperation
from pipeline.types import StepBlock
from serve.remote.remote_handle import RemoteHandle


class Blocks:
    """The response of a streaming call."""

    def __init__(self, blocks: AsyncGenerator[StepBlock, None]) -> None:
        self._blocks = blocks

    def __aiter__(self) -> AsyncGenerator[StepBlock, None]:
        return self._blocks

    def cancel(self) -> None:
        return


def local_handle(**methods: Callable[..., object]) -> RemoteHandle:
    """A deployment handle whose calls run in this process."""
    handle = SimpleNamespace(**{name: SimpleNamespace(remote=method) for name, method in methods.items()})
    handle.options = lambda **options: handle
    return RemoteHandle(cast(Any, handle))


def text_handle(frontend: TextFrontend, **methods: Callable[..., object]) -> RemoteHandle:
    """A handle of TextNormalizer over this front end."""

    def ask(version: str, operation: TextOperation, *arguments: object, trace: str) -> object:
        return getattr(frontend, operation)(*arguments)

    return local_handle(ask=ask, **methods)


def with_least(handle: RemoteHandle, least: int) -> RemoteHandle:
    """The handle, as Serve keeps it up to date: its deployment has so many replicas at least."""
    scaling = SimpleNamespace(autoscaling_config=SimpleNamespace(min_replicas=least))
    cast(Any, handle._handle)._router = SimpleNamespace(_asyncio_router=SimpleNamespace(_metrics_manager=scaling))
    return handle
