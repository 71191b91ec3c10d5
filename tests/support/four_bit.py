"""Four bits: the products of pipeline/native/product_groups.h, slowly, in torch."""

import numpy as np
import torch

from pipeline.model.cpu import four_bit, native
from pipeline.model.linear import Product
from pipeline.native.compiler import library


def rounded_inputs(x: torch.Tensor) -> torch.Tensor:
    """Rounds every 32 inputs of x (M, in) to 8 bits with one scale."""
    groups = x.float().view(len(x), -1, four_bit.GROUP)
    largest = groups.abs().amax(-1, keepdim=True)
    return ((groups * (127 / largest)).round() * (largest / 127)).nan_to_num(nan=0.0).view(x.shape)


def rounded_weight(weight: torch.Tensor) -> torch.Tensor:
    """Returns a weight (out, in) as four bits hold it."""
    found = four_bit.rounded(weight.float().contiguous().numpy(), library(native.SOURCE), threads=1)
    return torch.from_numpy(np.ascontiguousarray(four_bit.weights_of(*found)))


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
