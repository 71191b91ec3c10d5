"""FP8: what rounding to 8-bit floating point (E4M3) would do, computed in torch; the engine itself has no such format.

In:    the weights of a product; keys and values
Out:   Fp8Linear, Fp8KeysValues
Owns:  nothing
Never: an FP8 kernel: these numbers are right, and slow

Weights have one scale per output, activations one per row, as FP8 products on a GPU have them. Keys and values have none: their
size suits the format, and a scale would change its exponent alone.
Source of the format: Micikevicius et al., FP8 Formats for Deep Learning, 2022.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pipeline.model.gpt import Cached, KeysValues
from pipeline.model.linear import Product

E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max


def rounded(numbers: torch.Tensor) -> torch.Tensor:
    """Returns the nearest numbers of the format, in the dtype of `numbers`; those beyond its range become its largest."""
    return numbers.clamp(-LARGEST, LARGEST).to(E4M3).to(numbers.dtype)


def rounded_rows(rows: torch.Tensor) -> torch.Tensor:
    """Returns rows (..., n) rounded with one scale each, float32."""
    scales = rows.float().abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
    return rounded(rows.float() / scales) * scales


class Fp8Linear(Product):
    """A product with rounded weights, summed in float32."""

    def __init__(self, weight: torch.Tensor, *, with_activations: bool) -> None:
        """
        Args:
            weight: (out, in) floating.
            with_activations: True: x is rounded too, as FP8 tensor cores need it.
        """
        self._weight = rounded_rows(weight)
        self._with_activations = with_activations

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        given = rounded_rows(x) if self._with_activations else x.float()
        return torch.nn.functional.linear(given, self._weight).to(x.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Cached(Cached):
    """Keys, or values, that are rounded when they are written."""

    def write(self, place: tuple[slice | torch.Tensor, ...], rows: torch.Tensor) -> None:
        """Writes rows (..., head_dim), rounded."""
        self.numbers[place] = rounded(rows)


@dataclass(frozen=True, slots=True, eq=False)
class Fp8KeysValues(KeysValues):
    """A KV cache whose numbers are rounded; bfloat16 and float32 hold them exactly."""

    def layers(self) -> Iterator[tuple[Cached, Cached]]:
        """Yields keys and values, layer by layer."""
        for keys, values in zip(self.keys, self.values, strict=True):
            yield Fp8Cached(keys, None), Fp8Cached(values, None)
