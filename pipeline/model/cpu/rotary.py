"""Rotary: the cosines and sines by which queries and keys are turned.

In:    positions, the size of a head, the base of the angles
Out:   two tables
Owns:  rotary.npz: where torch's cosines and sines are not the nearest float32
Never: torch

torch's come from Intel's MKL on x86, which misses the nearest float32 by one in 5 % of the numbers. A seed's audio is made of
them, so the tables have the same: for 4096 positions, heads of up to 64 and the base 10000, which are ChatTTS's.
tests/unit/pipeline/model/test_rotary.py holds them against torch, and writes the file.
"""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).with_name("rotary.npz")
BASE, LARGEST_HEAD = 10_000.0, 64

Tables = tuple[NDArray[np.float32], NDArray[np.float32]]


def rotary_tables(positions: int, head_dim: int, base: float) -> Tables:
    """Returns cosines and signed sines, each (positions, head_dim) float32.

    Rotating [a, b] gives [a cos - b sin, b cos + a sin]: with the halves swapped by a roll, the sign sits in the table.
    """
    cos, sin = nearest(positions, head_dim, base)
    if base == BASE and LARGEST_HEAD % head_dim == 0:
        every = LARGEST_HEAD // head_dim  # smaller heads have some of the larger ones' frequencies
        cos, sin = (_moved(table, steps[:, ::every]) for table, steps in zip((cos, sin), _misses(), strict=True))
    return np.concatenate([cos, cos], -1), np.concatenate([-sin, sin], -1)


def nearest(positions: int, head_dim: int, base: float) -> Tables:
    """Returns the nearest float32 of cosines and sines, each (positions, head_dim / 2)."""
    exponents = np.arange(0, head_dim, 2).astype(np.float32) / np.float32(head_dim)
    frequencies = np.float32(1) / np.power(base, exponents.astype(np.float64)).astype(np.float32)
    angles = np.outer(np.arange(positions).astype(np.float32), frequencies).astype(np.float64)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@cache
def _misses() -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Returns by how many float32 torch's numbers lie above the nearest: (positions, 32), of cosines and of sines."""
    with np.load(FILE) as misses:
        return misses["cos"], misses["sin"]


def _moved(table: NDArray[np.float32], steps: NDArray[np.int8]) -> NDArray[np.float32]:
    known = min(len(table), len(steps))
    bits = table.view(np.int32).copy()
    bits[:known] += steps[:known]
    return bits.view(np.float32)
