"""Stream: decodes the steps of one utterance to audio while they arrive.

In:    StepBlocks of one sequence, in order
Out:   AudioChunks, in order, first_sample counted from 0
Owns:  per utterance: the steps that are still needed, the decoder's state, the calls in flight, how far its listener has come
Never: torch, batching (the decoder's business), other utterances
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import EngineFault, NonFiniteOutput
from pipeline.protocols import WaveDecoder
from pipeline.spec import SAMPLE_RATE, SAMPLES_PER_STEP
from pipeline.types import AudioChunk, DecodedAudio, DecoderState, DecoderTraits, HiddenWindow, Latency, StepBatch, StepBlock
from pipeline.vocoder.early import EARLY, NOTHING, EarlySamples, EarlySchedule, Joiner
from pipeline.vocoder.incremental.feeding import Feeding
from pipeline.vocoder.windowed.windows import Schedule, Window

WINDOWS_IN_FLIGHT = 2  # one is decoded while the other is on its way; more would only use memory
EMPTY = AudioChunk(samples=NOTHING, first_sample=0, is_last=True)


class StreamDecoder:
    """Decodes utterances, in step batches or windows as the decoder requires. Keeps nothing between utterances."""

    def __init__(
        self, decoder: WaveDecoder, *, clock: Callable[[], float] = time.monotonic, ramp: Sequence[tuple[int, int]] = EARLY
    ) -> None:
        """
        Args:
            ramp: of a low latency, as EarlySchedule's.
        """
        self._decoder = decoder
        self._clock = clock
        self._ramp = tuple(ramp)

    async def decode(
        self, steps: AsyncIterator[StepBlock], *, latency: Latency = Latency.EXACT, skipped_chunk_sizes: int = 0
    ) -> AsyncGenerator[AudioChunk, None]:
        """Decodes one utterance, as `chunks` does."""
        traits = await self._decoder.traits()
        async with aclosing(self.chunks(steps, traits, latency=latency, skipped_chunk_sizes=skipped_chunk_sizes)) as chunks:
            async for audio in chunks:
                yield audio

    def chunks(
        self,
        steps: AsyncIterator[StepBlock],
        traits: DecoderTraits,
        *,
        latency: Latency = Latency.EXACT,
        skipped_chunk_sizes: int = 0,
    ) -> AsyncGenerator[AudioChunk, None]:
        """Returns the stream of one utterance's audio. An utterance of no steps gives one empty chunk.

        Args:
            traits: the decoder's.
            latency: low: the first chunks are decoded before all steps are known that they depend on (early.py).
            skipped_chunk_sizes: how many of the first chunk sizes are skipped; the last one never is.

        Closing the generator cancels every call that has not begun, and stops waiting for the next block.
        While the consumer takes no chunk, no further steps are read.

        Raises:
            NonFiniteOutput: a chunk has NaN or infinite samples; the chunks before it are valid.
            EngineFault: the steps ended without a finish reason, or are not consecutive.
            Whatever `steps` or the decoder raises, after the chunks before it.
        """
        traits = skip_chunk_sizes(traits, skipped_chunk_sizes)
        early = EarlySchedule(traits, self._ramp).without(skipped_chunk_sizes)
        if latency is Latency.LOW and traits.is_stateful:
            return self._early(steps, traits, early)
        if traits.is_stateful:
            return self._incremental(steps, traits)
        schedule = Schedule(traits.chunk_steps, traits.look_ahead)
        return self._windowed(steps, traits, early if latency is Latency.LOW else schedule)

    async def _incremental(self, steps: AsyncIterator[StepBlock], traits: DecoderTraits) -> AsyncGenerator[AudioChunk, None]:
        """Decodes every step once, in calls that pass the decoder's state on."""
        feeding = Feeding(traits.chunk_steps, traits.look_ahead)
        state: DecoderState | None = None
        listener = Listener(self._clock)
        fed = first_sample = 0
        pending: list[NDArray[np.float32]] = []  # samples that are delivered with the next chunk
        async with aclosing(_read(steps, traits)) as blocks:
            async for history, ended in blocks:
                for stop, ends_chunk in feeding.calls(fed, known=history.known, ended=ended):
                    is_last = ended and stop == history.known
                    rows = np.zeros((stop - fed, history.width), np.float32)
                    history.copy(fed, stop, rows)
                    decoded = await self._decoder.feed(StepBatch(rows, state, is_last, listener.lead_s(first_sample)))
                    state, fed = decoded.state, stop
                    history.forget(before=fed)
                    pending.append(decoded.samples)
                    if ends_chunk:
                        samples, pending = np.concatenate(pending), []
                        listener.begins()
                        yield chunk(samples, first_sample, is_last=is_last)
                        first_sample += len(samples)
        if fed == 0:
            yield EMPTY

    async def _early(
        self, steps: AsyncIterator[StepBlock], traits: DecoderTraits, schedule: EarlySchedule
    ) -> AsyncGenerator[AudioChunk, None]:
        """Decodes every step once, and the end of every early chunk as if the utterance ended with the steps it waits for."""
        stops = schedule.stops()
        due, chunk_due = next(stops)
        state: DecoderState | None = None
        output, listener = EarlySamples(), Listener(self._clock)
        fed, is_last = 0, False

        async def feed(rows: NDArray[np.float32], *, is_last: bool) -> DecodedAudio:
            return await self._decoder.feed(StepBatch(rows, state, is_last, listener.lead_s(output.sent_samples)))

        async with aclosing(_read(steps, traits)) as blocks:
            async for history, ended in blocks:
                while history.known and not is_last and (due <= history.known or ended):
                    stop, is_last = min(due, history.known), ended and due > history.known
                    rows = np.zeros((stop - fed, history.width), np.float32)
                    history.copy(fed, stop, rows)
                    decoded = await feed(rows, is_last=is_last)
                    state, fed = decoded.state, stop
                    history.forget(before=fed)
                    output.settle(decoded.samples)
                    first_sample = output.sent_samples
                    if is_last:
                        yield chunk(output.rest(), first_sample, is_last=True)
                    elif chunk_due is not None:
                        guessed = None if chunk_due.is_exact else (await feed(rows[:0], is_last=True)).samples
                        listener.begins()
                        samples = output.chunk_to(SAMPLES_PER_STEP * chunk_due.stop, guessed)
                        yield chunk(samples, first_sample, is_last=False)
                    due, chunk_due = next(stops)
        if fed == 0:
            yield EMPTY

    async def _windowed(
        self, steps: AsyncIterator[StepBlock], traits: DecoderTraits, schedule: Schedule | EarlySchedule
    ) -> AsyncGenerator[AudioChunk, None]:
        """Decodes chunks with their context, up to WINDOWS_IN_FLIGHT at the same time."""
        joiner = Joiner()
        in_flight: asyncio.Queue[tuple[Window, asyncio.Task[NDArray[np.float32]]] | None] = asyncio.Queue()
        free_calls = asyncio.Semaphore(WINDOWS_IN_FLIGHT)
        decoding: set[asyncio.Task[NDArray[np.float32]]] = set()
        listener = Listener(self._clock)

        async def read() -> int:
            """Starts every window as soon as its steps are known. Returns the number of windows."""
            try:
                index = 0
                async for history, ended in _read(steps, traits):
                    for window in schedule.ready(index, known=history.known, ended=ended):
                        await free_calls.acquire()
                        due = cut(window, history, lead_s=listener.lead_s(window.first_sample))
                        task = asyncio.create_task(self._decoder.decode(due))
                        decoding.add(task)
                        in_flight.put_nowait((window, task))
                        index = window.index + 1
                        history.forget(before=schedule.first_needed(index))
                return index
            finally:
                in_flight.put_nowait(None)

        reading = asyncio.create_task(read())
        try:
            while (entry := await in_flight.get()) is not None:
                window, task = entry
                samples = await task
                decoding.discard(task)
                free_calls.release()
                if len(samples) != window.num_samples:
                    raise EngineFault(f"the decoder returned {len(samples)} samples for a body of {window.num_samples}")
                listener.begins()
                own = len(samples) - SAMPLES_PER_STEP * window.blended
                yield chunk(joiner.join(samples[:own], samples[own:]), window.first_sample, is_last=window.is_last)
            if await reading == 0:
                yield EMPTY
        finally:
            unfinished = [reading, *decoding]
            for task_ in unfinished:
                task_.cancel()
            # Awaited, so that `steps` is not closed while a task still reads from it.
            await asyncio.gather(*unfinished, return_exceptions=True)


class Listener:
    """Somebody who plays an utterance from its first chunk on, without a pause."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_s: float | None = None

    def begins(self) -> None:
        """Starts playing, with the first chunk; later chunks change nothing."""
        if self._began_s is None:
            self._began_s = self._clock()

    def lead_s(self, sample: int) -> float:
        """Returns the time until this sample is due [s]; below 0 if it should have been played already."""
        played_s = 0.0 if self._began_s is None else self._clock() - self._began_s
        return sample / SAMPLE_RATE - played_s


async def _read(steps: AsyncIterator[StepBlock], traits: DecoderTraits) -> AsyncGenerator[tuple["History", bool], None]:
    """Yields after each block: the history, and whether the utterance has ended."""
    history, ended = History(), False
    async for block in steps:
        if ended:
            raise EngineFault(f"a block of steps at {block.first_step} arrived after the last one")
        history.append(block.first_step, block.hidden if traits.use_decoder else block.codes.astype(np.float32))
        ended = block.finish is not None
        yield history, ended
    if not ended:
        raise EngineFault(f"the steps stopped after {history.known} without a finish reason")


class History:
    """The latest steps of an utterance, in blocks; the oldest are dropped when no window needs them."""

    def __init__(self) -> None:
        self.known = 0
        """steps appended so far, dropped ones included"""
        self.width = 0
        """numbers per step; 0 before the first one"""
        self._blocks: deque[tuple[int, NDArray[np.float32]]] = deque()  # (first step, (n, width))

    def append(self, first_step: int, rows: NDArray[np.float32]) -> None:
        """Appends the next steps (n, width)."""
        if first_step != self.known:
            raise EngineFault(f"a block of steps begins at {first_step}; the next step is {self.known}")
        if len(rows):
            self._blocks.append((first_step, rows))
            self.known += len(rows)
            self.width = rows.shape[1]

    def forget(self, *, before: int) -> None:
        """Drops the blocks that end before a step."""
        while self._blocks and self._blocks[0][0] + len(self._blocks[0][1]) <= before:
            self._blocks.popleft()

    def copy(self, start: int, stop: int, into: NDArray[np.float32]) -> None:
        """Writes steps [start, stop) into the rows of `into`."""
        for first, rows in self._blocks:
            begin, end = max(start, first), min(stop, first + len(rows))
            if begin < end:
                into[begin - start : end - start] = rows[begin - first : end - first]


def cut(window: Window, history: History, *, lead_s: float = 0.0) -> HiddenWindow:
    """Returns the rows of a window, ready for the decoder. `lead_s`: as HiddenWindow's."""
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
        lead_s=lead_s,
    )


def chunk(samples: NDArray[np.float32], first_sample: int, *, is_last: bool) -> AudioChunk:
    """Returns samples as a chunk, checked.

    Raises:
        NonFiniteOutput: a sample is NaN or infinite.
    """
    if not np.isfinite(samples).all():
        steps = f"{first_sample // SAMPLES_PER_STEP} to {(first_sample + len(samples)) // SAMPLES_PER_STEP}"
        raise NonFiniteOutput(f"the vocoder returned NaN or infinity in steps {steps}")
    return AudioChunk(samples=samples, first_sample=first_sample, is_last=is_last)


def blocks_for(traits: DecoderTraits, latency: Latency = Latency.EXACT, skipped: int = 0) -> tuple[int, ...]:
    """Returns how many steps each decoder call needs, first call first; the last size repeats.

    Args:
        skipped: how many of the first chunk sizes are skipped.
    """
    traits = skip_chunk_sizes(traits, skipped)
    if latency is Latency.LOW:
        return EarlySchedule(traits).without(skipped).blocks
    return (Feeding if traits.is_stateful else Schedule)(traits.chunk_steps, traits.look_ahead).blocks


def first_steps(traits: DecoderTraits, latency: Latency = Latency.EXACT, skipped: int = 0) -> int:
    """Returns how many steps the vocoder needs for its first samples; `skipped` as for blocks_for."""
    traits = skip_chunk_sizes(traits, skipped)
    if latency is Latency.LOW:
        return EarlySchedule(traits).without(skipped).first_steps
    return traits.chunk_steps[0] + traits.look_ahead


def skip_chunk_sizes(traits: DecoderTraits, count: int) -> DecoderTraits:
    """Returns the traits without the first `count` chunk sizes. The last one always remains, so no new size appears."""
    return traits if not count else replace(traits, chunk_steps=traits.chunk_steps[min(count, len(traits.chunk_steps) - 1) :])
