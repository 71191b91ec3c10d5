"""Four bits: weights in groups of 32 inputs, each a scale in bfloat16 and codes of 4 bits.

In:    weights in float32
Out:   codes and scales; panels as pipeline/native/product_groups.h reads them
Never: the choice of a scale (pipeline/native/round_groups.h), products

Half a byte and a sixteenth for each weight. A code stands for one of the sixteen levels of product_groups.h, which lie closer
together near zero.
"""

import ctypes

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.packed_tensors import GROUP
from pipeline.native.memory import LANES, PANEL

BYTES = 0.5 + 2 / GROUP  # of a weight, its part of the scale included

FourBits = tuple[NDArray[np.uint8], NDArray[np.uint16]]
"""codes (out, in) and the bits of the scales (out, in / 32)"""


def rounded(weight: NDArray[np.float32], library: ctypes.CDLL, *, threads: int) -> FourBits:
    """Rounds weights. Each group has the scale of the least squared error of those tried; NaN if a weight is not finite.

    Args:
        weight: (out, in) float32, contiguous.
        library: decode.cpp, compiled.
    """
    assert weight.dtype == np.float32, f"{weight.dtype} where float32 is read"
    assert weight.flags.c_contiguous, "the C++ code knows no strides"
    outputs, inputs = weight.shape
    codes, scales = np.empty(weight.shape, np.uint8), np.empty((outputs, inputs // GROUP), np.uint16)
    library.round_weights(
        ctypes.c_void_p(weight.ctypes.data),
        ctypes.c_int64(scales.size),
        ctypes.c_int64(threads),
        ctypes.c_void_p(codes.ctypes.data),
        ctypes.c_void_p(scales.ctypes.data),
    )
    return codes, scales


def pack_groups(codes: NDArray[np.uint8], scales: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Returns panels of 32 outputs, group after group: (out / 32, in / 32, 576) bytes.

    A group is its 32 scales, those of the panel's halves in turn, then a byte for every four inputs, sixteen outputs and input:
    the first half's code in its low four bits, the other half's in the high ones.
    """
    panels, groups = len(codes) // PANEL, codes.shape[1] // GROUP
    halves = codes.reshape(panels, 2, LANES, groups, GROUP // 4, 4)
    both = (halves[:, 0] | halves[:, 1] << 4).transpose(0, 2, 3, 1, 4).reshape(panels, groups, PANEL * GROUP // 2)
    in_turn = np.ascontiguousarray(scales.reshape(panels, 2, LANES, groups).transpose(0, 3, 2, 1))
    return np.concatenate([in_turn.view(np.uint8).reshape(panels, groups, 2 * PANEL), both], 2)
