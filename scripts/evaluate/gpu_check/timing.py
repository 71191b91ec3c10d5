"""Timing: decode steps, rounds and graphs, measured.

In:    a checkpoint, a device
Out:   figures and aims
Owns:  one engine at a time
Never: promises
"""

import importlib
import time
from contextlib import closing
from functools import partial

import torch

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine.engine import Engine
from pipeline.model.quantise import LARGEST
from pipeline.spec import STEPS_PER_SECOND
from scripts.bench.device_clock import mean_seconds
from scripts.bench.memory_bandwidth import step_bytes
from scripts.bench.record import step_figure
from scripts.evaluate.gpu_check.device_clock import kernels_of, seconds_on
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.workload import BFLOAT16, EIGHT_BITS, Format, takes

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
    fraction = total_bytes / step_s / report.figure_of("copy_bandwidth")
    name = step_figure(slots, attention, weights=how.weights, kv=how.kv) + (f"_split_{split}" if split else "")
    found = {"step_ms": step_s * 1e3, "audio_s_per_s": slots / step_s / STEPS_PER_SECOND, "roofline": fraction}
    shown = (
        f"{step_s * 1e3:.3f} ms per step, {slots / step_s / STEPS_PER_SECOND:.0f} audio-s/s, "
        f"{total_bytes / 1e6:.0f} MB per step = {fraction:.0%} of copy bandwidth"
    )
    beside = report.figure_of(step_figure(slots, attention))
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
            times.append(mean_seconds("cuda", runner._rounds[False].replay, ROUNDS) / config.steps_per_round)
        assert int(state.steps[0]) == ROUNDS * config.steps_per_round, "every slot was busy to the end"
    return sorted(times)[len(times) // 2]


def measure_nodes(report: Report, checkpoint: Checkpoint) -> None:
    """Lists every kernel of a step and of a prefill with its time: in a small batch every node costs more than its work."""
    gpu_runner = importlib.import_module("pipeline.engine.gpu_runner")
    found: dict[str, dict[str, object]] = {}
    for attention in ("triton", "sdpa"):
        for slots in (1, 64):
            config = EngineConfig(
                device="cuda", dtype="bfloat16", slots=slots, max_prompt=64, attention=attention, prefill_rows=4
            )
            runner = gpu_runner.GpuRunner(config, checkpoint)
            runner._state.active.fill_(1)
            with torch.inference_mode():
                found[f"step_{attention}_{slots}_slots"] = kernels_of(partial(runner._step, 0, with_text=False))
                found[f"prefill_4x64_{attention}_{slots}_slots"] = kernels_of(partial(runner._prefill, runner._prompts[64]))
    report.figure("kernels", found, ", ".join(f"{name}: {one['nodes']} nodes" for name, one in found.items()))


def measure_prefill(report: Report, checkpoint: Checkpoint) -> None:
    """Measures a prefill's graph by prompts a call and positions; it stands between two rounds of everyone."""
    gpu_runner = importlib.import_module("pipeline.engine.gpu_runner")
    found: dict[str, float] = {}
    for rows in (1, 4, 8):
        config = EngineConfig(
            device="cuda", dtype="bfloat16", slots=64, max_prompt=256, max_steps=256, prefill_rows=rows, kv_budget_mib=65536
        )
        runner = gpu_runner.GpuRunner(config, checkpoint)
        with torch.inference_mode():
            for length in (32, 64, 96, 128, 256):
                milliseconds = seconds_on("cuda", runner._prefills[length].replay, times=20) * 1e3
                found[f"{rows} prompts of {length}"] = milliseconds
    report.figure("prefill_ms", found, ", ".join(f"{name}: {value:.2f}" for name, value in found.items()))


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
