"""Layer: the operations between a layer's matrix products.

In:    the residual stream, a product's result
Out:   the next product's input
Never: positions, heads, slots

The residual stream and the norm are float32 for every dtype of the products.
Compared with torch: add_norm is equal up to the order of one float32 sum; gate rounds once, silu(gate) * up twice.
"""

import torch
import triton
import triton.language as tl

GATE_BLOCK = 1024


@triton.jit
def _add_norm(
    residual,  # (M, WIDTH) float32
    delta,  # (PARTS, M, WIDTH); not read if PARTS is 0
    weight,  # (WIDTH,) float32
    normed,  # (M, WIDTH) dtype
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    x = tl.load(residual + row * WIDTH + column, mask=inside, other=0.0)
    for part in tl.static_range(PARTS):
        place = part * tl.num_programs(0) + row
        x += tl.load(delta + place * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if PARTS > 0:
        tl.store(residual + row * WIDTH + column, x, mask=inside)
    scale = tl.rsqrt(tl.sum(x * x) / WIDTH + eps)
    y = x * scale * tl.load(weight + column, mask=inside, other=0.0)
    tl.store(normed + row * WIDTH + column, y.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _gate(
    gate_up,  # (M, 2 * WIDTH) dtype: gates, then the values that they scale
    gated,  # (M, WIDTH) dtype
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(gated + row * WIDTH + column, y.to(gated.dtype.element_ty), mask=inside)


def add_norm(
    residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, normed: torch.Tensor, *, eps: float
) -> None:
    """Adds `delta` to the residual stream, and writes its RMSNorm to `normed`.

    Args:
        residual: (M, width) float32, changed.
        delta: (P, M, width), added one after another; None: nothing is added.
        weight: (width,) float32.
        normed: (M, width), written.
    """
    rows, width = residual.shape
    _add_norm[(rows,)](
        residual,
        residual if delta is None else delta,
        weight,
        normed,
        eps,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        PARTS=0 if delta is None else len(delta),
        num_warps=4,
    )


def gate(gate_up: torch.Tensor, gated: torch.Tensor) -> None:
    """Writes silu of the first half of gate_up (M, 2 * width) times the second half to gated (M, width)."""
    rows, width = gated.shape
    _gate[(rows, triton.cdiv(width, GATE_BLOCK))](gate_up, gated, WIDTH=width, BLOCK=GATE_BLOCK, num_warps=4)
