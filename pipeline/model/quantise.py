"""Quantise: rounds rows of numbers to 8-bit integers with one scale per row.

In:    rows of numbers: the weights of one output, one head's key or value
Out:   int8, and one scale per row
Never: the meaning of the rows

Symmetric, by the largest number of a row, to the nearest integer, ties to even. The largest error is half a scale.
pipeline/model/gpu/kernels/attention.py does the same in a kernel, pipeline/model/cpu/decode.cpp on a CPU, bit for bit.
"""

import torch

LARGEST = 127
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""the scale of a row of zeros; no scale is smaller, because a GPU may flush it to 0"""


def quantise(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns int8 (..., n) and scales (...) float32 for floating numbers (..., n): numbers ~ int8 * scale.

    If a row has a number that is not finite, `dequantise` returns no finite number for that row.
    """
    exact = numbers.float()
    scales = (exact.abs().amax(-1) / LARGEST).clamp(min=SMALLEST_SCALE)
    return (exact / scales[..., None]).round().clamp(-LARGEST, LARGEST).to(torch.int8), scales


def dequantise(quantised: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Returns float32 (..., n) for int8 (..., n) and scales (...)."""
    return quantised * scales[..., None]
