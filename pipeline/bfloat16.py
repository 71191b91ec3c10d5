"""Bfloat16: the upper half of a float32, which numpy has no type for, as uint16.

In:    float32, or the bits of bfloat16 as uint16
Out:   the other one of the two
Never: torch; arithmetic in bfloat16
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

QUIET_NAN = 0x7FC0
HALF = 0x7FFF  # just below half of the last bit that stays
INFINITY = 0x7F800000  # larger bits, but for the sign, are no numbers


def rounded(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Returns the nearest bfloat16 of each number, of two equally near ones the even one, as torch rounds."""
    bits: NDArray[Any] = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    nearest = ((bits + np.uint32(HALF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    nearest[(bits & np.uint32(0x7FFFFFFF)) > INFINITY] = QUIET_NAN
    return nearest


def widened(numbers: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Returns the same numbers as float32."""
    return (numbers.astype(np.uint32) << np.uint32(16)).view(np.float32)
