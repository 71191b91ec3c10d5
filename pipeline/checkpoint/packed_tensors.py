"""Packed tensors: smaller forms of a tensor in a checkpoint's file, and how they are widened.

In:    the arrays of a file by name
Out:   shapes and numbers of the tensors that they stand for
Owns:  the forms; the levels of 4 bits, as in pipeline/native/product_groups.h
Never: files; rounding (serve/commands/weights/pack_checkpoint.py): it is the engine's own

    name.int8, name.scale          (out, in) and one float32 per output
    name.int4, name.scale          (out, in / 2), the first of two in the low bits, and one bfloat16 per 32 inputs
    name.rows, name.index          rows that differ, and for each row of the tensor its place among them

Rounding what is widened gives the same integers and scales again, so `engine.weights` has the same bytes from either file.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

LEVELS = np.array([-63, -50, -40, -31, -24, -17, -11, -5, 1, 7, 12, 18, 25, 32, 41, 54], np.float32)
"""what codes of 4 bits stand for, in units of their group's scale"""
GROUP = 32  # inputs that share a scale; as in product_groups.h
LARGEST = np.float32(127)
Floats = NDArray[np.float32]


def unpacked_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the tensors that a file's arrays stand for."""
    result: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        base, _, form = name.rpartition(".")
        if form == "int4":
            shape = (*shape[:-1], 2 * shape[-1])
        elif form == "index":
            shape = (*shape, *shapes.get(f"{base}.rows", ())[1:])
        if form not in ("rows", "scale"):
            result[base if form in ("int8", "int4", "index") else name] = shape
    return result


def widen_int8(numbers: NDArray[np.int8], scales: Floats) -> Floats:
    """Returns (out, in) float32. The largest of a row is the number that, over 127, is the scale to the last bit."""
    widened = numbers * scales[:, None]
    near = LARGEST * scales
    for top in (np.nextafter(near, 0), np.nextafter(near, np.float32(np.inf)), near):
        fits = top / LARGEST == scales
        at = fits[:, None] & (np.abs(numbers) == 127)
        widened = np.where(at, np.sign(numbers) * top[:, None], widened)
    return widened.astype(np.float32)


def widen_int4(pairs: NDArray[np.uint8], scales: Floats) -> Floats:
    """Returns (out, in) float32 for pairs (out, in / 2) and scales (out, in / 32)."""
    codes = np.stack([pairs & 15, pairs >> 4], -1).reshape(len(pairs), -1)
    return LEVELS[codes] * np.repeat(scales, GROUP, 1)
