"""Product: multiplies rows by int8 weights with one scale per output.

In:    x (M, in)
Out:   (M, out), or float32 summands of it
Owns:  the rounded weight
Never: another copy of it, dequantised

Weights are read as bytes, become bfloat16 in registers, where every integer up to 127 is exact, and are summed in float32;
the scale comes last. Inputs are read in one order, in blocks that depend on the weight's shape alone, and the kernel pads
rows: a row's sum does not depend on other rows.

A step has few rows, so there are too few programs to fill a GPU: a product with few outputs is split by its inputs, and
the kernel that adds it to the residual stream adds the parts, lowest first (kernels/layer.py, kernels/step.py).

It equals pipeline/model/linear.py, QuantisedLinear, up to the order of one float32 sum.
"""

import math

import torch
import triton
import triton.language as tl

from pipeline.errors import ConfigError
from pipeline.model.linear import Product
from pipeline.model.quantise import quantise

LEAST_BLOCK = 16
"""numbers a tensor core takes at once"""
BLOCK_INPUTS = 128
ROWS = (LEAST_BLOCK, 64)
"""least and most rows per program; more rows need more programs, which share the weights through the cache"""
MANY_OUTPUTS = 4096
"""outputs from which programs have 64 each and keep half of a large GPU busy; below, they have 32"""
PARTS = 4
OPTIONS = {"num_warps": 4, "num_stages": 4}


@triton.jit
def _product(
    x,  # (rows, INPUTS) dtype
    weight,  # (OUTPUTS, INPUTS) int8
    scales,  # (OUTPUTS,) float32
    out,  # (parts, rows, OUTPUTS) dtype, or float32 if parts > 1
    rows,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PART_INPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    MEETING: tl.constexpr,
):
    output = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    part = tl.program_id(2)
    inside = row < rows
    # Weights stand on the left: the left operand may come from registers, where they have just become numbers.
    total = tl.zeros((BLOCK_OUTPUTS, BLOCK_ROWS), tl.float32)
    for begin in range(0, PART_INPUTS, BLOCK_INPUTS):
        place = part * PART_INPUTS + begin + tl.arange(0, BLOCK_INPUTS)
        rounded = tl.load(weight + output[:, None] * INPUTS + place[None, :])
        numbers = tl.load(x + row[None, :] * INPUTS + place[:, None], mask=inside[None, :], other=0.0)
        total = tl.dot(rounded.to(MEETING), numbers.to(MEETING), total, input_precision="ieee")
    y = total * tl.load(scales + output)[:, None]
    target = out + (part * rows + row[None, :]) * OUTPUTS + output[:, None]
    tl.store(target, y.to(out.dtype.element_ty), mask=inside[None, :])


def blocks(rows: int, inputs: int, outputs: int, parts: int) -> dict[str, int]:
    """Returns how a product is split into blocks: a function of its sizes alone."""
    return {
        "INPUTS": inputs,
        "OUTPUTS": outputs,
        "PART_INPUTS": inputs // parts,
        "BLOCK_INPUTS": math.gcd(inputs // parts, BLOCK_INPUTS),
        "BLOCK_OUTPUTS": math.gcd(outputs, 64 if outputs >= MANY_OUTPUTS else 32),
        "BLOCK_ROWS": min(max(triton.next_power_of_2(rows), ROWS[0]), ROWS[1]),
    }


class Int8Product(Product):
    """A product with an int8 weight on a GPU."""

    def __init__(self, weight: torch.Tensor) -> None:
        """
        Args:
            weight: (out, in) floating, on its final device.

        Raises:
            ConfigError: a dimension is no multiple of a block.
        """
        self._weight, self._scales = quantise(weight)
        outputs, inputs = weight.shape
        if outputs % LEAST_BLOCK or inputs % (PARTS * LEAST_BLOCK):
            raise ConfigError(
                f"engine.weights int8 on a GPU needs products of multiples of {PARTS * LEAST_BLOCK} inputs and of "
                f"{LEAST_BLOCK} outputs; this checkpoint has one of {inputs} and {outputs}: set weights to dtype"
            )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(x, 1, x.dtype)[0]

    def summands(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(x, PARTS, torch.float32)

    def _run(self, x: torch.Tensor, parts: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns the parts of the product, (parts, M, out) of `dtype`."""
        (rows, inputs), outputs = x.shape, len(self._weight)
        assert x.is_contiguous(), "rows are contiguous"
        block = blocks(rows, inputs, outputs, parts)
        out = torch.empty(parts, rows, outputs, dtype=dtype, device=x.device)
        _product[(outputs // block["BLOCK_OUTPUTS"], triton.cdiv(rows, block["BLOCK_ROWS"]), parts)](
            x,
            self._weight,
            self._scales,
            out,
            rows,
            # The interpreter's dot knows no bfloat16; in float32 the products are the same, exact.
            MEETING=tl.bfloat16 if x.is_cuda else tl.float32,
            **block,
            **OPTIONS,
        )
        return out
