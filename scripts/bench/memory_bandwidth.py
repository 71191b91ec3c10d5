"""Memory bandwidth: what a decode step must read, against what the memory can deliver.

`python -m scripts.bench.memory_bandwidth [DEVICE]` measures the copy bandwidth.

In:    the model's dimensions
Out:   bytes per step; the copy bandwidth
Never: the engine
"""

import argparse

import torch

from pipeline.checkpoint.weights import GptSpec
from pipeline.engine.kv_cache import SCALE_BYTES
from pipeline.model.cpu import four_bit
from scripts.bench.device_clock import mean_seconds

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "int4": four_bit.BYTES}
COPIED_BYTES = 1 << 28
COPIES = 10


def step_bytes(spec: GptSpec, weights: str, cache: str, *, rows: int, context: float) -> float:
    """Returns the bytes that one decode step reads: all weights of the decoder and the heads, and each row's keys and values.

    Args:
        spec: the model's dimensions.
        weights: number format of the weights.
        cache: number format of the keys and values.
        rows: sequences that decode together.
        context: mean number of positions per sequence.
    """
    decoder = spec.layers * (4 * spec.width**2 + 3 * spec.width * spec.mlp_width)
    heads = spec.codebooks * spec.audio_vocab * spec.width
    head = spec.head_dim * ITEM_BYTES[cache] + (SCALE_BYTES if cache == "int8" else 0)
    cached = rows * context * 2 * spec.layers * spec.heads * head
    return decoder * ITEM_BYTES[weights] + heads * (1 if weights == "int4" else 4) + cached


def copy_bandwidth(device: str = "cpu") -> float:
    """Returns the bytes per second of a large copy of random bytes, reads and writes counted; a GPU's by its own clock.

    Zeros would not do: memory controllers may compress them.
    """
    size = COPIED_BYTES if device == "cpu" else 4 * COPIED_BYTES
    source, target = (torch.randint(0, 256, (size,), dtype=torch.uint8, device=device) for _ in range(2))

    def copy() -> None:
        target.copy_(source)

    copy()
    return 2 * size / mean_seconds(device, copy, COPIES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the copy bandwidth of a device.")
    parser.add_argument("device", nargs="?", default="cpu", help="as PyTorch names it (default: %(default)s)")
    print(copy_bandwidth(parser.parse_args().device))
