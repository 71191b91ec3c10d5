"""Memory: alignment, packing and pages of native code's weights and counters.

In:    sizes, tensors
Out:   aligned memory, weights in the order in which they are read
Owns:  an arena's pages
Never: computation
"""

import mmap

import torch

PANEL, LANES = 32, 16  # outputs computed together, numbers of a vector; as in simd.h
ALIGNMENT = 64  # bytes: a register, a cache line
HUGE_PAGE = 1 << 21  # bytes


def aligned(size: int) -> torch.Tensor:
    """Returns `size` or more zeroed bytes, aligned to a cache line."""
    memory = torch.zeros(size + ALIGNMENT, dtype=torch.uint8)
    return memory[-memory.data_ptr() % ALIGNMENT :]


def pack(weight: torch.Tensor, *, in_pairs: bool = False) -> torch.Tensor:
    """Returns weights (out, in) as panels of 32 outputs, each input's weights together: (out / 32, in, 32).

    In bfloat16, and if `in_pairs`, two inputs alternate, one pair per output: (out / 32, in / 2, 32, 2).
    """
    outputs, inputs = weight.shape
    pair = 2 if in_pairs or weight.dtype is torch.bfloat16 else 1
    return weight.view(outputs // PANEL, PANEL, inputs // pair, pair).transpose(1, 2).contiguous()


def pack_tiles(weight: torch.Tensor) -> torch.Tensor:
    """Returns weights (out, in) as panels of 32 outputs, each a row of pairs of AMX tiles.

    The shape is (out / 32, in / depth, 2, 16, 16, 4 bytes). A tile holds 64 bytes of inputs (its depth) of 16 outputs; four
    bytes of inputs of one output are adjacent.
    """
    outputs, inputs = weight.shape
    together = 4 // weight.itemsize
    split = weight.view(outputs // PANEL, 2, LANES, inputs // (LANES * together), LANES, together)
    return split.permute(0, 3, 1, 4, 2, 5).contiguous()


class Arena:
    """Memory for weights and the KV cache, in pages of 2 MiB if the system allows: every step reads all of it."""

    def __init__(self, size: int) -> None:
        # Private: Linux gives no large pages to shared memory, which is Python's default.
        self._pages = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._pages.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(self._pages, dtype=torch.uint8)
        self._used = -self._bytes.data_ptr() % HUGE_PAGE

    def zeros(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns a new tensor of zeros; the system provides its pages when they are first touched."""
        size = torch.Size(shape).numel() * dtype.itemsize
        place = self._bytes[self._used : self._used + size].view(dtype).view(shape)
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return place

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy of a tensor in this memory."""
        return self.zeros(*tensor.shape, dtype=tensor.dtype).copy_(tensor)
