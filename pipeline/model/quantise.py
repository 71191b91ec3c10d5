"""Quantise: numbers as integers of 8 bits and one scale for those that belong together.

In:    rows of numbers: the weights of one output, one head's key or value
Out:   int8, and a scale a row
Owns:  nothing
Never: what the rows are

Symmetric, by the largest number of a row, to the nearest integer, ties to the even one. The largest error is half a scale.
pipeline/model/gpu/kernels/attention.py does the same in a kernel, pipeline/model/cpu/decode.cpp on a CPU, bit for bit.
"""

import torch

LARGEST = 127
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""of a row of zeros; no smaller one, because a GPU may take it for 0"""


def quantise(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(..., n) floating as int8 (..., n) and scales (...) float32: numbers ~ int8 * scale.

    A row with a number that is not finite comes back from `dequantise` with none that is.
    """
    exact = numbers.float()
    scales = (exact.abs().amax(-1) / LARGEST).clamp(min=SMALLEST_SCALE)
    return (exact / scales[..., None]).round().clamp(-LARGEST, LARGEST).to(torch.int8), scales


def dequantise(quantised: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """int8 (..., n) and scales (...) -> float32 (..., n)."""
    return quantised * scales[..., None]
