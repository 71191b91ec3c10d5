"""Quantise in numpy: weights as 8-bit integers with one scale per output, with the bits of pipeline/model/quantise.py.

In:    weights (out, in)
Out:   int8, and one scale per output
Never: torch
"""

import numpy as np
from numpy.typing import NDArray

LARGEST = np.float32(127)
SMALLEST_SCALE = np.finfo(np.float32).tiny


def quantise(numbers: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Returns int8 (..., n) and scales (...) float32 for float32 numbers (..., n): numbers ~ int8 * scale."""
    scales = np.maximum(np.abs(numbers).max(-1) / LARGEST, SMALLEST_SCALE)
    return np.clip(np.rint(numbers / scales[..., None]), -LARGEST, LARGEST).astype(np.int8), scales
