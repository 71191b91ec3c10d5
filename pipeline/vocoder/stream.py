"""Stream: the steps of one utterance, as they come, to its audio.

In:    StepBlocks of one sequence, in order
Out:   AudioChunks, in order, first_sample counted from 0
Owns:  per call: the steps later windows still need, and the windows in flight
Never: torch, batching (the decoder's business), other utterances
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

import numpy as np
from numpy.typing import NDArray

from pipeline.config import VocoderConfig
from pipeline.errors import EngineFault, NonFiniteOutput
from pipeline.protocols import WindowDecoder
from pipeline.types import AudioChunk, HiddenWindow, StepBlock
from pipeline.vocoder.windows import Schedule, Window

WINDOWS_IN_FLIGHT = 2  # one is decoded while the other travels; more would only hold memory


class StreamDecoder:
    """Cuts each utterance into windows and has them decoded. Keeps nothing between utterances."""

    def __init__(self, config: VocoderConfig, decoder: WindowDecoder) -> None:
        self._schedule = Schedule(config.chunk_steps, config.look_ahead)
        self._use_decoder = config.use_decoder
        self._decoder = decoder

    async def decode(self, steps: AsyncIterator[StepBlock]) -> AsyncGenerator[AudioChunk, None]:
        """Decode one utterance. An utterance of no steps gives one empty chunk.

        Closing the generator cancels every window that has not been decoded, and the wait for the next block.
        A reader that takes no chunk stops the reading of steps once two windows are in flight.

        Raises:
            NonFiniteOutput: a chunk has NaN or infinite samples; the chunks before it are good.
            EngineFault: the steps ended without a finish reason, or are not consecutive.
            Whatever `steps` or the decoder raises, once the chunks before it are delivered.
        """
        in_flight: asyncio.Queue[tuple[Window, asyncio.Task[NDArray[np.float32]]] | None] = asyncio.Queue()
        places = asyncio.Semaphore(WINDOWS_IN_FLIGHT)
        decoding: set[asyncio.Task[NDArray[np.float32]]] = set()

        async def read() -> int:
            """Start the windows as their steps come; returns how many steps there were."""
            try:
                history = History()
                index, ended = 0, False
                async for block in steps:
                    if ended:
                        raise EngineFault(f"a block of steps at {block.first_step} came after the last one")
                    history.append(block.first_step, self._rows(block))
                    ended = block.finish is not None
                    for window in self._schedule.ready(index, known=history.known, ended=ended):
                        await places.acquire()
                        task = asyncio.create_task(self._decoder.decode(cut(window, history)))
                        decoding.add(task)
                        in_flight.put_nowait((window, task))
                        index = window.index + 1
                        history.forget(before=self._schedule.body(index)[0] - self._schedule.look_ahead)
                if not ended:
                    raise EngineFault(f"the steps stopped after {history.known} without a finish reason")
                return history.known
            finally:
                in_flight.put_nowait(None)

        reading = asyncio.create_task(read())
        try:
            while (entry := await in_flight.get()) is not None:
                window, task = entry
                samples = await task
                decoding.discard(task)
                places.release()
                yield chunk(window, samples)
            if await reading == 0:
                yield AudioChunk(samples=np.zeros(0, np.float32), first_sample=0, is_last=True)
        finally:
            unfinished = [reading, *decoding]
            for task_ in unfinished:
                task_.cancel()
            # Waited for, so that nobody closes `steps` while its reader still runs in it.
            await asyncio.gather(*unfinished, return_exceptions=True)

    def _rows(self, block: StepBlock) -> NDArray[np.float32]:
        return block.hidden if self._use_decoder else block.codes.astype(np.float32)


class History:
    """The latest steps of an utterance: blocks of rows, the oldest forgotten once no window needs them."""

    def __init__(self) -> None:
        self.known = 0
        """steps appended so far, forgotten ones included"""
        self._blocks: deque[tuple[int, NDArray[np.float32]]] = deque()  # (first step, (n, width))

    def append(self, first_step: int, rows: NDArray[np.float32]) -> None:
        """Add the next steps."""
        if first_step != self.known:
            raise EngineFault(f"a block of steps begins at {first_step}; the next step is {self.known}")
        if len(rows):
            self._blocks.append((first_step, rows))
            self.known += len(rows)

    def forget(self, *, before: int) -> None:
        """Drop the blocks that lie wholly before a step."""
        while self._blocks and self._blocks[0][0] + len(self._blocks[0][1]) <= before:
            self._blocks.popleft()

    def copy(self, start: int, stop: int, into: NDArray[np.float32]) -> None:
        """Write steps [start, stop) into the rows of `into`."""
        for first, rows in self._blocks:
            begin, end = max(start, first), min(stop, first + len(rows))
            if begin < end:
                into[begin - start : end - start] = rows[begin - first : end - first]

    @property
    def held(self) -> int:
        """Steps in memory."""
        return sum(len(rows) for _, rows in self._blocks)

    @property
    def width(self) -> int:
        """Numbers a step."""
        return int(self._blocks[0][1].shape[1])


def cut(window: Window, history: History) -> HiddenWindow:
    """The window's rows, as a value that can travel."""
    frames = np.zeros((window.rows, history.width), np.float32)
    inside = slice(window.valid_start - window.first_step, window.valid_stop - window.first_step)
    history.copy(window.valid_start, window.valid_stop, frames[inside])
    return HiddenWindow(
        frames=frames,
        valid_start=inside.start,
        valid_stop=inside.stop,
        body_start=window.body_start - window.first_step,
        body_stop=window.body_stop - window.first_step,
        is_last=window.is_last,
    )


def chunk(window: Window, samples: NDArray[np.float32]) -> AudioChunk:
    """The window's audio, checked."""
    if samples.shape != (window.num_samples,):
        raise EngineFault(f"the decoder gave {samples.shape} samples for a body of {window.num_samples}")
    if not np.isfinite(samples).all():
        raise NonFiniteOutput(f"the vocoder gave NaN or infinity in steps {window.body_start} to {window.body_stop}")
    return AudioChunk(samples=samples, first_sample=window.first_sample, is_last=window.is_last)
