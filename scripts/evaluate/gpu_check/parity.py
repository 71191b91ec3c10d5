"""Parity: the device against the CPU, fast formats against float32, the vocoder's samples alone and beside neighbours.

In:    a checkpoint, a device
Out:   promises; the time of a call of the vocoder
"""

import importlib
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig, VocoderConfig
from pipeline.engine import tensor_cache
from pipeline.engine.engine import Engine
from pipeline.engine.tensor_cache import DTYPES
from pipeline.model.embedding import Embedding
from pipeline.model.gpt import ActiveExtent, Gpt
from pipeline.model.linear import QuantisedLinear
from pipeline.types import HiddenWindow
from pipeline.vocoder.vocoder import Vocoder
from pipeline.vocoder.windowed.windows import Schedule
from scripts.evaluate.gpu_check.report import Report, seconds_each
from scripts.evaluate.gpu_check.sequences import BFLOAT16, EIGHT_BITS, FLOAT32, Format, takes

STATE_TOLERANCE = 1e-3  # float32 on two devices: other kernels, other orders of summation
MOVED_AT_MOST = 0.05  # probability that a fast mode may move between codes, on average
SAMPLE_TOLERANCE = 1e-3


def check_parity(report: Report, checkpoint: Checkpoint, device: str, steps: int) -> None:
    """Compares float32 on the device with float32 on the CPU, as far as both drew the same codes."""
    width, numbers = checkpoint.gpt_spec.width, [1, 2, 3, 4]
    settings = {"slots": 4, "max_prompt": 64, "max_steps": 256}
    with closing(Engine(EngineConfig.model_validate(settings), checkpoint)) as engine:
        expected = takes(engine, numbers, width, steps)
    with closing(Engine(EngineConfig.model_validate(settings | {"device": device}), checkpoint)) as engine:
        actual = takes(engine, numbers, width, steps)
    same = [common_steps(ours.codes, other.codes) for ours, other in zip(expected, actual, strict=True)]
    error = max(
        float(np.abs(ours.hidden[: count + 1] - other.hidden[: count + 1]).max())
        for ours, other, count in zip(expected, actual, same, strict=True)
    )
    report.promise("states on the device = on the CPU", error <= STATE_TOLERANCE, f"largest difference {error:.1e}")
    report.promise("codes on the device = on the CPU", min(same) == steps, f"first {min(same)} of {steps} steps")


def check_agreement(report: Report, checkpoint: Checkpoint, device: str, steps: int) -> None:
    """Compares fast formats with float32 on the device, all with the same forced history."""
    spec = checkpoint.gpt_spec
    generator = torch.Generator().manual_seed(0)
    history = torch.randint(0, spec.audio_vocab - 1, (steps, 4, spec.codebooks), generator=generator).to(device)
    exact = _along(checkpoint, device, FLOAT32, history)
    figures = {}
    for how in (BFLOAT16, *EIGHT_BITS):
        fast = _along(checkpoint, device, how, history)
        same = float((exact.argmax(-1) == fast.argmax(-1)).float().mean())
        moved = float((exact - fast).abs().sum(-1).mean() / 2)
        figures[how.name] = {"likeliest_code": same, "probability_moved": moved}
        detail = f"{moved:.2%} moved, at most {MOVED_AT_MOST:.0%}; the likeliest code is float32's in {same:.1%} of draws"
        report.promise(f"{how.name}: keeps the distribution", moved <= MOVED_AT_MOST, detail)
    shown = ", ".join(f"{name}: {figure['probability_moved']:.2%}" for name, figure in figures.items())
    report.figure("agreement", figures, f"probability moved from float32's under one history, {shown}")


def _along(checkpoint: Checkpoint, device: str, how: Format, history: torch.Tensor) -> torch.Tensor:
    """Returns probabilities (steps, rows, 4, V) along a history (steps, rows, 4); float32 runs without the device's kernels."""
    spec, (steps, rows, _), place, dtype = checkpoint.gpt_spec, history.shape, torch.device(device), DTYPES[how.dtype]
    embedding = Embedding(in_torch(checkpoint.embed()), device=place)
    cache = tensor_cache.zeros(spec, rows, steps, dtype, how.kv, place)
    build: dict[str, Any] = {"positions": steps, "rows": rows, "device": place, "dtype": dtype}
    busy = torch.ones(rows, dtype=torch.int32, device=place)
    if device == "cuda" and how != FLOAT32:
        fast = importlib.import_module("pipeline.model.gpu.gpu_gpt").GpuGpt(
            in_torch(checkpoint.gpt()), spec, **build, weights=how.weights, attention="triton"
        )

        def advance(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            delta = fast.run_layers(x, at.int(), busy, cache)
            return torch.nn.functional.rms_norm(x + delta.sum(0), x.shape[-1:], fast.final_norm, fast.rms_eps)
    else:
        slow = Gpt(in_torch(checkpoint.gpt()), spec, **build, product=QuantisedLinear if how.weights == "int8" else None)

        def advance(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return slow.decode(x, at, cache, ActiveExtent(rows, steps))

    with torch.inference_mode():
        states = [
            advance(embedding.embed_codes(codes), torch.full((rows,), number, device=place))
            for number, codes in enumerate(history)
        ]
        return torch.stack([embedding.code_logits(state) for state in states]).softmax(-1)


def common_steps(ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> int:
    """Returns how many steps at the start of two sequences are equal."""
    count = min(len(ours), len(theirs))
    differ = np.nonzero((ours[:count] != theirs[:count]).any(axis=1))[0]
    return int(differ[0]) if len(differ) else count


def check_vocoder(report: Report, checkpoint: Checkpoint, device: str) -> None:
    """Checks for the same samples as on the CPU and the same bits beside any neighbours, and times a call."""
    rows, times = (8, 10) if device == "cuda" else (2, 1)
    settings = {"method": "windows", "chunk_steps": (8, 48), "rows": rows}
    windows = [_window(number, checkpoint.gpt_spec.width, VocoderConfig.varied(settings)) for number in range(rows)]
    with closing(Vocoder(VocoderConfig.varied(settings), checkpoint)) as vocoder:
        expected = vocoder.decode_batch(windows)
    for matmul in ("float32", "tf32") if device == "cuda" else ("float32",):
        config = VocoderConfig.varied(settings | {"device": device, "matmul": matmul})
        with closing(Vocoder(config, checkpoint)) as vocoder:
            vocoder.warm_up()
            together = vocoder.decode_batch(windows)
            alone = [vocoder.decode_batch([window])[0] for window in windows]
            calls = {
                count: seconds_each(partial(vocoder.decode_batch, windows[:count]), times) * 1e3
                for count in (1, 2, 4, 8)[: rows.bit_length()]
            }
        error = max(float(np.abs(ours - other).max()) for ours, other in zip(expected, together, strict=True))
        noise_db = 20 * np.log10(
            np.linalg.norm(np.concatenate(expected))
            / max(float(np.linalg.norm(np.concatenate(expected) - np.concatenate(together))), 1e-30)
        )
        if matmul == "float32":
            report.promise("samples on the device = on the CPU", error <= SAMPLE_TOLERANCE, f"largest difference {error:.1e}")
        equal = sum(ours.tobytes() == other.tobytes() for ours, other in zip(alone, together, strict=True))
        report.promise(
            f"{matmul}: a window alone = beside others", equal == len(windows), f"{equal} of {len(windows)} bit-equal"
        )
        shown = ", ".join(f"{count}: {milliseconds:.2f}" for count, milliseconds in calls.items())
        report.figure(
            f"vocoder_{matmul}",
            {"call_ms": calls, "largest_error": error, "signal_to_error_db": float(noise_db)},
            f"ms per call of n windows of 48 steps: {shown}; {noise_db:.0f} dB over the difference to the CPU",
        )


def _window(number: int, width: int, config: VocoderConfig) -> HiddenWindow:
    """Returns a full window of random states, which follow from `number`."""
    steps, body = Schedule(config.chunks(incremental=False), config.look_ahead).shapes[-1]
    frames = np.random.default_rng(number).standard_normal((steps, width)).astype(np.float32)
    start = config.look_ahead
    return HiddenWindow(frames, 0, steps, start, start + body, is_last=False)
