"""Timing: steps, rounds, graphs, speech and upstream, measured.

In:    a checkpoint, a device
Out:   figures and aims
Owns:  one engine at a time
Never: promises
"""

import asyncio
import importlib
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig, VocoderConfig
from pipeline.engine.engine import Engine
from pipeline.model.quantise import LARGEST
from pipeline.spec import SAMPLE_RATE, STEPS_PER_SECOND
from pipeline.types import SamplingParams
from pipeline.vocoder.stream import StreamDecoder
from pipeline.vocoder.vocoder import Vocoder
from scripts.bench.memory_bandwidth import step_bytes
from scripts.bench.record import step_figure
from scripts.evaluate.gpu_check.report import Report, seconds_each
from scripts.evaluate.gpu_check.workload import BFLOAT16, EIGHT_BITS, Format, prompt, takes

CONTEXT = 300  # positions: the middle of an utterance of ten seconds


ROUNDS = 50  # replayed for one figure


def measure_steps(
    report: Report,
    checkpoint: Checkpoint,
    device: str,
    slots: int,
    attention: str = "auto",
    split: int | None = None,
    how: Format = BFLOAT16,
) -> None:
    """Measures bare rounds of one engine shape, every slot busy at a context of CONTEXT, beside what the memory allows."""
    spec, steps = checkpoint.gpt_spec, 4 if device == "cuda" else 1
    config = EngineConfig.model_validate(
        how.settings(device)
        | {"slots": slots, "max_prompt": 64, "max_steps": 960, "kv_budget_mib": 65536}
        | {"steps_per_round": steps, "attention": attention, "attention_split": split}
    )
    step_s = _bare_step_s(config, checkpoint) if device == "cuda" else _engine_step_s(config, checkpoint)
    weights, cache = (how.dtype if kept == "dtype" else kept for kept in (how.weights, how.kv))
    total_bytes = step_bytes(spec, weights, cache, rows=slots, context=CONTEXT)
    fraction = total_bytes / step_s / report.figures["copy_bandwidth"]
    name = step_figure(slots, attention, weights=how.weights, kv=how.kv) + (f"_split_{split}" if split else "")
    found = {"step_ms": step_s * 1e3, "audio_s_per_s": slots / step_s / STEPS_PER_SECOND, "roofline": fraction}
    shown = (
        f"{step_s * 1e3:.3f} ms per step, {slots / step_s / STEPS_PER_SECOND:.0f} audio-s/s, "
        f"{total_bytes / 1e6:.0f} MB per step = {fraction:.0%} of copy bandwidth"
    )
    beside = report.figures.get(step_figure(slots, attention))
    if how in EIGHT_BITS and beside is not None:
        found["over_bfloat16"] = found["step_ms"] / beside["step_ms"]
        shown += f", {found['over_bfloat16']:.2f} times bfloat16's step"
    report.figure(name, found, shown)


def _bare_step_s(config: EngineConfig, checkpoint: Checkpoint, *, busy: int | None = None) -> float:
    """Returns the seconds per step in replayed rounds, by the GPU's own clock."""
    runner = importlib.import_module("pipeline.engine.gpu_runner").GpuRunner(config, checkpoint)
    state, slots = runner._state, config.slots

    def place() -> None:
        state.positions.fill_(CONTEXT - ROUNDS * config.steps_per_round // 2)
        state.steps.zero_()
        state.min_steps.fill_(config.max_steps)
        state.max_steps.fill_(config.max_steps)
        state.active.zero_()
        state.active[: busy or slots] = 1

    with torch.inference_mode():
        for tensor in runner._cache.tensors:  # zeros would be read faster than other numbers
            if tensor.is_floating_point():
                tensor.normal_()
            else:
                tensor.random_(-LARGEST, LARGEST + 1)
        times: list[float] = []
        for _ in range(5):
            place()
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            began.record()
            for _ in range(ROUNDS):
                runner._rounds[False].replay()
            ended.record()
            ended.synchronize()
            times.append(began.elapsed_time(ended) / 1e3 / ROUNDS / config.steps_per_round)
        assert int(state.steps[0]) == ROUNDS * config.steps_per_round, "every slot was busy to the end"
    return sorted(times)[len(times) // 2]


def measure_nodes(report: Report, checkpoint: Checkpoint) -> None:
    """Counts the nodes of one step's graph: in a small batch every node costs more than its work."""
    nodes = {}
    for attention in ("triton", "sdpa"):
        config = EngineConfig(device="cuda", dtype="bfloat16", slots=16, max_prompt=64, attention=attention)
        runner = importlib.import_module("pipeline.engine.gpu_runner").GpuRunner(config, checkpoint)
        with torch.inference_mode(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            runner._step(0, with_text=False)
            torch.cuda.synchronize()
        nodes[attention] = sum(event.count for event in profile.key_averages() if "CUDA" in str(event.device_type))
    report.figure("nodes_a_step", nodes, ", ".join(f"{attention}: {count}" for attention, count in nodes.items()))


def _engine_step_s(config: EngineConfig, checkpoint: Checkpoint) -> float:
    """Returns the seconds per step through the engine, for devices without graphs."""
    with closing(Engine(config, checkpoint)) as engine:
        takes(engine, list(range(config.slots)), checkpoint.gpt_spec.width, 16)
        return engine.stats().round_s / config.steps_per_round


def measure_rounds(report: Report, checkpoint: Checkpoint, device: str, slots: int) -> None:
    """Measures the whole engine, every slot busy, with rounds of 1 to 16 steps."""
    found = {}
    for steps in (1, 2, 4, 8, 16) if device == "cuda" else (1, 4):
        config = EngineConfig.model_validate(
            {"device": device, "dtype": "bfloat16", "slots": slots, "max_prompt": 64, "max_steps": 512, "block_steps": 16}
            | {"steps_per_round": steps, "kv_budget_mib": 65536, "prefill_rows": 4, "buffer_steps": 4096, "max_waiting": 1024}
        )
        with closing(Engine(config, checkpoint)) as engine:
            steps_each = 256 if device == "cuda" else 8
            takes(engine, [0], checkpoint.gpt_spec.width, 16)
            started = time.perf_counter()
            takes(engine, list(range(slots)), checkpoint.gpt_spec.width, steps_each)
            found[steps] = slots * steps_each / STEPS_PER_SECOND / (time.perf_counter() - started)
    shown = ", ".join(f"{steps}: {value:.0f}" for steps, value in found.items())
    report.figure(f"engine_audio_s_per_s_{slots}_slots", found, f"audio-s/s by steps per round: {shown}")


def measure_speech(report: Report, checkpoint: Checkpoint, device: str, slots: int, seconds: float) -> None:
    """Measures engine and vocoder together in this process, with `slots` clients in a closed loop."""
    engine_config = EngineConfig.model_validate(
        {"device": device, "dtype": "bfloat16", "slots": slots, "max_prompt": 64, "max_steps": 1280, "kv_budget_mib": 65536}
        | ({"steps_per_round": 4, "prefill_rows": 4} if device == "cuda" else {})
    )
    vocoder_config = VocoderConfig.model_validate({"device": device, "rows": 8 if device == "cuda" else 1})
    with closing(Engine(engine_config, checkpoint)) as engine, closing(Vocoder(vocoder_config, checkpoint)) as vocoder:
        vocoder.warm_up()
        takes(engine, [0], checkpoint.gpt_spec.width, 16)
        samples, first = asyncio.run(_closed_loop(engine, StreamDecoder(vocoder), checkpoint.gpt_spec.width, slots, seconds))
    rate, (p50, p95) = samples / SAMPLE_RATE / seconds, np.percentile(np.array(first) * 1e3, [50, 95])
    report.figure(
        "speech",
        {
            "in_flight": slots,
            "audio_s_per_s": rate,
            "ttfb_p50_ms": float(p50),
            "ttfb_p95_ms": float(p95),
            "requests": len(first),
        },
        f"{slots} in flight: {rate:.0f} audio-s/s, first audio after {p50:.0f} ms p50, {p95:.0f} ms p95, {len(first)} requests",
    )
    report.aim("seconds of audio per second, in process", rate, 500, at_least=True)
    report.aim("first audio p95 [ms], in process", float(p95), 150, at_least=False)


async def _closed_loop(
    engine: Engine, stream: StreamDecoder, width: int, slots: int, seconds: float
) -> tuple[int, list[float]]:
    """Runs `slots` clients, each of which sends its next request once the last has ended.

    Returns:
        The samples that arrived within the time, and the seconds to the first audio of each request.
    """
    chance = np.random.default_rng(0)
    first: list[float] = []
    received = 0
    until = time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal received
        while time.perf_counter() < until:
            length = int(np.clip(np.exp(chance.normal(np.log(4.0), 0.6)), 0.8, 25) * STEPS_PER_SECOND)
            sampling = SamplingParams(seed=int(chance.integers(2**31)), min_steps=length)
            asked, is_first = time.perf_counter(), True
            blocks = engine.generate(prompt(number, width, length), sampling, timeout_s=100, admitted=True)
            async for chunk in stream.decode(blocks):
                if is_first:
                    first.append(time.perf_counter() - asked)
                is_first = False
                if time.perf_counter() < until:
                    received += len(chunk.samples)
            number += slots

    await asyncio.gather(*map(client, range(slots)))
    return received, first


def measure_equality_cost(report: Report, checkpoint: Checkpoint) -> None:
    """Measures the cost of one fixed shape: a step of 64 slots, few of them busy, over one of the smallest sufficient shape."""

    def config(slots: int) -> EngineConfig:
        return EngineConfig.model_validate(
            {"device": "cuda", "dtype": "bfloat16", "slots": slots, "max_prompt": 64, "max_steps": 960, "steps_per_round": 4}
            | {"kv_budget_mib": 65536}
        )

    costs = {
        busy: _bare_step_s(config(64), checkpoint, busy=busy) / _bare_step_s(config(busy), checkpoint) - 1
        for busy in (1, 8, 32)
    }
    shown = ", ".join(f"{busy}: {cost:+.0%}" for busy, cost in costs.items())
    report.figure("fixed_shape_cost", costs, f"busy of 64 slots, against a shape of their own: {shown}")
    report.aim("cost of equality, half of the slots busy", costs[32], 0.15, at_least=False)


def measure_upstream(report: Report, root: Path, device: str, steps: int) -> None:
    """Measures the ChatTTS package's own decode loop, alone and as one batch, if it is installed."""
    try:
        upstream = importlib.import_module("scripts.bench.upstream")
        package = importlib.import_module("ChatTTS")
    except ImportError as missing:
        report.figure("upstream", None, f"left out: {missing}")
        return
    chat = upstream.load_chat(root, device)
    found = {}
    for batch in (1, 32) if device == "cuda" else (1,):
        params = package.Chat.InferCodeParams(max_new_token=steps, min_new_token=steps, show_tqdm=False)
        texts = [f"hello there how are you today {number}" for number in range(batch)]

        def infer(texts: list[str] = texts, params: object = params) -> None:
            list(chat._infer_code(texts, False, torch.device(device), True, params))
            if device == "cuda":
                torch.cuda.synchronize()

        found[batch] = seconds_each(infer, 2) / steps
    shown = ", ".join(f"batch of {batch}: {1e3 * seconds:.1f} ms" for batch, seconds in found.items())
    report.figure("upstream_step_s", found, f"a step of {shown}")
    ours = report.figures.get(step_figure(1))
    if isinstance(ours, dict):
        report.aim("step rate of one sequence, this engine / ChatTTS", found[1] / (ours["step_ms"] / 1e3), 18, at_least=True)
