"""Acoustic stage: the engine, behind a stage handle.

In:    calls of generate, follow, encode, speakers, traits, fingerprint, stats
Out:   StepBlocks, with their samples where its vocoder is beside it; codes of recordings
Owns:  one Engine and its health; that vocoder
Never: scheduling: the engine decodes its slots together, whenever their sequences arrived
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import EngineConfig, VocoderConfig
from pipeline.engine.engine import Engine
from pipeline.engine.engine_fingerprint import engine_fingerprint
from pipeline.engine.sequence import Sequence
from pipeline.errors import AtCapacity, EngineDead, OtherBuild, SynthesisError
from pipeline.model.gpu.device_memory import gpu_mem_percent
from pipeline.model.gpu.placement import on_this_machine
from pipeline.native.memory import return_free_memory
from pipeline.paths import cache_home
from pipeline.text.segment import predicted_steps
from pipeline.timing.following import Following
from pipeline.types import DecoderTraits, Followed, Head, Lane, Prompt, SamplingParams, Segment, StepBlock
from pipeline.vocoder.encode_apart import encode_apart
from pipeline.voices.persons import Persons, read_persons
from pipeline.voices.seeds import read_statistics
from serve.config.app_config import TracingConfig
from serve.observability.metrics.definitions import (
    KV_CACHE,
    PREEMPTED,
    QUEUE_WAIT,
    RUNNING,
    SEGMENTS,
    SLOTS,
    STEP,
    STEPS,
    USABLE,
    WAITING,
    WASTED,
)
from serve.observability.metrics.registry import MetricRegistry, NewSeries, every_period
from serve.observability.tracing import Tracing
from serve.resilience.autoscaling import EngineLoad, Load
from serve.stages.background_tasks import Background, trouble_of
from serve.stages.process_exit import end_process
from serve.stages.replica_context import ReplicaContext
from serve.stages.replica_table import ANYWHERE, Route
from serve.stages.stage_clients import as_value
from serve.stages.taken_over import OTHER_BUILD
from serve.stages.vocoder_beside import VocoderBeside

WARM_UP_POSITIONS = 16
WARM_UP_STEPS = 16
GIL_SWITCH_S = 0.0005  # Python's own 5 ms are as long as a round on a GPU, which the engine's thread has to launch in time


class EngineMetrics:
    """Observer of the engine that sets metrics; the engine's thread calls it between two rounds."""

    def __init__(self, new_series: NewSeries) -> None:
        self._registry = MetricRegistry(new_series)

    def scheduled(self, waited_s: float, lane: Lane) -> None:
        """Records how long a sequence waited for its slot [s]."""
        self._registry.observe(QUEUE_WAIT, waited_s, lane=lane.value)

    def preempted(self) -> None:
        """Counts a preempted sequence."""
        self._registry.add(PREEMPTED)

    def wasted(self, steps: int, reason: str) -> None:
        """Counts steps that no client received."""
        self._registry.add(WASTED, steps, reason=reason)

    def update(self, stats: Mapping[str, Any], steps_per_round: int, load: Load) -> None:
        """Updates the metrics from EngineStats and the load."""
        registry = self._registry
        registry.set_load(load)
        registry.set_gauge(SLOTS, stats["slots"])
        registry.set_gauge(USABLE, stats["slots_usable"])
        registry.set_gauge(RUNNING, stats["slots_used"])
        registry.set_gauge(WAITING, stats["waiting"])
        registry.set_gauge(STEP, stats["round_s"] / steps_per_round)
        registry.set_gauge(KV_CACHE, stats["kv_bytes"])
        registry.set_total(STEPS, stats["steps"])
        registry.set_total(SEGMENTS, stats["sequences"])


class AcousticStage:
    """Streams the steps of many segments at once."""

    async def load(
        self,
        context: ReplicaContext,
        config: EngineConfig,
        checkpoint: str,
        tracing: TracingConfig | None = None,
        vocoder: VocoderConfig | None = None,
    ) -> None:
        """Loads the weights and warms up. The process goes on answering meanwhile.

        Args:
            vocoder: decodes what the engine generates; None: it is a stage of its own.
        """
        self._context = context
        self._tracing = Tracing(tracing, "AcousticModel", context.replica)
        files = await asyncio.to_thread(lambda: open_checkpoint(resolve(checkpoint, cache_home())))
        self._files = files
        config = on_this_machine(config)
        self._device = config.device
        if config.device == "cuda":
            sys.setswitchinterval(GIL_SWITCH_S)
        self._following = Following(files, positions=config.positions)
        self._encoding = asyncio.Lock()
        metrics = EngineMetrics(context.new_series)
        self._engine = await asyncio.to_thread(Engine, config, files, observer=metrics)
        self._fingerprint = await asyncio.to_thread(engine_fingerprint, config, files)
        self._vocoder: VocoderBeside | None = None
        if vocoder is not None:
            self._vocoder = await asyncio.to_thread(VocoderBeside, vocoder, files, self._tracing, context.new_series)
            self._fingerprint += f"-{self._vocoder.fingerprint}"
        await self._engine.warm_up(warm_up_prompt())
        await asyncio.to_thread(return_free_memory)
        self._load = EngineLoad()
        self._latest = Load()

        def update() -> None:
            stats = asdict(self._engine.stats())
            self._latest = self._load.measure(stats, self._engine.load_report().capacity, time.monotonic())
            metrics.update(stats, config.steps_per_round, self._latest)
            if self._vocoder is not None:
                self._vocoder.update_metrics()

        self._background = Background()
        self._background.start("metrics", every_period(update))

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        timeout_s: float,
        admitted: bool,
        trace: str = "",
        route: Route = ANYWHERE,
    ) -> AsyncGenerator[StepBlock | SynthesisError, None]:
        """Streams the steps of one segment; an error is a value, and the last item. `trace`: as tracing.carried."""
        if route.build not in ("", self._fingerprint):
            yield OtherBuild(OTHER_BUILD, replica=self._context.replica, build=self._fingerprint)
            return
        try:
            # Opened here, so that a cancellation at any moment reaches the sequence, gathered or not.
            sequence = self._engine.open(prompt, sampling, timeout_s=timeout_s)
        except SynthesisError as error:
            yield error
            return
        try:
            with self._tracing.generation(trace, prompt) as took, self._load.waiting(steps_ahead(prompt)) as waiting:
                await self.admit((sequence, admitted))
                steps = self._engine.read(sequence)
                async with aclosing(self._spoken(steps, prompt, trace)) as blocks:
                    async for block in blocks:
                        took(block)
                        waiting.begun()
                        is_at_an_end = block.first_step == 0 or block.finish is not None
                        yield self._signed(block) if is_at_an_end else block
        except EngineDead as death:
            end_process(death)
        except AtCapacity as error:
            error.replica = self._context.replica
            yield error
        except SynthesisError as error:
            yield error
        finally:
            self._engine.cancel(sequence)

    def _signed(self, block: StepBlock) -> StepBlock:
        report = replace(self._engine.load_report(), replica=self._context.replica, build=self._fingerprint)
        return replace(block, fingerprint=self._fingerprint, report=report)

    def _spoken(self, steps: AsyncGenerator[StepBlock, None], prompt: Prompt, trace: str) -> AsyncGenerator[StepBlock, None]:
        return steps if self._vocoder is None else self._vocoder.spoken(steps, prompt, trace)

    async def admit(self, arrival: tuple[Sequence, bool]) -> None:
        """Submits a sequence; returns at once. The second says whether its request was admitted before."""
        self._engine.submit([arrival])

    async def follow(
        self, prompt: Prompt, codes: NDArray[np.int64], tokens: tuple[int, int], ended: bool
    ) -> Followed | SynthesisError | None:
        """Returns where the model looks in a prompt while it speaks (protocols.TextFollower); beside the engine."""
        return await as_value(self._following.follow(prompt, codes, tokens, ended=ended))

    async def speakers(self) -> tuple[int, NDArray[np.float16] | None, Persons]:
        """Returns the width of this checkpoint's speaker embeddings, the statistics of those it was trained on, names."""
        width, root = self._files.gpt_spec.width, self._files.root
        return width, read_statistics(root, width), read_persons(root)

    async def traits(self) -> DecoderTraits:
        """Returns what its vocoder takes, which depends on what this machine can compile."""
        assert self._vocoder is not None, "a vocoder stage is asked where there is one"
        return await self._vocoder.traits()

    async def fingerprint(self) -> str:
        """Returns the fingerprint of everything here that affects what `generate` returns."""
        return self._fingerprint

    async def encode(self, samples: NDArray[np.float32]) -> NDArray[np.int64] | SynthesisError:
        """Returns the codes (n, 4) of a recording (m,); errors are values. One at a time: it takes a core from the engine."""
        async with self._encoding:
            return await as_value(encode_apart(self._files.root, samples))

    async def stats(self) -> dict[str, Any]:
        """Returns the state of the engine, and where it runs."""
        stats = self._engine.stats()
        return {
            **self._context.info(),
            "trouble": trouble_of(self.check_health),
            "has_work": stats.slots_used + stats.waiting > 0,
            "gpu_mem_percent": gpu_mem_percent(self._device),
            "fingerprint": self._fingerprint,
            **self._latest.as_stats(),
            **asdict(stats),
            **({} if self._vocoder is None else {"vocoder": self._vocoder.stats()}),
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the latest load, for StepBacklogPolicy where the configuration names it."""
        return self._latest.as_stats()

    def check_health(self) -> None:
        """Raises EngineDead if the replica has to be replaced."""
        self._background.check()
        self._engine.check_health()
        if self._vocoder is not None:
            self._vocoder.check_health()

    async def close(self) -> None:
        """Ends its work, which nobody waits for any more."""
        await self._background.stop()
        await asyncio.to_thread(self._close_parts)

    def __del__(self) -> None:
        self._close_parts()

    def _close_parts(self) -> None:
        for part in ("_engine", "_vocoder", "_tracing"):
            if (opened := getattr(self, part, None)) is not None:
                opened.close()


def steps_ahead(prompt: Prompt) -> int:
    """Returns about how many steps a segment will take."""
    return min(predicted_steps(prompt.segment.text), prompt.max_steps) if prompt.head is Head.CODE else prompt.max_steps


def warm_up_prompt() -> Prompt:
    """Returns a short prompt of token 0."""
    return short_prompt(0, WARM_UP_STEPS)


def short_prompt(token: int, max_steps: int) -> Prompt:
    """Returns a prompt of one token, repeated; its sound does not matter."""
    return Prompt(
        ids=np.full((WARM_UP_POSITIONS, 4), token, np.int64),
        text_mask=np.ones(WARM_UP_POSITIONS, np.bool_),
        head=Head.CODE,
        segment=Segment(text="", index=0, is_last=True),
        max_steps=max_steps,
    )
