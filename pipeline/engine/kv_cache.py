"""KV cache: static tensors, sized at start from a configured budget.

In:    the engine's configuration and the model's dimensions
Out:   KeysValues
Owns:  the memory
Never: which sequence a slot belongs to
"""

import torch

from pipeline.checkpoint.weights import GptSpec
from pipeline.config import EngineConfig
from pipeline.errors import ConfigError
from pipeline.model.gpt import KeysValues
from pipeline.native.memory import Arena

MIB = 1 << 20
SCALE_BYTES = 4  # float32: numbers are divided by exactly the scale they are multiplied with later


def allocate(config: EngineConfig, spec: GptSpec, dtype: torch.dtype, device: torch.device) -> KeysValues:
    """Allocates the engine's whole KV cache, zeroed.

    If a prefill call has several rows, the cache has one more slot than configured: unused rows write there.

    Raises:
        ConfigError: the configured slots do not fit the budget or the GPU, or their positions exceed the model's.
    """
    if config.positions > spec.max_positions:
        raise ConfigError(
            f"engine.max_prompt {config.max_prompt} + engine.max_steps {config.max_steps} are {config.positions} positions; "
            f"the checkpoint has {spec.max_positions}: lower one of them"
        )
    of_head = bytes_of_head(spec.head_dim, dtype.itemsize, config.kv)
    bytes_per_slot = 2 * spec.layers * spec.heads * config.positions * of_head
    slots = config.slots + (config.prefill_rows > 1)
    if slots * bytes_per_slot > config.kv_budget_mib * MIB:
        raise ConfigError(
            f"engine.slots {config.slots} of {config.positions} positions (max_prompt + max_steps) need "
            f"{-(-slots * bytes_per_slot // MIB)} MiB of KV cache; engine.kv_budget_mib allows {config.kv_budget_mib}, "
            f"which holds {config.kv_budget_mib * MIB // bytes_per_slot} slots: raise the budget or lower the slots"
        )
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        refuse_too_full(slots * bytes_per_slot, free, total, config)
    return zeros(spec, slots, config.positions, dtype, config.kv, device)


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


def zeros(spec: GptSpec, slots: int, positions: int, dtype: torch.dtype, kv: str, device: torch.device) -> KeysValues:
    """Returns a zeroed cache.

    Args:
        dtype: the model's dtype, in which the cache is stored unless `kv` is int8.
        kv: the setting engine.kv: `dtype` or `int8`.
    """
    places = (spec.layers, slots, spec.heads, positions)

    def tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        if device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=device)
        return Arena(torch.Size(shape).numel() * dtype.itemsize).zeros(*shape, dtype=dtype)

    if kv == "dtype":
        return KeysValues(*(tensor(*places, spec.head_dim, dtype=dtype) for _ in range(2)))
    return KeysValues(
        *(tensor(*places, spec.head_dim, dtype=torch.int8) for _ in range(2)),
        *(tensor(*places, dtype=torch.float32) for _ in range(2)),
    )


def bytes_of_head(head_dim: int, itemsize: int, kv: str) -> int:
    """Returns the size of one head's key, or value, at one position [bytes].

    Args:
        itemsize: size of one number in the model's dtype [bytes].
        kv: the setting engine.kv: `dtype` or `int8`.
    """
    return head_dim * itemsize if kv == "dtype" else head_dim + SCALE_BYTES


def scrub(cache: KeysValues, slot: int) -> None:
    """Zeroes a slot's keys and values: a masked position still enters the arithmetic, and 0 * NaN is NaN."""
    for tensor in cache.tensors:
        tensor[:, slot].zero_()
