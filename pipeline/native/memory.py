"""Memory: alignment, packing and pages of native code's weights and counters.

In:    sizes, arrays
Out:   aligned memory, weights in the order in which they are read; free memory, to the system
Owns:  an arena's pages
Never: computation
"""

import ctypes
import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

PANEL, LANES = 32, 16  # outputs computed together, numbers of a vector; as in simd.h
ALIGNMENT = 64  # bytes: a register, a cache line
HUGE_PAGE = 1 << 21  # bytes
_MMAP_THRESHOLD = -3  # as in malloc.h
BFLOAT16 = np.dtype(np.uint16)  # its bits: pipeline/bfloat16.py


def address(array: NDArray[Any]) -> int:
    """Returns where an array begins. Whoever keeps the address keeps the array."""
    assert array.flags.c_contiguous, "native code sees plain arrays"
    return array.ctypes.data


def aligned(size: int) -> NDArray[np.uint8]:
    """Returns `size` or more zeroed bytes, aligned to a cache line."""
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    return memory[-memory.ctypes.data % ALIGNMENT :]


def pack(weight: NDArray[Any], *, in_pairs: bool = False) -> NDArray[Any]:
    """Returns weights (out, in) as panels of 32 outputs, each input's weights together: (out / 32, in, 32).

    In bfloat16, and if `in_pairs`, two inputs alternate, one pair per output: (out / 32, in / 2, 32, 2).
    """
    outputs, inputs = weight.shape
    if not in_pairs and weight.dtype != BFLOAT16:
        return np.ascontiguousarray(weight.reshape(outputs // PANEL, PANEL, inputs).transpose(0, 2, 1))
    return np.ascontiguousarray(weight.reshape(outputs // PANEL, PANEL, inputs // 2, 2).transpose(0, 2, 1, 3))


def pack_tiles(weight: NDArray[Any]) -> NDArray[Any]:
    """Returns weights (out, in) as panels of 32 outputs, each a row of pairs of AMX tiles.

    The shape is (out / 32, in / depth, 2, 16, 16, 4 bytes). A tile holds 64 bytes of inputs (its depth) of 16 outputs; four
    bytes of inputs of one output are adjacent.
    """
    outputs, inputs = weight.shape
    together = 4 // weight.itemsize
    split = weight.reshape(outputs // PANEL, 2, LANES, inputs // (LANES * together), LANES, together)
    return np.ascontiguousarray(split.transpose(0, 3, 1, 4, 2, 5))


def return_free_memory() -> None:
    """Gives the system the pages that nothing uses any more. glibc keeps what loading weights has freed: up to 33 MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc has it, other C libraries have not
        trim(ctypes.c_size_t(0))


def return_large_blocks() -> None:
    """Makes malloc map blocks of 1 MiB and more and give them back when they are freed. Call it before anything is loaded.

    glibc raises that limit to the largest block ever freed: what loading frees then stays, 27 MB with the demo voice.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, 1 << 20)


class Arena:
    """Memory for weights and the KV cache, in pages of 2 MiB if the system allows: every step reads all of it."""

    def __init__(self, size: int) -> None:
        # Private: Linux gives no large pages to shared memory, which is Python's default.
        self._pages = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._pages.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(self._pages, np.uint8)
        self._used = -self._bytes.ctypes.data % HUGE_PAGE

    def zeros(self, *shape: int, dtype: DTypeLike) -> NDArray[Any]:
        """Returns a new array of zeros; the system provides its pages when they are first touched."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        place = self._bytes[self._used : self._used + size].view(dtype).reshape(shape)
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return place

    def keep(self, array: NDArray[Any]) -> NDArray[Any]:
        """Returns a copy of an array in this memory."""
        copy = self.zeros(*array.shape, dtype=array.dtype)
        copy[...] = array
        return copy
