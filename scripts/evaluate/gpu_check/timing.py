"""Timing: decode steps, rounds, graphs and the shapes of attention, measured.

In:    a checkpoint, a device
Out:   figures and aims
Never: promises
"""

import importlib
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import product
from typing import Any

import torch

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine import tensor_cache
from pipeline.engine.engine import Engine
from pipeline.model.gpt import KeysValues, rotary_tables
from pipeline.model.gpu.graphs import record, use_own_stream
from pipeline.model.quantise import LARGEST
from pipeline.spec import STEPS_PER_SECOND
from scripts.bench.device_clock import kernels_of, mean_seconds, seconds_on
from scripts.bench.memory_bandwidth import step_bytes
from scripts.bench.record import step_figure
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.runners import bare_runner, prefill_of, round_of
from scripts.evaluate.gpu_check.sequences import BFLOAT16, EIGHT_BITS, Format, takes

CONTEXT = 300  # positions: the middle of an utterance of ten seconds
ROUNDS = 50  # replayed for one figure
POSITIONS = 1024
CONTEXTS = (300, 900)  # positions in use: the middle of an utterance of ten seconds, and a long one
SWEEP = {"split": (64, 128, 256, POSITIONS), "block": (32, 64, 128), "warps": (2, 4, 8), "stages": (1, 2, 3)}
ONE_SHAPE = {"split": (256,), "block": (32,), "warps": (4,), "stages": (1,)}
"""on a CPU, through Triton's interpreter: one shape beside the engine's own"""


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
    settings = how.settings(device) | {"slots": slots, "max_prompt": 64, "max_steps": 960, "kv_budget_mib": 65536}
    settings |= {"steps_per_round": steps, "attention": attention, "attention_split": split}
    if device == "cuda":
        step_s = _bare_step_s(device, settings, checkpoint)
    else:
        step_s = _engine_step_s(EngineConfig.varied(settings), checkpoint)
    weights, cache = (how.dtype if storage == "dtype" else storage for storage in (how.weights, how.kv))
    total_bytes = step_bytes(spec, weights, cache, rows=slots, context=CONTEXT)
    bandwidth = report.figure_of("copy_bandwidth")
    name = step_figure(slots, attention, weights=how.weights, kv=how.kv) + (f"_split_{split}" if split else "")
    figures = {"step_ms": step_s * 1e3, "audio_s_per_s": slots / step_s / STEPS_PER_SECOND}
    shown = (
        f"{step_s * 1e3:.3f} ms per step, {slots / step_s / STEPS_PER_SECOND:.0f} audio-s/s, "
        f"{total_bytes / 1e6:.0f} MB per step"
    )
    if bandwidth is not None:  # else `machine` has not run yet
        figures["roofline"] = total_bytes / step_s / bandwidth
        shown += f" = {figures['roofline']:.0%} of copy bandwidth"
    beside = report.figure_of(step_figure(slots, attention))
    if how in EIGHT_BITS and beside is not None:
        figures["over_bfloat16"] = figures["step_ms"] / beside["step_ms"]
        shown += f", {figures['over_bfloat16']:.2f} times bfloat16's step"
    report.figure(name, figures, shown)


def _bare_step_s(device: str, settings: dict[str, Any], checkpoint: Checkpoint, *, busy: int | None = None) -> float:
    """Returns the seconds per step of rounds that no host waits for, by the GPU's own clock."""
    runner, rounds, repeats = bare_runner(device, checkpoint, settings), *((ROUNDS, 5) if device == "cuda" else (1, 1))
    state, slots, steps, longest = runner._state, settings["slots"], settings["steps_per_round"], settings["max_steps"]

    def place() -> None:
        state.positions.fill_(CONTEXT - rounds * steps // 2)
        state.steps.zero_()
        state.min_steps.fill_(longest)
        state.max_steps.fill_(longest)
        state.active.zero_()
        state.active[: busy or slots] = 1

    with torch.inference_mode():
        for tensor in runner._cache.tensors:  # zeros would be read faster than other numbers
            if tensor.is_floating_point():
                tensor.normal_()
            else:
                tensor.random_(-LARGEST, LARGEST + 1)
        times: list[float] = []
        for _ in range(repeats):
            place()
            times.append(mean_seconds(device, round_of(runner), rounds) / steps)
        assert int(state.steps[0]) == rounds * steps, "every slot was busy to the end"
    return sorted(times)[len(times) // 2]


def measure_nodes(report: Report, checkpoint: Checkpoint, device: str) -> None:
    """Lists every kernel of a step and of a prefill with its time: in a small batch every node costs more than its work."""
    kernels: dict[str, dict[str, object]] = {}
    for attention in ("triton", "sdpa"):
        for slots in (1, 64) if device == "cuda" else (2,):
            rows, length = (4, 64) if device == "cuda" else (2, 32)
            settings = {"dtype": "bfloat16", "slots": slots, "max_prompt": 64, "attention": attention, "prefill_rows": rows}
            settings |= {"kv_budget_mib": 65536}
            runner = bare_runner(device, checkpoint, settings)
            runner._state.active.fill_(1)
            prefill = partial(runner._prefill, runner._make_prompts(length))
            with torch.inference_mode():
                kernels[f"step_{attention}_{slots}_slots"] = kernels_of(device, partial(runner._step, 0, with_text=False))
                kernels[f"prefill_{rows}x{length}_{attention}_{slots}_slots"] = kernels_of(device, prefill)
    report.figure("kernels", kernels, ", ".join(f"{name}: {listing['nodes']} nodes" for name, listing in kernels.items()))


def measure_prefill(report: Report, checkpoint: Checkpoint, device: str) -> None:
    """Measures a prefill's graph by prompts a call and positions; it stands between two rounds of everyone."""
    is_gpu = device == "cuda"
    milliseconds: dict[str, float] = {}
    for rows in (1, 4, 8) if is_gpu else (1, 2):
        settings = {"dtype": "bfloat16", "slots": 64 if is_gpu else 2, "max_prompt": 256, "max_steps": 256}
        runner = bare_runner(device, checkpoint, settings | {"prefill_rows": rows, "kv_budget_mib": 65536})
        with torch.inference_mode():
            for length in (32, 64, 96, 128, 256) if is_gpu else (32,):
                times = {"times": 20} if is_gpu else {"times": 1, "repeats": 1}
                milliseconds[f"{rows} prompts of {length}"] = seconds_on(device, prefill_of(runner, length), **times) * 1e3
    report.figure("prefill_ms", milliseconds, ", ".join(f"{name}: {value:.2f}" for name, value in milliseconds.items()))


def _engine_step_s(config: EngineConfig, checkpoint: Checkpoint) -> float:
    """Returns the seconds per step through the engine, for devices without graphs."""
    with closing(Engine(config, checkpoint)) as engine:
        takes(engine, list(range(config.slots)), checkpoint.gpt_spec.width, 16)
        return engine.stats().round_s / config.steps_per_round


def measure_rounds(report: Report, checkpoint: Checkpoint, device: str, slots: int) -> None:
    """Measures the whole engine, every slot busy, with rounds of 1 to 16 steps."""
    throughputs = {}
    for steps in (1, 2, 4, 8, 16) if device == "cuda" else (1, 4):
        config = EngineConfig.varied(
            {"device": device, "dtype": "bfloat16", "slots": slots, "max_prompt": 64, "max_steps": 512, "block_steps": 16}
            | {"steps_per_round": steps, "kv_budget_mib": 65536, "prefill_rows": 4, "buffer_steps": 4096, "max_waiting": 1024}
        )
        with closing(Engine(config, checkpoint)) as engine:
            steps_each = 256 if device == "cuda" else 8
            takes(engine, [0], checkpoint.gpt_spec.width, 16)
            started = time.perf_counter()
            takes(engine, list(range(slots)), checkpoint.gpt_spec.width, steps_each)
            throughputs[steps] = slots * steps_each / STEPS_PER_SECOND / (time.perf_counter() - started)
    shown = ", ".join(f"{steps}: {value:.0f}" for steps, value in throughputs.items())
    report.figure(f"engine_audio_s_per_s_{slots}_slots", throughputs, f"audio-s/s by steps per round: {shown}")


def measure_equality_cost(report: Report, checkpoint: Checkpoint, device: str) -> None:
    """Measures the cost of one fixed shape: a step with few of the slots busy, over one of the smallest sufficient shape."""
    slots, few = (64, (1, 8, 32)) if device == "cuda" else (2, (1,))

    def step_s(size: int, busy: int) -> float:
        settings = {"dtype": "bfloat16", "slots": size, "max_prompt": 64, "max_steps": 960, "kv_budget_mib": 65536}
        return _bare_step_s(device, settings | {"steps_per_round": 4 if device == "cuda" else 1}, checkpoint, busy=busy)

    costs = {busy: step_s(slots, busy) / step_s(busy, busy) - 1 for busy in few}
    shown = ", ".join(f"{busy}: {cost:+.0%}" for busy, cost in costs.items())
    report.figure("fixed_shape_cost", costs, f"busy of {slots} slots, against a shape of their own: {shown}")
    report.aim("cost of equality, half of the slots busy", costs[slots // 2], 0.15, at_least=False)


def measure_attention(report: Report, checkpoint: Checkpoint, device: str, slots: int) -> None:
    """Measures the attention of all layers, so that no cache of the GPU holds a layer's keys, in microseconds a layer."""
    attention = importlib.import_module("pipeline.model.gpu.kernels.attention")
    spec, place = checkpoint.gpt_spec, torch.device(device)
    if device == "cuda":
        use_own_stream(urgent=False)
    cache = tensor_cache.zeros(spec, slots, POSITIONS, torch.bfloat16, "dtype", place)
    for tensor in cache.tensors:
        tensor.normal_()
    now = attention.chosen_shape(slots, spec.heads, POSITIONS)
    swept = [dict(zip(SWEEP, values, strict=True)) for values in product(*(SWEEP if device == "cuda" else ONE_SHAPE).values())]
    shapes = list(dict.fromkeys([now, *(attention.Shape(**settings) for settings in swept)]))
    for context in CONTEXTS:
        works = {shape: _all_layers(attention, shape, checkpoint, cache, context) for shape in shapes}
        times = {shape: seconds for shape, work in works.items() if (seconds := _seconds(device, work)) is not None}
        microseconds = {str(shape): round(seconds / spec.layers * 1e6, 2) for shape, seconds in times.items()}
        best = min(microseconds, key=microseconds.__getitem__)
        report.figure(
            f"attention_{slots}_slots_{context}_positions",
            {"now": str(now), "us": microseconds},
            f"now {microseconds[str(now)]:.1f} us a layer; best {microseconds[best]:.1f} with {best}",
        )


def _all_layers(attention: Any, shape: Any, checkpoint: Checkpoint, cache: KeysValues, context: int) -> Callable[[], None]:
    """Returns a call of the attention of every layer, each slot at position `context`."""
    spec, slots, place = checkpoint.gpt_spec, cache.keys.shape[1], cache.keys.device
    width = spec.heads * spec.head_dim
    attend = attention.Attention.allocate(
        slots=slots, heads=spec.heads, head_dim=spec.head_dim, positions=POSITIONS, shape=shape, device=place
    )
    qkv = torch.randn(slots, 3 * width, device=place).bfloat16()
    rotation = rotary_tables(POSITIONS, spec.head_dim, spec.rope_theta, place)
    positions = torch.full((slots,), context, dtype=torch.int32, device=place)
    busy, output = torch.ones_like(positions), torch.zeros(slots, width, dtype=torch.bfloat16, device=place)

    def run() -> None:
        for keys, values in cache.layers():
            attend(qkv, rotation, positions, busy, keys, values, output)

    return run


def _seconds(device: str, work: Callable[[], None]) -> float | None:
    """Returns the seconds of one call; None for a shape that this GPU has no room for."""
    if device == "cpu":
        return seconds_on(device, work, times=1, repeats=1)
    try:
        return seconds_on(device, record(work).replay, times=5)
    except importlib.import_module("triton.runtime.errors").OutOfResources:
        return None
