"""Tensor cache: the KV cache as torch's tensors, on any device.

In:    the engine's configuration and the model's dimensions, or a CPU's arrays
Out:   KeysValues
Owns:  the memory on a GPU
Never: which sequence a slot belongs to
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.checkpoint.weights import GptSpec
from pipeline.config import EngineConfig
from pipeline.engine.kv_cache import Arrays, refuse_too_full, slot_bytes, slots_within_budget
from pipeline.model.gpt import KeysValues
from pipeline.native.memory import BFLOAT16

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def allocate(config: EngineConfig, spec: GptSpec, device: torch.device) -> KeysValues:
    """Allocates the engine's whole KV cache, zeroed.

    Raises:
        ConfigError: the configured slots do not fit the budget or the GPU, or their positions exceed the model's.
    """
    slots = slots_within_budget(config, spec)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        refuse_too_full(slots * slot_bytes(config, spec), free, total, config)
    return zeros(spec, slots, config.positions, DTYPES[config.dtype], config.kv, device)


def zeros(spec: GptSpec, slots: int, positions: int, dtype: torch.dtype, kv: str, device: torch.device) -> KeysValues:
    """Returns a zeroed cache.

    Args:
        dtype: the model's dtype, in which the cache is stored unless `kv` is int8.
        kv: the setting engine.kv: `dtype` or `int8`.
    """
    places = (spec.layers, slots, spec.heads, positions)
    if kv == "dtype":
        return KeysValues(*(torch.zeros(*places, spec.head_dim, dtype=dtype, device=device) for _ in range(2)))
    return KeysValues(
        *(torch.zeros(*places, spec.head_dim, dtype=torch.int8, device=device) for _ in range(2)),
        *(torch.zeros(*places, dtype=torch.float32, device=device) for _ in range(2)),
    )


def as_tensors(arrays: Arrays) -> KeysValues:
    """Returns a CPU's cache as tensors of the same memory."""
    return KeysValues(*map(as_tensor, arrays))


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Returns a tensor of the same memory; the bits of bfloat16 become bfloat16."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def scrub(cache: KeysValues, slot: int) -> None:
    """Zeroes a slot's keys and values: a masked position still enters the arithmetic, and 0 * NaN is NaN."""
    for tensor in cache.tensors:
        tensor[:, slot].zero_()
