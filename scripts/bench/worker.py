"""Worker: a system inside a process of its own: ChatTTS itself, or our engine and vocoder without Serve.

In:    orders through a pipe: (name, arguments)
Out:   answers through the same pipe
Owns:  the models of its process
Never: more than one order at a time

Each system has its own process, because OpenMP keeps a team of threads for every thread that ever ran in parallel: two
systems in one process would slow each other down even while one of them does nothing.
"""

import asyncio
import logging
import os
import signal
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import ChatTTS
import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.audio.encode import Encoder
from pipeline.audio.formats import audio_format
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import PipelineConfig
from pipeline.paths import cache_home
from pipeline.spec import CODEBOOKS, SAMPLE_RATE
from pipeline.types import FinishReason, SamplingParams, SpeechPlan, StepBlock, SynthesisRequest
from pipeline.vocoder.stream import StreamDecoder
from pipeline.voices.catalogue import DEFAULT
from scripts.bench.load import Sent, drive
from scripts.bench.physics import step_bytes
from scripts.bench.upstream import load_chat
from scripts.bench.workload import Utterance
from scripts.say import LocalPipeline, open_pipeline

T = TypeVar("T")

TIMEOUT_S = 3600.0

Orders = dict[str, Callable[..., Any]]


def obey(pipe: Connection, orders: Orders) -> None:
    """Answer orders until there are no more."""
    pipe.send(("ready", None))
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        if name == "end":
            return
        try:
            pipe.send(("done", orders[name](*arguments)))
        except Exception:
            pipe.send(("failed", traceback.format_exc()))


def run_upstream(pipe: Connection, root: Path, threads: int) -> None:
    """The ChatTTS package behind a lock."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever gives the orders
    logging.disable(logging.WARNING)  # the package warns of every forced length
    with asyncio.Runner() as runner:
        side = UpstreamSide(root, threads)
        obey(
            pipe,
            {
                "load": lambda load: runner.run(drive(load, side.speak)),
                "decode": lambda utterances: side.on_thread(side.decode, utterances).result(),
                "resident": resident_bytes,
            },
        )


def run_ours(pipe: Connection, pipeline: dict[str, Any]) -> None:
    """Our engine, vocoder and spine."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = PipelineConfig.model_validate(pipeline)
    with asyncio.Runner() as runner:
        opened = open_pipeline(config)
        side = OurSide(config, runner.run(opened.__aenter__()))
        try:
            obey(
                pipe,
                {
                    "load": lambda load: runner.run(drive(load, side.speak)),
                    "decode": lambda utterances: runner.run(side.decode(utterances)),
                    "vocode": lambda steps: runner.run(side.vocode(steps)),
                    "physics": side.physics,
                    "resident": resident_bytes,
                },
            )
        finally:
            runner.run(opened.__aexit__(None, None, None))


class UpstreamSide:
    """ChatTTS as its README uses it, one request at a time."""

    def __init__(self, root: Path, threads: int) -> None:
        self._thread = ThreadPoolExecutor(1)  # loaded and run on one thread, as by its own user
        self.on_thread(torch.set_num_threads, threads).result()
        self._chat = self.on_thread(load_chat, root).result()
        self._turn = asyncio.Lock()

    def on_thread(self, work: Callable[..., T], *arguments: Any) -> "Future[T]":
        """Run on the model's thread."""
        return self._thread.submit(work, *arguments)

    async def speak(self, utterance: Utterance, streamed: bool, sent: Sent) -> AsyncGenerator[bytes, None]:
        """See load.Speak."""
        sent()
        async with self._turn:
            pieces = await asyncio.wrap_future(self.on_thread(self._begin, utterance, streamed))
            try:
                while (piece := await asyncio.wrap_future(self.on_thread(next, pieces, None))) is not None:
                    yield piece
            except BaseException:
                self._chat.interrupt()  # the listener left: the loop ends at its next step
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
        """Seconds the package's decode loop takes for one batch of equal lengths."""
        texts, (steps,) = [one.text for one in utterances], {one.steps for one in utterances}
        self._chat.context.set(False)  # as infer does: an earlier listener may have left
        began = time.perf_counter()
        list(self._chat._infer_code(texts, False, torch.device("cpu"), True, exactly(steps)))
        return time.perf_counter() - began


class OurSide:
    """What serve/app.py deploys, in one process."""

    def __init__(self, config: PipelineConfig, local: LocalPipeline) -> None:
        checkpoint = open_checkpoint(resolve(config.checkpoint, cache_home()))
        self._spec, engine = checkpoint.gpt_spec, config.engine
        self._formats = [engine.dtype if one == "dtype" else one for one in (engine.weights, engine.kv)]
        self._pipeline = local
        local.vocoder.warm_up()

    async def speak(self, utterance: Utterance, streamed: bool, sent: Sent) -> AsyncGenerator[bytes, None]:
        """See load.Speak. Not streamed: everything at once, as a reply with `stream: false` is."""
        sent()
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
        """Seconds the engine takes for requests that come together, without the vocoder."""
        local = self._pipeline
        voices = {DEFAULT: local.voices.get(DEFAULT)}
        plans = [await local.frontend.plan(request_of(utterance), voices) for utterance in utterances]

        async def one(plan: SpeechPlan, seed: int) -> None:
            (prompt,) = plan.prompts
            async for _ in local.engine.generate(prompt, SamplingParams(seed=seed), timeout_s=TIMEOUT_S, admitted=True):
                pass

        began = time.perf_counter()
        await asyncio.gather(*(one(plan, what.seed) for plan, what in zip(plans, utterances, strict=True)))
        return time.perf_counter() - began

    async def vocode(self, steps: int) -> float:
        """Core-seconds the vocoder takes for a second of audio, fed as a stream feeds it, while nothing else works."""
        random = np.random.default_rng(steps)
        hidden = random.standard_normal((steps, self._spec.width), np.float32)
        codes = np.zeros((steps, CODEBOOKS), np.int64)

        async def spoken() -> AsyncGenerator[StepBlock, None]:
            yield StepBlock(hidden, codes, 0, FinishReason.LENGTH)

        samples, began = 0, time.process_time()
        async with aclosing(StreamDecoder(self._pipeline.vocoder).decode(spoken())) as chunks:
            async for chunk in chunks:
                samples += len(chunk.samples)
        return (time.process_time() - began) / (samples / SAMPLE_RATE)

    def physics(self, step_s: float, rows: int, context: float, bandwidth: float) -> dict[str, float]:
        """A measured step beside what the memory allows."""
        read = step_bytes(self._spec, *self._formats, rows=rows, context=context)
        return {
            "bytes_a_step": read,
            "step_s": step_s,
            "copy_bytes_a_second": bandwidth,
            "fraction_of_copy_bandwidth": read / step_s / bandwidth,
        }


def request_of(utterance: Utterance) -> SynthesisRequest:
    """The utterance as the service would ask for it."""
    return SynthesisRequest(
        request_id="bench",
        text=utterance.text,
        voice=DEFAULT,
        sampling=SamplingParams(seed=utterance.seed),
        timeout_s=TIMEOUT_S,
    )


def exactly(steps: int) -> ChatTTS.Chat.InferCodeParams:
    """The package's own defaults with a forced length."""
    return ChatTTS.Chat.InferCodeParams(max_new_token=steps, min_new_token=steps, show_tqdm=False)


def to_pcm(samples: NDArray[np.float32]) -> bytes:
    """(m,) or (1, m) float32 as 16-bit samples."""
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


def resident_bytes() -> int:
    """Memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
