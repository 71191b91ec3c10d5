"""GPU check: what the engine and the vocoder promise, proved and measured on the device at hand. `make gpu-check`.

In:    a device, a checkpoint
Out:   a line a promise, figure and aim for people; a JSON file with hardware, commit and all of it; exit code 0 when every
       promise holds and every section ran
Owns:  one engine at a time
Never: Ray, HTTP, rich: the machine may have none of them; torch, numpy, safetensors, tokenizers and pydantic it must

A section that fails is reported, and the others go on. Aims are what the project wants to reach on one large GPU; to miss
one is a figure, not a failure. Parity is held against the same engine on the CPU in float32, which tests/parity holds
against the ChatTTS package. Where that package can be imported its own decode loop runs beside ours.
"""

import argparse
import asyncio
import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import Checkpoint, Tensors, open_checkpoint
from pipeline.config import EngineConfig, VocoderConfig
from pipeline.engine import kv_cache
from pipeline.engine.cpu_runner import DTYPES
from pipeline.engine.engine import Engine
from pipeline.model.embedding import Embedding
from pipeline.model.gpt import ActiveExtent, Gpt
from pipeline.model.linear import QuantisedLinear
from pipeline.model.quantise import LARGEST
from pipeline.paths import cache_home
from pipeline.spec import SAMPLE_RATE, STEPS_PER_SECOND
from pipeline.types import Head, HiddenWindow, Prompt, SamplingParams, Segment
from pipeline.vocoder.stream import StreamDecoder
from pipeline.vocoder.vocoder import Vocoder
from pipeline.vocoder.windowed.windows import Schedule
from scripts.bench.physics import copy_bandwidth, step_bytes
from scripts.bench.record import RESULTS, Result, hardware, step_figure

STATE_TOLERANCE = 1e-3  # float32 on two devices: other kernels, other orders of summation
SAMPLE_TOLERANCE = 1e-3
PROMPT_POSITIONS = 48
CONTEXT = 300  # positions: the middle of an utterance of ten seconds
ROUNDS = 50  # replayed for one figure
MOVED_AT_MOST = 0.05  # probability that a fast mode may move between codes, on average


@dataclass(frozen=True, slots=True)
class Kept(Checkpoint):
    """A checkpoint whose parts are read and hashed once: many engines are made of it here."""

    parts: dict[str, Tensors] = field(default_factory=dict)

    @staticmethod
    def of(checkpoint: Checkpoint) -> "Kept":
        return Kept(checkpoint.root, checkpoint.gpt_spec)

    def _part(self, name: str) -> Tensors:
        if name not in self.parts:
            self.parts[name] = getattr(Checkpoint(self.root, self.gpt_spec), name)()
        return self.parts[name]

    def gpt(self) -> Tensors:
        return self._part("gpt")

    def embed(self) -> Tensors:
        return self._part("embed")

    def mel_decoder(self) -> Tensors:
        return self._part("mel_decoder")

    def vocos(self) -> Tensors:
        return self._part("vocos")


@dataclass(frozen=True, slots=True)
class Format:
    """What an engine's numbers are kept in."""

    dtype: str
    weights: str = "dtype"
    kv: str = "dtype"

    @property
    def name(self) -> str:
        rounded = " and ".join(part for part in ("weights", "kv") if getattr(self, part) == "int8")
        return f"{rounded} int8" if rounded else self.dtype

    def settings(self, device: str) -> dict[str, object]:
        """Of EngineConfig, on a device."""
        return {"device": device, "dtype": self.dtype, "weights": self.weights, "kv": self.kv}


FLOAT32, BFLOAT16 = Format("float32"), Format("bfloat16")
EIGHT_BITS = (
    Format("bfloat16", weights="int8"),
    Format("bfloat16", kv="int8"),
    Format("bfloat16", weights="int8", kv="int8"),
)


def decodable(device: str) -> tuple[Format, ...]:
    """The formats of 8 bits an engine can be made with; a CPU's int8 weights are the benchmarks' (B8)."""
    return tuple(how for how in EIGHT_BITS if device == "cuda" or how.weights == "dtype")


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """All steps of one sequence."""

    hidden: NDArray[np.float32]
    codes: NDArray[np.int64]

    def equals(self, other: "Take") -> bool:
        """Bit for bit."""
        return np.array_equal(self.codes, other.codes) and self.hidden.tobytes() == other.hidden.tobytes()


@dataclass(slots=True)
class Report:
    """What was found, said as it is found: the first checks are quick, the last ones long."""

    promises: dict[str, Result] = field(default_factory=dict)
    figures: Result = field(default_factory=dict)
    aims: dict[str, Result] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def section(self, name: str, check: Callable[[], None]) -> None:
        """Run one part; what goes wrong in it is said, and is all that is lost."""
        print(f"-- {name}", flush=True)
        started = time.perf_counter()
        try:
            check()
        except Exception as error:
            traceback.print_exc()
            self.failed[name] = f"{type(error).__name__}: {error}"
        self.figures.setdefault("section_s", {})[name] = round(time.perf_counter() - started, 1)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def aim(self, what: str, value: float, wanted: float, *, at_least: bool) -> None:
        reached = value >= wanted if at_least else value <= wanted
        self.aims[what] = {"value": value, "aim": wanted, "reached": reached}
        wish = f"aim {'>=' if at_least else '<='} {wanted:g}"
        print(f"{'aim':>4}  {what}: {value:.4g}, {wish}: {'reached' if reached else 'missed'}", flush=True)

    def promise(self, what: str, holds: bool, detail: str) -> None:
        self.promises[what] = {"holds": holds, "detail": detail}
        print(f"{'yes' if holds else 'NO':>4}  {what}: {detail}", flush=True)

    def figure(self, name: str, value: object, shown: str) -> None:
        self.figures[name] = value
        print(f"      {name}: {shown}", flush=True)

    @property
    def all_hold(self) -> bool:
        return not self.failed and all(promise["holds"] for promise in self.promises.values())


def prompt(number: int, width: int, steps: int) -> Prompt:
    """A prompt of its own text, voice and length."""
    random = np.random.default_rng(number)
    length = int(random.integers(8, PROMPT_POSITIONS))
    return Prompt(
        ids=np.repeat(random.integers(5, 60, size=(length, 1)), 4, axis=1),
        text_mask=np.ones(length, np.bool_),
        head=Head.CODE,
        segment=Segment("text", 0, is_last=True),
        max_steps=steps,
        speaker=random.standard_normal(width).astype(np.float16),
        speaker_position=1,
    )


async def take(engine: Engine, number: int, width: int, steps: int) -> Take:
    """One sequence of exactly `steps` steps."""
    sampling = SamplingParams(seed=number, min_steps=steps)
    blocks = engine.generate(prompt(number, width, steps), sampling, timeout_s=500, admitted=True)
    parts = [block async for block in blocks]
    return Take(np.concatenate([part.hidden for part in parts]), np.concatenate([part.codes for part in parts]))


def takes(engine: Engine, numbers: list[int], width: int, steps: int) -> list[Take]:
    """Many sequences at once."""

    async def together() -> list[Take]:
        return await asyncio.gather(*(take(engine, number, width, steps) for number in numbers))

    return asyncio.run(together())


def check_parity(report: Report, checkpoint: Checkpoint, device: str, steps: int) -> None:
    """float32 on the device against float32 on the CPU, as far as both drew the same codes."""
    width, numbers = checkpoint.gpt_spec.width, [1, 2, 3, 4]
    settings = {"slots": 4, "max_prompt": 64, "max_steps": 256}
    with closing(Engine(EngineConfig.model_validate(settings), checkpoint)) as engine:
        expected = takes(engine, numbers, width, steps)
    with closing(Engine(EngineConfig.model_validate(settings | {"device": device}), checkpoint)) as engine:
        found = takes(engine, numbers, width, steps)
    same = [_common_steps(one.codes, other.codes) for one, other in zip(expected, found, strict=True)]
    error = max(
        float(np.abs(one.hidden[: count + 1] - other.hidden[: count + 1]).max())
        for one, other, count in zip(expected, found, same, strict=True)
    )
    report.promise("states on the device = on the CPU", error <= STATE_TOLERANCE, f"largest difference {error:.1e}")
    report.promise("codes on the device = on the CPU", min(same) == steps, f"first {min(same)} of {steps} steps")


def check_equality(report: Report, checkpoint: Checkpoint, device: str, how: Format, slots: int, steps: int) -> None:
    """Alone, crowded, in reused slots, in another engine, captured or not: the same bits."""
    width, numbers = checkpoint.gpt_spec.width, list(range(slots * 2))
    config = EngineConfig.model_validate(
        how.settings(device)
        | {"slots": slots, "max_prompt": 64, "max_steps": 256}
        | {"steps_per_round": 4, "prefill_rows": 4, "kv_budget_mib": 32768}
    )
    with closing(Engine(config, checkpoint)) as engine:
        alone = [takes(engine, [number], width, steps)[0] for number in numbers[:8]]
        graphs = engine.num_graphs
        for what, order in (("crowded", numbers), ("in other slots", numbers[::-1])):
            crowded = dict(zip(order, takes(engine, order, width, steps), strict=True))
            _promise_equal(report, f"{how.name}: alone = {what} ({slots} slots)", alone, [crowded[n] for n in numbers[:8]])
        if device == "cuda":
            report.promise(f"{how.name}: rounds are captured", graphs == 2, f"{graphs} CUDA graphs")
            engine.drop_graphs()
            _promise_equal(report, f"{how.name}: captured = eager", alone, takes(engine, numbers[:8], width, steps))
    with closing(Engine(config, checkpoint)) as engine:
        _promise_equal(report, f"{how.name}: another engine = this one", alone, takes(engine, numbers[:8], width, steps))


def check_vocoder(report: Report, checkpoint: Checkpoint, device: str) -> None:
    """The same samples on the device as on the CPU, and the same bits beside any neighbours; what a call takes."""
    rows, times = (8, 10) if device == "cuda" else (2, 1)
    settings = {"method": "windows", "chunk_steps": (8, 48), "rows": rows}
    windows = [_window(number, checkpoint.gpt_spec.width, VocoderConfig.model_validate(settings)) for number in range(rows)]
    with closing(Vocoder(VocoderConfig.model_validate(settings), checkpoint)) as vocoder:
        expected = vocoder.decode_batch(windows)
    for matmul in ("float32", "tf32") if device == "cuda" else ("float32",):
        config = VocoderConfig.model_validate(settings | {"device": device, "matmul": matmul})
        with closing(Vocoder(config, checkpoint)) as vocoder:
            vocoder.warm_up()
            together = vocoder.decode_batch(windows)
            alone = [vocoder.decode_batch([window])[0] for window in windows]
            calls = {
                count: _seconds_each(partial(vocoder.decode_batch, windows[:count]), times) * 1e3
                for count in (1, 2, 4, 8)[: rows.bit_length()]
            }
        error = max(float(np.abs(one - other).max()) for one, other in zip(expected, together, strict=True))
        noise_db = 20 * np.log10(
            np.linalg.norm(np.concatenate(expected))
            / max(float(np.linalg.norm(np.concatenate(expected) - np.concatenate(together))), 1e-30)
        )
        if matmul == "float32":
            report.promise("samples on the device = on the CPU", error <= SAMPLE_TOLERANCE, f"largest difference {error:.1e}")
        equal = sum(one.tobytes() == other.tobytes() for one, other in zip(alone, together, strict=True))
        report.promise(
            f"{matmul}: a window alone = beside others", equal == len(windows), f"{equal} of {len(windows)} bit-equal"
        )
        shown = ", ".join(f"{count}: {milliseconds:.2f}" for count, milliseconds in calls.items())
        report.figure(
            f"vocoder_{matmul}",
            {"call_ms": calls, "largest_error": error, "signal_to_error_db": float(noise_db)},
            f"ms a call of n windows of 48 steps: {shown}; {noise_db:.0f} dB over the difference to the CPU",
        )


def measure_steps(
    report: Report,
    checkpoint: Checkpoint,
    device: str,
    slots: int,
    attention: str = "auto",
    split: int | None = None,
    how: Format = BFLOAT16,
) -> None:
    """Bare rounds of one engine's shape, every slot busy at a context of CONTEXT, beside what the memory allows."""
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
        f"{step_s * 1e3:.3f} ms a step, {slots / step_s / STEPS_PER_SECOND:.0f} audio-s/s, "
        f"{total_bytes / 1e6:.0f} MB a step = {fraction:.0%} of copy bandwidth"
    )
    beside = report.figures.get(step_figure(slots, attention))
    if how in EIGHT_BITS and beside is not None:
        found["over_bfloat16"] = found["step_ms"] / beside["step_ms"]
        shown += f", {found['over_bfloat16']:.2f} times bfloat16's step"
    report.figure(name, found, shown)


def _bare_step_s(config: EngineConfig, checkpoint: Checkpoint, *, busy: int | None = None) -> float:
    """Seconds of a step in replayed rounds, on the GPU's own clock."""
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
        for tensor in runner._cache.tensors:  # zeros would be read faster than numbers
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
    """What one step puts into a graph: at a small batch every node costs more than its work."""
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
    """The same through the engine, where there are no graphs."""
    with closing(Engine(config, checkpoint)) as engine:
        takes(engine, list(range(config.slots)), checkpoint.gpt_spec.width, 16)
        return engine.stats().round_s / config.steps_per_round


def measure_rounds(report: Report, checkpoint: Checkpoint, device: str, slots: int) -> None:
    """The engine as a whole, every slot busy, with rounds of 1 to 16 steps."""
    found = {}
    for steps in (1, 2, 4, 8, 16) if device == "cuda" else (1, 4):
        config = EngineConfig.model_validate(
            {"device": device, "dtype": "bfloat16", "slots": slots, "max_prompt": 64, "max_steps": 512, "block_steps": 16}
            | {"steps_per_round": steps, "kv_budget_mib": 65536, "prefill_rows": 4, "buffer_steps": 4096, "max_waiting": 1024}
        )
        with closing(Engine(config, checkpoint)) as engine:
            made = 256 if device == "cuda" else 8
            takes(engine, [0], checkpoint.gpt_spec.width, 16)
            started = time.perf_counter()
            takes(engine, list(range(slots)), checkpoint.gpt_spec.width, made)
            found[steps] = slots * made / STEPS_PER_SECOND / (time.perf_counter() - started)
    shown = ", ".join(f"{steps}: {value:.0f}" for steps, value in found.items())
    report.figure(f"engine_audio_s_per_s_{slots}_slots", found, f"audio-s/s by steps a round: {shown}")


def measure_speech(report: Report, checkpoint: Checkpoint, device: str, slots: int, seconds: float) -> None:
    """Engine and vocoder together in this process, `slots` listeners who come back as soon as they have heard all."""
    width = checkpoint.gpt_spec.width
    engine_config = EngineConfig.model_validate(
        {"device": device, "dtype": "bfloat16", "slots": slots, "max_prompt": 64, "max_steps": 1280, "kv_budget_mib": 65536}
        | ({"steps_per_round": 4, "prefill_rows": 4} if device == "cuda" else {})
    )
    vocoder_config = VocoderConfig.model_validate({"device": device, "rows": 8 if device == "cuda" else 1})
    chance = np.random.default_rng(0)
    first: list[float] = []
    heard = 0

    async def listener(number: int, engine: Engine, stream: StreamDecoder, until: float) -> None:
        nonlocal heard
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
                    heard += len(chunk.samples)
            number += slots

    async def crowd(engine: Engine, vocoder: Vocoder) -> None:
        stream = StreamDecoder(vocoder)
        until = time.perf_counter() + seconds
        await asyncio.gather(*(listener(number, engine, stream, until) for number in range(slots)))

    with closing(Engine(engine_config, checkpoint)) as engine, closing(Vocoder(vocoder_config, checkpoint)) as vocoder:
        vocoder.warm_up()
        takes(engine, [0], width, 16)
        asyncio.run(crowd(engine, vocoder))
    rate, (p50, p95) = heard / SAMPLE_RATE / seconds, np.percentile(np.array(first) * 1e3, [50, 95])
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
    report.aim("audio seconds a second, in process", rate, 500, at_least=True)
    report.aim("first audio p95 [ms], in process", float(p95), 150, at_least=False)


def measure_equality_cost(report: Report, checkpoint: Checkpoint) -> None:
    """What one fixed shape costs: a step of 64 slots of which few are busy, over one of the smallest shape that holds them."""

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


def check_agreement(report: Report, checkpoint: Checkpoint, device: str, steps: int) -> None:
    """The quality gate on the device: the same history forced on all, how often the likeliest code is float32's."""
    spec = checkpoint.gpt_spec
    generator = torch.Generator().manual_seed(0)
    history = torch.randint(0, spec.audio_vocab - 1, (steps, 4, spec.codebooks), generator=generator).to(device)
    exact = _along(checkpoint, device, FLOAT32, history)
    found = {}
    for how in (BFLOAT16, *EIGHT_BITS):
        fast = _along(checkpoint, device, how, history)
        same = float((exact.argmax(-1) == fast.argmax(-1)).float().mean())
        moved = float((exact - fast).abs().sum(-1).mean() / 2)
        found[how.name] = {"likeliest_code": same, "probability_moved": moved}
        detail = f"{moved:.2%} moved, at most {MOVED_AT_MOST:.0%}; the likeliest code is float32's in {same:.1%} of draws"
        report.promise(f"{how.name}: keeps the distribution", moved <= MOVED_AT_MOST, detail)
    shown = ", ".join(f"{name}: {one['probability_moved']:.2%}" for name, one in found.items())
    report.figure("agreement", found, f"probability moved from float32's under one history, {shown}")


def _along(checkpoint: Checkpoint, device: str, how: Format, history: torch.Tensor) -> torch.Tensor:
    """Probabilities (steps, rows, 4, V) along a history (steps, rows, 4), by the device's own kernels but for float32."""
    spec, (steps, rows, _), place, dtype = checkpoint.gpt_spec, history.shape, torch.device(device), DTYPES[how.dtype]
    embedding = Embedding(checkpoint.embed(), device=place)
    cache = kv_cache.zeros(spec, rows, steps, dtype, how.kv, place)
    build: dict[str, Any] = {"positions": steps, "rows": rows, "device": place, "dtype": dtype}
    busy = torch.ones(rows, dtype=torch.int32, device=place)
    if device == "cuda" and how != FLOAT32:
        fast = importlib.import_module("pipeline.model.gpu.gpu_gpt").GpuGpt(
            checkpoint.gpt(), spec, **build, weights=how.weights, attention="triton"
        )

        def advance(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            delta = fast.run_layers(x, at.int(), busy, cache)
            return torch.nn.functional.rms_norm(x + delta.sum(0), x.shape[-1:], fast.final_norm, fast.rms_eps)
    else:
        slow = Gpt(checkpoint.gpt(), spec, **build, product=QuantisedLinear if how.weights == "int8" else None)

        def advance(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return slow.decode(x, at, cache, ActiveExtent(rows, steps))

    with torch.inference_mode():
        states = [
            advance(embedding.embed_codes(codes), torch.full((rows,), number, device=place))
            for number, codes in enumerate(history)
        ]
        return torch.stack([embedding.code_logits(state) for state in states]).softmax(-1)


def measure_upstream(report: Report, root: Path, device: str, steps: int) -> None:
    """The ChatTTS package's own decode loop, alone and as one batch, where it is installed."""
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

        found[batch] = _seconds_each(infer, 2) / steps
    shown = ", ".join(f"batch of {batch}: {1e3 * seconds:.1f} ms" for batch, seconds in found.items())
    report.figure("upstream_step_s", found, f"a step of {shown}")
    ours = report.figures.get(step_figure(1))
    if isinstance(ours, dict):
        report.aim("step rate alone, ours over ChatTTS's", found[1] / (ours["step_ms"] / 1e3), 18, at_least=True)


def main() -> int:
    """Run every section the device can take."""
    parser = argparse.ArgumentParser(description="Prove the promises of engine and vocoder on a device, and measure both.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--checkpoint", default="full-random")
    parser.add_argument("--steps", type=int, default=64, help="steps of every sequence compared")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8, 32, 64, 128], help="slot counts to measure")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long listeners come back [s]")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "gpu.json")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: run this on a GPU machine, or try it with --device cpu --checkpoint demo", file=sys.stderr)
        return 2
    report, device = Report(), args.device
    root = resolve(args.checkpoint, cache_home())
    checkpoint = Kept.of(open_checkpoint(root))
    report.section("parity", lambda: check_parity(report, checkpoint, device, args.steps))
    for how in (FLOAT32, BFLOAT16, *decodable(device)):
        slots = min(16, max(args.slots))
        report.section(f"equality {how.name}", partial(check_equality, report, checkpoint, device, how, slots, args.steps))
    report.section("vocoder", lambda: check_vocoder(report, checkpoint, device))
    report.section("agreement", lambda: check_agreement(report, checkpoint, device, args.steps))
    bandwidth = copy_bandwidth(device)
    report.figure("copy_bandwidth", bandwidth, f"{bandwidth / 1e9:.0f} GB/s, read and written")
    for slots in args.slots:
        for how in (BFLOAT16, *decodable(device)):
            work = partial(measure_steps, report, checkpoint, device, slots, how=how)
            report.section(f"step, {slots} slots, {how.name}", work)
    if device == "cuda":
        for slots in sorted({min(args.slots), max(args.slots)}):
            for attention, split in (("sdpa", None), ("triton", 64), ("triton", 128), ("triton", 256), ("triton", 1024)):
                name = f"attention {attention} {split or ''}, {slots} slots"
                report.section(name, partial(measure_steps, report, checkpoint, device, slots, attention, split))
        report.section("nodes", lambda: measure_nodes(report, checkpoint))
        report.section("cost of equality", lambda: measure_equality_cost(report, checkpoint))
    crowd = 64 if 64 in args.slots else max(args.slots)
    report.section("rounds", lambda: measure_rounds(report, checkpoint, device, crowd))
    report.section("speech", lambda: measure_speech(report, checkpoint, device, crowd, args.seconds))
    report.section("upstream", lambda: measure_upstream(report, root, device, args.steps))
    largest = report.figures.get(step_figure(max(args.slots)))
    if isinstance(largest, dict):
        report.aim(f"roofline fraction, {max(args.slots)} slots", largest["roofline"], 0.4, at_least=True)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    result = {"hardware": hardware() | {"device": name}, "checkpoint": args.checkpoint, "promises": report.promises}
    result |= {"aims": report.aims, "failed": report.failed, "figures": report.figures}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0 if report.all_hold else 1


def _promise_equal(report: Report, what: str, expected: list[Take], found: list[Take]) -> None:
    equal = sum(one.equals(other) for one, other in zip(expected, found, strict=True))
    report.promise(what, equal == len(expected), f"{equal} of {len(expected)} bit-equal")


def _common_steps(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """How many steps of two sequences are equal from the start on."""
    count = min(len(one), len(other))
    differ = np.nonzero((one[:count] != other[:count]).any(axis=1))[0]
    return int(differ[0]) if len(differ) else count


def _window(number: int, width: int, config: VocoderConfig) -> HiddenWindow:
    """A full window of its own states."""
    steps, body = Schedule(config.chunks(incremental=False), config.look_ahead).shapes[-1]
    frames = np.random.default_rng(number).standard_normal((steps, width)).astype(np.float32)
    start = config.look_ahead
    return HiddenWindow(frames, 0, steps, start, start + body, is_last=False)


def _seconds_each(call: Callable[[], object], times: int) -> float:
    """Mean seconds of a call, after one that does not count."""
    call()
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times


if __name__ == "__main__":
    sys.exit(main())
