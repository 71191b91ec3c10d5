r"""SingleFlight: one segment in progress, shared by all requests that need it.

In:    a stream of StepBlocks
Out:   the same blocks, to any number of listeners, each at its own pace, from the first block on
Owns:  the task that reads the stream, and the blocks it has read: at most the segment's step cap
Never: a listener that delays another one; a stream without listeners

    listener  listener  listener        a late listener gets all earlier blocks at once
        \         |         /
          blocks so far  <--- task <--- generator        the last listener to leave ends the task
"""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from pipeline.errors import SynthesisError
from pipeline.types import StepBlock


class SharedStream:
    """Reads a stream once, for any number of listeners."""

    def __init__(self, steps: AsyncGenerator[StepBlock, None], on_end: Callable[[], None]) -> None:
        """
        Args:
            on_end: called once, however the stream ends, before any listener gets its end.
        """
        self._blocks: list[StepBlock] = []
        self._error: Exception | None = None
        self._is_over = False
        self._listeners = 0
        self._changed = asyncio.Event()
        self._on_end = on_end
        self._task = asyncio.create_task(self._read(steps))

    async def listen(self) -> AsyncGenerator[StepBlock, None]:
        """Yields every block from the first one on. Closing the last listener's generator closes the stream and waits for it.

        Raises:
            the error that ended the stream, after the blocks before it.
        """
        self._listeners += 1
        try:
            position = 0
            while True:
                while position < len(self._blocks):
                    yield self._blocks[position]
                    position += 1
                if self._is_over:
                    break
                await self._changed.wait()
            if self._error is not None:
                # A copy per listener: raising adds to the error's traceback.
                raise copy.copy(self._error) if isinstance(self._error, SynthesisError) else self._error
        finally:
            self._listeners -= 1
            if self._listeners == 0 and not self._is_over:
                self._end()  # a stream that is being closed must not be joined
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self, steps: AsyncGenerator[StepBlock, None]) -> None:
        try:
            async with aclosing(steps):
                async for block in steps:
                    self._blocks.append(block)
                    self._wake_listeners()
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
