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
        ConfigError: the configured slots do not fit the budget, or their positions exceed the model's.
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
    return zeros(spec, slots, config.positions, dtype, config.kv, device)


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
