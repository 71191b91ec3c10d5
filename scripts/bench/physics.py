"""Physics: what a decode step must read, against what the memory can give. `python -m scripts.bench.physics` measures it.

In:    the model's dimensions
Out:   bytes a step; the copy bandwidth
Owns:  nothing
"""

import time

import torch

from pipeline.checkpoint.weights import GptSpec
from pipeline.engine.kv_cache import SCALE_BYTES

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
COPIED = 1 << 28
COPIES = 10


def step_bytes(spec: GptSpec, weights: str, cache: str, *, rows: int, context: float) -> float:
    """Bytes one decode step reads: every weight of the decoder and the heads once, and the keys and values of each row.

    Args:
        weights: their number format; cache: that of the keys and values.
        rows: sequences that decode together.
        context: positions of each so far, on average.
    """
    decoder = spec.layers * (4 * spec.width**2 + 3 * spec.width * spec.mlp_width)
    heads = spec.codebooks * spec.audio_vocab * spec.width
    head = spec.head_dim * ITEM_BYTES[cache] + (SCALE_BYTES if cache == "int8" else 0)
    cached = rows * context * 2 * spec.layers * spec.heads * head
    return decoder * ITEM_BYTES[weights] + heads * 4 + cached


def copy_bandwidth(device: str = "cpu") -> float:
    """Bytes a second of a large copy, read and written counted."""
    size = COPIED if device == "cpu" else 4 * COPIED
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))

    def copy() -> None:
        target.copy_(source)
        if device != "cpu":
            torch.cuda.synchronize()

    copy()
    began = time.perf_counter()
    for _ in range(COPIES):
        copy()
    return 2 * size * COPIES / (time.perf_counter() - began)


if __name__ == "__main__":
    print(copy_bandwidth())
