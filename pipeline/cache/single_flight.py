r"""SingleFlight: one segment in progress, shared by all requests that need it.

In:    the work that makes its StepBlocks
Out:   the same blocks, to any number of listeners, each at its own pace, from the first block on
Owns:  the task of that work, and the blocks it has made: at most the segment's step cap
Never: a listener that delays another one; a stream without listeners

    listener  listener  listener        a late listener gets all earlier blocks at once
        \         |         /
          blocks so far  <--- task <--- generator        the last listener to leave ends the task
"""

import asyncio
import copy
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from pipeline.errors import SynthesisError
from pipeline.types import StepBlock


class SharedStream:
    """The blocks of one segment, made once, for any number of listeners."""

    def __init__(self, make: Callable[["SharedStream"], Awaitable[None]], on_end: Callable[[], None]) -> None:
        """
        Args:
            make: puts the blocks, and returns after the last one.
            on_end: called once, however the stream ends, before any listener gets its end.
        """
        self.blocks: list[StepBlock] = []
        self._error: Exception | None = None
        self._is_over = False
        self._listeners = 0
        self._changed = asyncio.Event()
        self._on_end = on_end
        self._task = asyncio.create_task(self._run(make))

    def put(self, block: StepBlock) -> None:
        """Gives every listener a further block."""
        self.blocks.append(block)
        self._wake_listeners()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None, None]:
        """Keeps the stream open. The end of the last listener's block ends the work that makes it, and waits for that."""
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1
            if self._listeners == 0 and not self._is_over:
                self._end()  # a stream that is being closed must not be joined
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)

    async def has(self, index: int) -> bool:
        """Returns True once there is a block of this index, and False if the stream ended before.

        Raises:
            the error that ended the stream.
        """
        while index >= len(self.blocks):
            if self._error is not None:
                # A copy per listener: raising adds to the error's traceback.
                raise copy.copy(self._error) if isinstance(self._error, SynthesisError) else self._error
            if self._is_over:
                return False
            await self._changed.wait()
        return True

    async def _run(self, make: Callable[["SharedStream"], Awaitable[None]]) -> None:
        try:
            await make(self)
        except Exception as error:
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_end()
        self._wake_listeners()

    def _wake_listeners(self) -> None:
        """Wakes all waiting listeners; afterwards they wait for a new event."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
