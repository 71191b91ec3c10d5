"""GPU check: what the engine and the vocoder promise, proved on the device at hand. `make gpu-check`, under 9 minutes.

In:    a device, a checkpoint
Out:   a line a promise for people; a JSON file with hardware, commit and every figure; exit code 0 when every promise holds
Owns:  one engine at a time
Never: Ray, HTTP, rich: the machine may have none of them; torch, numpy, safetensors, tokenizers and pydantic it must

Parity is held against the same engine on the CPU in float32, which tests/parity holds against the ChatTTS package.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.checkpoints import cache_home, resolve
from pipeline.config import EngineConfig, VocoderConfig
from pipeline.engine.engine import Engine
from pipeline.model.spec import STEPS_PER_SECOND
from pipeline.model.weights import Checkpoint, open_checkpoint
from pipeline.types import Head, HiddenWindow, Prompt, SamplingParams, Segment
from pipeline.vocoder.vocoder import Vocoder
from pipeline.vocoder.windows import Schedule
from scripts.bench.record import RESULTS, Result, hardware

STATE_TOLERANCE = 1e-3  # float32 on two devices: other kernels, other orders of summation
SAMPLE_TOLERANCE = 1e-3
PROMPT_POSITIONS = 48


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

    def promise(self, what: str, holds: bool, detail: str) -> None:
        self.promises[what] = {"holds": holds, "detail": detail}
        print(f"{'yes' if holds else 'NO':>4}  {what}: {detail}", flush=True)

    def figure(self, name: str, value: object, shown: str) -> None:
        self.figures[name] = value
        print(f"      {name}: {shown}", flush=True)

    @property
    def all_hold(self) -> bool:
        return all(promise["holds"] for promise in self.promises.values())


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


def check_equality(report: Report, checkpoint: Checkpoint, device: str, dtype: str, slots: int, steps: int) -> None:
    """Alone, crowded, in reused slots, in another engine, captured or not: the same bits."""
    width, numbers = checkpoint.gpt_spec.width, list(range(slots * 2))
    config = EngineConfig.model_validate(
        {"device": device, "dtype": dtype, "slots": slots, "max_prompt": 64, "max_steps": 256}
        | {"steps_per_round": 4, "prefill_rows": 4, "kv_budget_mib": 32768}
    )
    with closing(Engine(config, checkpoint)) as engine:
        alone = [takes(engine, [number], width, steps)[0] for number in numbers[:8]]
        graphs = engine.num_graphs
        for what, order in (("crowded", numbers), ("in other slots", numbers[::-1])):
            crowded = dict(zip(order, takes(engine, order, width, steps), strict=True))
            _promise_equal(report, f"{dtype}: alone = {what} ({slots} slots)", alone, [crowded[n] for n in numbers[:8]])
        if device == "cuda":
            report.promise(f"{dtype}: rounds are captured", graphs == 2, f"{graphs} CUDA graphs")
            engine.drop_graphs()
            _promise_equal(report, f"{dtype}: captured = eager", alone, takes(engine, numbers[:8], width, steps))
    with closing(Engine(config, checkpoint)) as engine:
        _promise_equal(report, f"{dtype}: another engine = this one", alone, takes(engine, numbers[:8], width, steps))


def check_vocoder(report: Report, checkpoint: Checkpoint, device: str) -> None:
    """The same samples on the device as on the CPU, and the same bits beside any neighbours."""
    settings = {"chunk_steps": (8, 48), "rows": 4}
    windows = [_window(number, checkpoint.gpt_spec.width, VocoderConfig.model_validate(settings)) for number in range(8)]
    with closing(Vocoder(VocoderConfig.model_validate(settings), checkpoint)) as vocoder:
        expected = vocoder.decode_batch(windows)
    with closing(Vocoder(VocoderConfig.model_validate(settings | {"device": device}), checkpoint)) as vocoder:
        vocoder.warm_up()
        together = vocoder.decode_batch(windows)
        alone = [vocoder.decode_batch([window])[0] for window in windows]
        seconds = _seconds_each(lambda: vocoder.decode_batch(windows[:4]), 10)
    error = max(float(np.abs(one - other).max()) for one, other in zip(expected, together, strict=True))
    report.promise("samples on the device = on the CPU", error <= SAMPLE_TOLERANCE, f"largest difference {error:.1e}")
    equal = sum(one.tobytes() == other.tobytes() for one, other in zip(alone, together, strict=True))
    report.promise("a window alone = beside others", equal == len(windows), f"{equal} of {len(windows)} bit-equal")
    report.figure("vocoder_call_ms", seconds * 1e3, f"{seconds * 1e3:.2f} ms a call of 4 windows of 48 steps")


def measure_steps(report: Report, checkpoint: Checkpoint, device: str, dtype: str, slots: int, steps: int) -> None:
    """Steps a second with every slot busy, beside what the memory allows."""
    spec = checkpoint.gpt_spec
    config = EngineConfig.model_validate(
        {"device": device, "dtype": dtype, "slots": slots, "max_prompt": 64, "max_steps": 512, "buffer_steps": 4096}
        | {"steps_per_round": 4 if device == "cuda" else 1, "kv_budget_mib": 65536, "block_steps": 16}
    )
    with closing(Engine(config, checkpoint)) as engine:
        takes(engine, [0], spec.width, 16)
        started = time.perf_counter()
        takes(engine, list(range(slots)), spec.width, steps)
        seconds = time.perf_counter() - started
        round_s = engine.stats().round_s / config.steps_per_round
    item = 2 if dtype == "bfloat16" else 4
    trunk = spec.layers * (4 * spec.width**2 + 3 * spec.width * spec.mlp_width)
    heads = spec.codebooks * spec.audio_vocab * spec.width
    context = PROMPT_POSITIONS // 2 + steps // 2
    kv = slots * context * 2 * spec.layers * spec.width
    total_bytes = trunk * item + heads * 4 + kv * item
    fraction = total_bytes / round_s / copy_bandwidth(device)
    report.figure(
        f"{dtype}_{slots}_slots",
        {"step_ms": round_s * 1e3, "audio_s_per_s": slots * steps / STEPS_PER_SECOND / seconds, "roofline": fraction},
        f"{round_s * 1e3:.2f} ms a step, {slots * steps / STEPS_PER_SECOND / seconds:.1f} audio-s/s, "
        f"{total_bytes / 1e6:.0f} MB a step = {fraction:.0%} of copy bandwidth",
    )


def copy_bandwidth(device: str) -> float:
    """Bytes a second of a large copy, read and written counted."""
    source = torch.empty((1 << 30) if device == "cuda" else (1 << 28), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()

    return 2 * source.nbytes / _seconds_each(copy, 10)


def main() -> int:
    """Run every check the device can take."""
    parser = argparse.ArgumentParser(description="Prove the promises of engine and vocoder on a device.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--checkpoint", default="full-random")
    parser.add_argument("--steps", type=int, default=64, help="steps of every sequence compared")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8, 32, 64, 128], help="slot counts to measure")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "gpu-check.json")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: run this on a GPU machine, or try it with --device cpu --checkpoint demo", file=sys.stderr)
        return 2
    report = Report()
    checkpoint = open_checkpoint(resolve(args.checkpoint, cache_home()))
    check_parity(report, checkpoint, args.device, args.steps)
    for dtype in ("float32", "bfloat16"):
        check_equality(report, checkpoint, args.device, dtype, min(16, max(args.slots)), args.steps)
    check_vocoder(report, checkpoint, args.device)
    for slots in args.slots:
        measure_steps(report, checkpoint, args.device, "bfloat16", slots, 4 * args.steps)
    device = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    result = {"hardware": hardware() | {"device": device}, "checkpoint": args.checkpoint, "promises": report.promises}
    result |= report.figures
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
    steps, body = Schedule(config.chunk_steps, config.look_ahead).shapes[-1]
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
