"""Code tables: the embedding of every value of a code, for a vocoder that decodes codes (`use_decoder: false`).

In:    the quantiser's half of a checkpoint's DVAE
Out:   one table per code
Never: torch (pipeline/vocoder/windowed/code_embedding.py, which says what a code is)
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.layout import RESIDUAL_SCALES, VQ_GROUPS, VQ_LEVELS, below
from pipeline.spec import CODEBOOKS


def code_tables(tensors: Mapping[str, NDArray[np.float32]]) -> tuple[NDArray[np.float32], ...]:
    """Returns (625, width / groups) float32 for each of the four codes.

    The sum over a group's codes is its part of the embedding. Unlike a matrix product, its order does not depend on the number
    of rows.
    """
    levels = np.array(VQ_LEVELS)
    middle = levels // 2
    digits = np.arange(levels.prod())[:, None] // (levels.cumprod() // levels) % levels
    values = ((digits - middle) / middle).astype(np.float32)
    scales, tables = np.array(RESIDUAL_SCALES, np.float32), []
    for group in range(VQ_GROUPS):
        own = below(tensors, f"vq_layer.quantizer.rvqs.{group}.project_out.")
        for refinement in range(CODEBOOKS // VQ_GROUPS):
            table = _product(values * scales**refinement, own["weight"])
            tables.append(table if refinement else table + own["bias"])
    return tuple(tables)


def _product(values: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns values @ weight.T, each term added in float32, in order and without an error in its product: as FMA does."""
    total = np.zeros((len(values), len(weight)), np.float32)
    for digit in range(values.shape[1]):
        total = (total + values[:, digit : digit + 1].astype(np.float64) * weight[:, digit]).astype(np.float32)
    return total
