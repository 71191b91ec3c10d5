"""KV cache: one slot per sequence, sized at start from a configured budget; a CPU's arrays.

In:    the engine's configuration and the model's dimensions
Out:   the number of slots; on a CPU the cache itself
Owns:  the memory
Never: torch (tensor_cache.py), which sequence a slot belongs to
"""

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pipeline.checkpoint.weights import GptSpec
from pipeline.config import EngineConfig
from pipeline.errors import ConfigError
from pipeline.model.cpu.packing import STORED
from pipeline.native.memory import Arena

MIB = 1 << 20
SCALE_BYTES = 4  # float32: numbers are divided by exactly the scale they are multiplied with later

Arrays = tuple[NDArray[Any], ...]
"""keys, values (layers, slots, heads, positions, head_dim); with int8 the scales of both (layers, slots, heads, positions)"""


def allocate(config: EngineConfig, spec: GptSpec) -> Arrays:
    """Allocates the whole KV cache of an engine on a CPU, zeroed.

    Raises:
        ConfigError: the configured slots do not fit the budget, or their positions exceed the model's.
    """
    places = (spec.layers, slots_within_budget(config, spec), spec.heads, config.positions)

    def zeros(*shape: int, dtype: DTypeLike) -> NDArray[Any]:
        return Arena(math.prod(shape) * np.dtype(dtype).itemsize).zeros(*shape, dtype=dtype)

    if config.kv == "dtype":
        return tuple(zeros(*places, spec.head_dim, dtype=STORED[config.dtype]) for _ in range(2))
    return (
        *(zeros(*places, spec.head_dim, dtype=np.int8) for _ in range(2)),
        *(zeros(*places, dtype=np.float32) for _ in range(2)),
    )


def slots_within_budget(config: EngineConfig, spec: GptSpec) -> int:
    """Returns how many slots the cache has: if a prefill call has several rows, one more than configured, where unused rows
    write.

    Raises:
        ConfigError: they do not fit the budget, or their positions exceed the model's.
    """
    if config.positions > spec.max_positions:
        raise ConfigError(
            f"engine.max_prompt {config.max_prompt} + engine.max_steps {config.max_steps} are {config.positions} positions; "
            f"the checkpoint has {spec.max_positions}: lower one of them"
        )
    bytes_per_slot = slot_bytes(config, spec)
    slots = config.slots + (config.prefill_rows > 1)
    if slots * bytes_per_slot > config.kv_budget_mib * MIB:
        raise ConfigError(
            f"engine.slots {config.slots} of {config.positions} positions (max_prompt + max_steps) need "
            f"{-(-slots * bytes_per_slot // MIB)} MiB of KV cache; engine.kv_budget_mib allows {config.kv_budget_mib}, "
            f"which holds {config.kv_budget_mib * MIB // bytes_per_slot} slots: raise the budget or lower the slots"
        )
    return slots


def slot_bytes(config: EngineConfig, spec: GptSpec) -> int:
    """Returns the size of one slot's cache [bytes]."""
    of_head = bytes_of_head(spec.head_dim, STORED[config.dtype].itemsize, config.kv)
    return 2 * spec.layers * spec.heads * config.positions * of_head


def refuse_too_full(cache: int, free: int, total: int, config: EngineConfig) -> None:
    """Checks a GPU before its cache is allocated: what is left over is for graphs, workspaces and the vocoder.

    Args:
        cache, free, total: sizes of the cache, of the GPU's free memory and of all of it [bytes].

    Raises:
        ConfigError: with the cache, more than `engine.gpu_memory_share` of the memory would be in use.
    """
    used = (total - free + cache) / total
    if used > config.gpu_memory_share:
        raise ConfigError(
            f"with its KV cache of {cache // MIB} MiB, {used:.0%} of the GPU's {total // MIB} MiB would be in use "
            f"({(total - free) // MIB} MiB are already); engine.gpu_memory_share allows {config.gpu_memory_share:.0%}: lower "
            "engine.slots, max_prompt or max_steps, set engine.kv to int8, or end what else uses the GPU"
        )


def bytes_of_head(head_dim: int, itemsize: int, kv: str) -> int:
    """Returns the size of one head's key, or value, at one position [bytes].

    Args:
        itemsize: size of one number in the model's dtype [bytes].
        kv: the setting engine.kv: `dtype` or `int8`.
    """
    return head_dim * itemsize if kv == "dtype" else head_dim + SCALE_BYTES
