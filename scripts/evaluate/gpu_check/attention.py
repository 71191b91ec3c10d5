"""Attention: what the decode attention takes, by how it divides a slot's positions: the best shape is chosen by this.

In:    a checkpoint, a device, a number of slots
Out:   figures
Owns:  a cache of random numbers
Never: an engine; which shape an engine uses (pipeline/model/gpu/kernels/attention.py)
"""

import importlib
from collections.abc import Callable
from itertools import product
from typing import Any

import torch

from pipeline.checkpoint.weights import Checkpoint
from pipeline.engine import tensor_cache
from pipeline.model.gpt import KeysValues, rotary_tables
from pipeline.model.gpu.graphs import record, use_own_stream
from scripts.bench.device_clock import seconds_on
from scripts.evaluate.gpu_check.report import Report

POSITIONS = 1024
CONTEXTS = (300, 900)  # positions in use: the middle of an utterance of ten seconds, and a long one
SWEEP = {"split": (64, 128, 256, POSITIONS), "block": (32, 64, 128), "warps": (2, 4, 8), "stages": (1, 2, 3)}
REHEARSED = {"split": (256,), "block": (32,), "warps": (4,), "stages": (1,)}
"""on a CPU, through Triton's interpreter: one shape beside the engine's own"""


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
    swept = [dict(zip(SWEEP, values, strict=True)) for values in product(*(SWEEP if device == "cuda" else REHEARSED).values())]
    shapes = list(dict.fromkeys([now, *(attention.Shape(**settings) for settings in swept)]))
    for context in CONTEXTS:
        works = {shape: _all_layers(attention, shape, checkpoint, cache, context) for shape in shapes}
        times = {shape: seconds for shape, work in works.items() if (seconds := _seconds(device, work)) is not None}
        found = {str(shape): round(seconds / spec.layers * 1e6, 2) for shape, seconds in times.items()}
        best = min(found, key=found.__getitem__)
        report.figure(
            f"attention_{slots}_slots_{context}_positions",
            {"now": str(now), "us": found},
            f"now {found[str(now)]:.1f} us a layer; best {found[best]:.1f} with {best}",
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
    busy, seen = torch.ones_like(positions), torch.zeros(slots, width, dtype=torch.bfloat16, device=place)

    def run() -> None:
        for keys, values in cache.layers():
            attend(qkv, rotation, positions, busy, keys, values, seen)

    return run


def _seconds(device: str, work: Callable[[], None]) -> float | None:
    """Returns the seconds of one call; None for a shape that this GPU has no room for."""
    if device == "cpu":
        return seconds_on(device, work, times=1, repeats=1)
    try:
        return seconds_on(device, record(work).replay, times=5)
    except importlib.import_module("triton.runtime.errors").OutOfResources:
        return None
