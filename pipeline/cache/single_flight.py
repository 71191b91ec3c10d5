r"""Flights: one segment under way, for all who asked for it.

In:    a stream of StepBlocks
Out:   the same blocks, to any number of listeners, each at its own pace from the first block on
Owns:  the task that reads the stream, and what it has read: at most the segment's step cap
Never: a listener that holds up another one; a stream nobody listens to

    listener  listener  listener        who comes late hears what is made already, at once
        \         |         /
         blocks made so far  <--- task <--- generator        the last listener to leave ends the task
"""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from pipeline.errors import SynthesisError
from pipeline.types import StepBlock


class SharedStream:
    """Reads a stream once."""

    def __init__(self, steps: AsyncGenerator[StepBlock, None], over: Callable[[], None]) -> None:
        """
        Args:
            over: called once, however it ends, before anybody hears of the end.
        """
        self._blocks: list[StepBlock] = []
        self._error: Exception | None = None
        self._is_over = False
        self._listeners = 0
        self._news = asyncio.Event()
        self._over = over
        self._task = asyncio.create_task(self._read(steps))

    async def listen(self) -> AsyncGenerator[StepBlock, None]:
        """Every block from the first one on. Closing the last listener's generator closes the stream, and waits for it.

        Raises:
            whatever ended the stream, once the blocks before it are delivered.
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
                await self._news.wait()
            if self._error is not None:
                # One of its own for everybody: a traceback belongs to one reader.
                raise copy.copy(self._error) if isinstance(self._error, SynthesisError) else self._error
        finally:
            self._listeners -= 1
            if self._listeners == 0 and not self._is_over:
                self._end()  # nobody may join what is being closed
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self, steps: AsyncGenerator[StepBlock, None]) -> None:
        try:
            async with aclosing(steps):
                async for block in steps:
                    self._blocks.append(block)
                    self._ring()
        except Exception as error:
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._over()
        self._ring()

    def _ring(self) -> None:
        """Wake all who wait; they wait for the next bell afterwards."""
        news, self._news = self._news, asyncio.Event()
        news.set()
