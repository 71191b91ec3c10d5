"""Companding: G.711, the telephone's code: one byte for each 16-bit sample.

Out:   a table from samples, by their bits, to bytes
Never: containers
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray


@cache
def _ulaw_table() -> NDArray[np.uint8]:
    """Returns the byte of each 16-bit sample, by its bits: (65536,)."""
    code = ~np.arange(256) & 0xFF
    magnitude = ((((code & 15) << 3) + 132) << (code >> 4 & 7)) - 132
    return _nearest(np.where(code & 128, -magnitude, magnitude))


@cache
def _alaw_table() -> NDArray[np.uint8]:
    """Returns the byte of each 16-bit sample, by its bits: (65536,)."""
    code = np.arange(256) ^ 0x55
    exponent, mantissa = code >> 4 & 7, code & 15
    magnitude = np.where(exponent == 0, (mantissa << 4) + 8, ((mantissa << 4) + 264) << np.maximum(exponent - 1, 0))
    return _nearest(np.where(code & 128, magnitude, -magnitude))


def _nearest(levels: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Returns for each 16-bit sample the byte with the nearest of the 256 levels; zero is +0."""
    order = np.argsort(levels, kind="stable")
    borders = (levels[order][:-1] + levels[order][1:]) / 2
    samples = np.arange(65_536).astype(np.uint16).view(np.int16)
    return order[np.searchsorted(borders, samples, side="right")].astype(np.uint8)


COMPANDED = {"ulaw": _ulaw_table, "alaw": _alaw_table}
"""container -> its table"""
