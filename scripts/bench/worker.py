"""Worker: a system without HTTP inside a process of its own: the ChatTTS package, or this engine and vocoder without Serve.

In:    commands through a pipe: (name, arguments)
Out:   answers through the same pipe
Owns:  the models of its process
Never: more than one command at a time

Each system has its own process, because OpenMP keeps a team of threads for every thread that ever ran in parallel. Two
systems in one process would slow each other down even while one of them is idle.
"""

import asyncio
import contextlib
import logging
import signal
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from pipeline.audio.encode import Encoder
from pipeline.audio.formats import audio_format
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import PipelineConfig
from pipeline.paths import cache_home
from pipeline.spec import CODEBOOKS, SAMPLE_RATE
from pipeline.types import FinishReason, Latency, SamplingParams, SchedulingParams, SpeechPlan, StepBlock, SynthesisRequest
from pipeline.vocoder.stream import StreamDecoder
from pipeline.voices.catalogue import DEFAULT
from scripts.bench.client import OnSent, drive
from scripts.bench.memory_bandwidth import step_bytes
from scripts.bench.upstream import exactly, load_chat, to_pcm
from scripts.bench.workload import Utterance
from serve.commands.say import LocalPipeline, open_pipeline

T = TypeVar("T")

TIMEOUT_S = 3600.0

Commands = dict[str, Callable[..., Any]]


def serve_commands(pipe: Connection, commands: Commands) -> None:
    """Answers commands until the pipe is closed."""
    pipe.send(("ready", None))
    with contextlib.suppress(EOFError):
        while True:
            name, arguments = pipe.recv()
            try:
                pipe.send(("done", commands[name](*arguments)))
            except Exception:
                pipe.send(("failed", traceback.format_exc()))


def run_upstream(pipe: Connection, root: Path, threads: int, device: str) -> None:
    """Serves the ChatTTS package behind a lock."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that sends the commands
    logging.disable(logging.WARNING)  # the package warns about every forced length
    with asyncio.Runner() as runner:
        upstream = UpstreamSpeaker(root, threads, device)
        serve_commands(
            pipe,
            {
                "load": lambda load: runner.run(drive(load, upstream.speak)),
                "decode": lambda utterances: upstream.on_thread(upstream.decode, utterances).result(),
            },
        )


def run_pipeline(pipe: Connection, pipeline: dict[str, Any]) -> None:
    """Serves this service's engine, vocoder and synthesizer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = PipelineConfig.model_validate(pipeline)
    with asyncio.Runner() as runner:
        opened = open_pipeline(config)
        ours = PipelineSpeaker(config, runner.run(opened.__aenter__()))
        try:
            serve_commands(
                pipe,
                {
                    "load": lambda load: runner.run(drive(load, ours.speak)),
                    "decode": lambda utterances: runner.run(ours.decode(utterances)),
                    "rounds": lambda utterances: runner.run(ours.rounds(utterances)),
                    "vocode": lambda steps: runner.run(ours.vocode(steps)),
                    "memory": ours.memory_use,
                },
            )
        finally:
            runner.run(opened.__aexit__(None, None, None))


class UpstreamSpeaker:
    """The ChatTTS package as its README uses it, one request at a time."""

    def __init__(self, root: Path, threads: int, device: str) -> None:
        self._device = torch.device(device)
        self._thread = ThreadPoolExecutor(1)  # loaded and run on one thread, as in its README
        self.on_thread(torch.set_num_threads, threads).result()
        self._chat = self.on_thread(load_chat, root, device).result()
        self._turn = asyncio.Lock()

    def on_thread(self, work: Callable[..., T], *arguments: Any) -> "Future[T]":
        """Runs a call on the model's thread."""
        return self._thread.submit(work, *arguments)

    async def speak(self, utterance: Utterance, streamed: bool, on_sent: OnSent) -> AsyncGenerator[bytes, None]:
        """Yields one utterance as 16-bit samples, as `Speak` of scripts/bench/client.py describes."""
        on_sent()
        async with self._turn:
            pieces = await asyncio.wrap_future(self.on_thread(self._begin, utterance, streamed))
            try:
                while (piece := await asyncio.wrap_future(self.on_thread(next, pieces, None))) is not None:
                    yield piece
            except BaseException:
                self._chat.interrupt()  # the client disconnected: the loop ends at its next step
                raise
            finally:
                self.on_thread(pieces.close)

    def _begin(self, utterance: Utterance, streamed: bool) -> Generator[bytes, None, None]:
        result = self._chat.infer(
            utterance.text,
            stream=streamed,
            lang="en",
            skip_refine_text=True,
            split_text=False,
            params_infer_code=exactly(utterance.steps),
        )
        return (to_pcm(piece) for piece in result)

    def decode(self, utterances: list[Utterance]) -> float:
        """Returns the seconds that the package's decode loop takes for one batch of equal lengths."""
        texts, (steps,) = [utterance.text for utterance in utterances], {utterance.steps for utterance in utterances}
        self._chat.context.set(False)  # as `infer` does: an earlier client may have disconnected
        began = time.perf_counter()
        list(self._chat._infer_code(texts, False, self._device, True, exactly(steps)))
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began


class PipelineSpeaker:
    """What serve/app.py deploys, in one process."""

    def __init__(self, config: PipelineConfig, local: LocalPipeline) -> None:
        checkpoint = open_checkpoint(resolve(config.checkpoint, cache_home()))
        self._spec, engine = checkpoint.gpt_spec, config.engine
        self._formats = [engine.dtype if name == "dtype" else name for name in (engine.weights, engine.kv)]
        self._pipeline = local
        local.vocoder.warm_up()

    async def speak(self, utterance: Utterance, streamed: bool, on_sent: OnSent) -> AsyncGenerator[bytes, None]:
        """Yields one utterance as 16-bit samples; not streamed, in one piece, as a reply with `stream: false`."""
        on_sent()
        encoder, whole = Encoder(audio_format("pcm")), b""
        async with aclosing(self._pipeline.synthesizer.stream(request_of(utterance))) as chunks:
            async for chunk in chunks:
                piece = encoder.feed(chunk.samples)
                if streamed:
                    yield piece
                else:
                    whole += piece
        yield whole + encoder.finish()

    async def decode(self, utterances: list[Utterance]) -> float:
        """Returns the seconds that the engine takes for requests that arrive together, without the vocoder."""
        local = self._pipeline
        voices = {DEFAULT: local.voices.get(DEFAULT)}
        plans = [await local.frontend.plan(request_of(utterance), voices) for utterance in utterances]

        async def decode(plan: SpeechPlan, seed: int) -> None:
            (prompt,) = plan.prompts
            async for _ in local.engine.generate(prompt, SamplingParams(seed=seed), timeout_s=TIMEOUT_S, admitted=True):
                pass

        began = time.perf_counter()
        await asyncio.gather(*(decode(plan, utterance.seed) for plan, utterance in zip(plans, utterances, strict=True)))
        return time.perf_counter() - began

    async def rounds(self, utterances: list[Utterance]) -> tuple[float, float]:
        """Returns the mean number of rows in a round, and its mean duration [s], for requests that arrive together."""
        before = self._pipeline.engine.stats()
        await self.decode(utterances)
        after = self._pipeline.engine.stats()
        rounds = after.rounds - before.rounds
        return (after.steps - before.steps) / rounds, (after.decode_s - before.decode_s) / rounds

    async def vocode(self, steps: int) -> float:
        """Returns the core-seconds that the vocoder takes per second of audio, fed as by a stream, with nothing beside it."""
        random = np.random.default_rng(steps)
        hidden = random.standard_normal((steps, self._spec.width), np.float32)
        codes = np.zeros((steps, CODEBOOKS), np.int64)

        async def steps_of_noise() -> AsyncGenerator[StepBlock, None]:
            yield StepBlock(hidden, codes, 0, FinishReason.LENGTH)

        samples, began = 0, time.process_time()
        async with aclosing(StreamDecoder(self._pipeline.vocoder).decode(steps_of_noise())) as chunks:
            async for chunk in chunks:
                samples += len(chunk.samples)
        return (time.process_time() - began) / (samples / SAMPLE_RATE)

    def memory_use(self, step_s: float, rows: int, context: float, bandwidth: float) -> dict[str, float]:
        """Returns what a measured step reads, and the share of the copy bandwidth [bytes/s] that this takes."""
        read = step_bytes(self._spec, *self._formats, rows=rows, context=context)
        return {
            "bytes_per_step": read,
            "step_s": step_s,
            "copy_bytes_per_s": bandwidth,
            "fraction_of_copy_bandwidth": read / step_s / bandwidth,
        }


def request_of(utterance: Utterance) -> SynthesisRequest:
    """Returns the utterance as the service would request it."""
    return SynthesisRequest(
        request_id="bench",
        text=utterance.text,
        voice=DEFAULT,
        sampling=SamplingParams(seed=utterance.seed),
        scheduling=SchedulingParams(latency=Latency(utterance.latency)),
        timeout_s=TIMEOUT_S,
    )
