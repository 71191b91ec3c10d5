"""Parity: the device against the CPU, and fast formats against float32.

In:    a checkpoint, a device
Out:   promises
Owns:  nothing
Never: time
"""

import importlib
from contextlib import closing
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine import tensor_cache
from pipeline.engine.engine import Engine
from pipeline.engine.tensor_cache import DTYPES
from pipeline.model.embedding import Embedding
from pipeline.model.gpt import ActiveExtent, Gpt
from pipeline.model.linear import QuantisedLinear
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.workload import BFLOAT16, EIGHT_BITS, FLOAT32, Format, takes

STATE_TOLERANCE = 1e-3  # float32 on two devices: other kernels, other orders of summation


MOVED_AT_MOST = 0.05  # probability that a fast mode may move between codes, on average


def check_parity(report: Report, checkpoint: Checkpoint, device: str, steps: int) -> None:
    """Compares float32 on the device with float32 on the CPU, as far as both drew the same codes."""
    width, numbers = checkpoint.gpt_spec.width, [1, 2, 3, 4]
    settings = {"slots": 4, "max_prompt": 64, "max_steps": 256}
    with closing(Engine(EngineConfig.model_validate(settings), checkpoint)) as engine:
        expected = takes(engine, numbers, width, steps)
    with closing(Engine(EngineConfig.model_validate(settings | {"device": device}), checkpoint)) as engine:
        found = takes(engine, numbers, width, steps)
    same = [common_steps(one.codes, other.codes) for one, other in zip(expected, found, strict=True)]
    error = max(
        float(np.abs(one.hidden[: count + 1] - other.hidden[: count + 1]).max())
        for one, other, count in zip(expected, found, same, strict=True)
    )
    report.promise("states on the device = on the CPU", error <= STATE_TOLERANCE, f"largest difference {error:.1e}")
    report.promise("codes on the device = on the CPU", min(same) == steps, f"first {min(same)} of {steps} steps")


def check_agreement(report: Report, checkpoint: Checkpoint, device: str, steps: int) -> None:
    """Compares fast formats with float32 on the device, all with the same forced history."""
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


def common_steps(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Returns how many steps at the start of two sequences are equal."""
    count = min(len(one), len(other))
    differ = np.nonzero((one[:count] != other[:count]).any(axis=1))[0]
    return int(differ[0]) if len(differ) else count
