"""Four bits: the products of pipeline/native/product_groups.h, slowly, in torch."""

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.bfloat16 import widened
from pipeline.checkpoint.packed_tensors import GROUP
from pipeline.checkpoint.packed_tensors import LEVELS as LEVELS
from pipeline.model.cpu import four_bit, native
from pipeline.model.linear import Product
from pipeline.native.compiler import library


def rounded_inputs(x: torch.Tensor) -> torch.Tensor:
    """Rounds every 32 inputs of x (M, in) to 8 bits with one scale."""
    groups = x.float().view(len(x), -1, GROUP)
    largest = groups.abs().amax(-1, keepdim=True)
    return ((groups * (127 / largest)).round() * (largest / 127)).nan_to_num(nan=0.0).view(x.shape)


def weights_of(codes: NDArray[np.uint8], scales: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Returns the weights (out, in) that codes and scales stand for."""
    return LEVELS[codes] * np.repeat(widened(scales), GROUP, 1)


def rounded_weight(weight: torch.Tensor) -> torch.Tensor:
    """Returns a weight (out, in) as four bits hold it."""
    rounded = four_bit.rounded(weight.float().contiguous().numpy(), library(native.SOURCE), threads=1)
    return torch.from_numpy(np.ascontiguousarray(weights_of(*rounded)))


class FourBitLinear(Product):
    """A product with weights of 4 bits: the slow twin of the native one."""

    def __init__(self, weight: torch.Tensor) -> None:
        """
        Args:
            weight: (out, in) floating.
        """
        self._weight = rounded_weight(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rounded_inputs(x), self._weight).to(x.dtype)
