"""Turns of a conversation through one of Pipecat's services, in a pipeline as an agent has it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from pipecat.frames.frames import (
    ErrorFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner

TEXT = "So this is the first sentence. And here is the second one."
IDLE_S = 6.0  # of the server that closes silent sockets; sockets that live less than 5 s are failures for Pipecat
ENDLESS = "An endless sentence."  # the server speaks every text that begins so until it is interrupted

Result = dict[str, Any]


class Sink(FrameProcessor):
    """Counts what comes out of a service."""

    def __init__(self) -> None:
        super().__init__()
        self.audio = 0
        self.stopped = 0
        self.moved = asyncio.Event()

    async def process_frame(self, frame: Any, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.audio += len(frame.audio) if isinstance(frame, TTSAudioRawFrame) else 0
        self.stopped += isinstance(frame, TTSStoppedFrame)
        self.moved.set()
        await self.push_frame(frame, direction)


class Errors(FrameProcessor):
    """Keeps the errors that a service reports."""

    def __init__(self, moved: asyncio.Event) -> None:
        super().__init__()
        self.errors: list[str] = []
        self._moved = moved

    async def process_frame(self, frame: Any, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, ErrorFrame):
            self.errors.append(str(frame.error))
            self._moved.set()
        await self.push_frame(frame, direction)


async def pipecat(service: Any, script: Callable[[Any, Sink, Errors], Awaitable[Result]]) -> Result:
    sink = Sink()
    errors = Errors(sink.moved)
    worker = PipelineWorker(
        Pipeline([errors, service, sink]),
        cancel_on_idle_timeout=False,
        enable_rtvi=False,
        params=PipelineParams(audio_out_sample_rate=24_000),
    )
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    try:
        return await script(worker, sink, errors)
    finally:
        await worker.cancel()
        with suppress(Exception, asyncio.CancelledError):
            await asyncio.wait_for(running, 20)


async def until(sink: Any, is_so: Callable[[], bool], limit_s: float = 30) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not is_so():
                sink.moved.clear()
                await sink.moved.wait()
    return is_so()


async def pipecat_talk(worker: Any, sink: Sink, errors: Errors) -> Result:
    """A turn word by word, then an endless one that is interrupted, then another turn."""
    await worker.queue_frames([LLMFullResponseStartFrame(), *(LLMTextFrame(f"{word} ") for word in TEXT.split(" "))])
    await worker.queue_frame(LLMFullResponseEndFrame())
    whole = await until(sink, lambda: sink.stopped == 1)
    first = sink.audio
    await worker.queue_frame(TTSSpeakFrame(ENDLESS))
    began = await until(sink, lambda: sink.audio > first)
    await worker.queue_frame(InterruptionFrame())
    await asyncio.sleep(1)
    before, stopped = sink.audio, sink.stopped
    await worker.queue_frame(TTSSpeakFrame("Hello there."))
    after = await until(sink, lambda: sink.stopped > stopped)
    return {
        "whole": whole,
        "audio": first,
        "began": began,
        "after": after,
        "more": sink.audio - before,
        "errors": errors.errors,
    }


async def pipecat_pauses(worker: Any, sink: Sink, errors: Errors) -> Result:
    """A turn, a pause in which the server closes the socket, and another turn."""
    sizes = []
    for stopped in (1, 2):
        before = sink.audio
        await worker.queue_frame(TTSSpeakFrame("Hello there."))
        await until(sink, lambda stopped=stopped: sink.stopped == stopped)
        sizes.append(sink.audio - before)
        await asyncio.sleep(0 if stopped == 2 else IDLE_S + 2)
    return {"heard": sizes, "errors": len(errors.errors)}


async def pipecat_fails(worker: Any, sink: Sink, errors: Errors) -> Result:
    await worker.queue_frame(TTSSpeakFrame(TEXT))
    await until(sink, lambda: bool(sink.audio or errors.errors), 10)
    await asyncio.sleep(0.3)
    return {"audio": sink.audio, "says_so": bool(errors.errors)}
