"""Attention: one position of every slot attends to the used positions of its slot, and to no others.

In:    the layer's projections, each slot's position; the KV cache
Out:   each slot's attended values; the new keys and values, rotated, in the cache
Never: prompts (prefill is torch's), masks

There is one program per (slot, head, split). A split is a fixed number of positions, so the way a slot's sum is split depends
on its own length alone. Each program rotates its query; the one whose split holds the new position also rotates the key,
writes key and value to the cache and uses them from its registers. If a slot has several splits, a second kernel
joins them, lowest first.

    qkv (S, 3 heads head_dim) --.                         .-- one split: attention
    cache [0, position) --------+-- attend (S, heads, n) --+
                                '--> cache[position]       '-- n splits: maximum, sum, weighted values -- join --> attention

An int8 cache has one scale per position and head. The new key and value are rounded before they are attended to, as every later
step will read them; a key's scale multiplies its score, a value's its weight.

A program loads blocks of positions while it computes the ones before. Each place in a block has a maximum, a sum and values of
its own, which meet once, after the last block: in the loop no sum crosses warps.

Source of the online softmax and of splitting the positions: Dao et al., FlashAttention-2 and Flash-Decoding.
It equals torch's SDPA up to rounding: float32 to 1e-6, bfloat16 to its last place (tests/unit, test_kernels.py).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pipeline.model.gpt import Cached
from pipeline.model.quantise import LARGEST, SMALLEST_SCALE

LOWEST = -3.0e38
"""below every score; finite, so that the difference of two is a number"""
FULL_CHIP = 192
"""number of programs that keeps every multiprocessor of a large GPU busy without splits"""
SHORT_SPLIT = 128
"""positions per split if slots and heads alone are too few programs"""


@triton.jit
def rotated(row, cos, sin, HEAD_DIM: tl.constexpr, dtype: tl.constexpr):
    """Returns the numbers of one head (HEAD_DIM,), or of several (heads, HEAD_DIM), rotated and rounded to the model's dtype.

    `row` points to the head's first number, or is (heads, 1) of such pointers.
    """
    dim = tl.arange(0, HEAD_DIM)
    straight = tl.load(row + dim).to(tl.float32)
    swapped = tl.load(row + (dim + HEAD_DIM // 2) % HEAD_DIM).to(tl.float32)
    return (straight * cos + swapped * sin).to(dtype)


@triton.jit
def _quantised(heads, LARGEST: tl.constexpr, SMALLEST: tl.constexpr):
    """Returns whole numbers of 8 bits, still float32, and a scale for each head: pipeline/model/quantise.py."""
    AXIS: tl.constexpr = len(heads.shape) - 1
    largest = tl.max(tl.abs(heads), axis=AXIS, keep_dims=AXIS == 1)
    scale = tl.maximum(tl.div_rn(largest, tl.full(largest.shape, LARGEST, tl.float32)), SMALLEST)
    # A maximum ignores NaN.
    scale = tl.where(tl.sum((heads != heads).to(tl.int32), axis=AXIS, keep_dims=AXIS == 1) > 0, float("nan"), scale)
    # The nearest whole number, ties to the even one: beyond 2^23 a float32 holds no fractions.
    shift = 12582912.0  # 1.5 * 2^23
    whole = (tl.div_rn(heads, tl.zeros_like(heads) + scale) + shift) - shift
    return tl.minimum(tl.maximum(whole, -LARGEST), LARGEST), scale


@triton.jit
def written(
    heads,  # (HEAD_DIM,) float32, or (heads, HEAD_DIM)
    numbers,  # (slots, HEADS, CACHED, HEAD_DIM) dtype, or int8
    scales,  # (slots, HEADS, CACHED) float32; not written unless QUANTISED
    place,  # int64, of (slots, HEADS, CACHED), or (heads, 1) of them
    HEAD_DIM: tl.constexpr,
    QUANTISED: tl.constexpr,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
):
    """Writes keys or values of one head or several to the cache. Returns the numbers that it holds, and their scales."""
    scale = 1.0
    if QUANTISED:
        heads, scale = _quantised(heads, LARGEST, SMALLEST)
        tl.store(scales + place, scale)
    tl.store(numbers + place * HEAD_DIM + tl.arange(0, HEAD_DIM), heads.to(numbers.dtype.element_ty))
    return heads, scale


@triton.jit
def _attend(
    qkv,  # (S, 3 * HEADS * HEAD_DIM) dtype
    cosines,  # (positions, HEAD_DIM) float32
    sines,  # (positions, HEAD_DIM) float32, signed
    positions,  # (S,) int32
    busy,  # (S,) int32
    keys,  # (slots, HEADS, CACHED, HEAD_DIM) dtype, or int8
    values,
    key_scales,  # (slots, HEADS, CACHED) float32; not read or written unless QUANTISED
    value_scales,
    attention,  # (S, HEADS * HEAD_DIM) dtype
    maxima,  # (S, HEADS, SPLITS) float32
    sums,
    weighted,  # (S, HEADS, SPLITS, HEAD_DIM) float32
    scale,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CACHED: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    LOWEST: tl.constexpr,
    QUANTISED: tl.constexpr,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
):
    slot = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    dtype = attention.dtype.element_ty
    dim = tl.arange(0, HEAD_DIM)
    is_busy = tl.load(busy + slot) != 0
    position = tl.load(positions + slot)
    start = split * SPLIT
    if is_busy & (start <= position):
        cos = tl.load(cosines + position * HEAD_DIM + dim)
        sin = tl.load(sines + position * HEAD_DIM + dim)
        row = qkv + slot * (3 * HEADS * HEAD_DIM) + head * HEAD_DIM
        query = rotated(row, cos, sin, HEAD_DIM, dtype).to(tl.float32) * scale
        scale_place = (slot.to(tl.int64) * HEADS + head) * CACHED
        place = scale_place * HEAD_DIM
        # Each of the block's places has a maximum, a sum and mixed values of its own.
        lane = tl.arange(0, BLOCK)
        maximum = tl.full((BLOCK,), LOWEST, tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        mixed = tl.zeros((BLOCK, HEAD_DIM), tl.float32)
        if position < start + SPLIT:
            # The new position belongs to this split: it comes first.
            new_place = scale_place + position
            key = rotated(row + HEADS * HEAD_DIM, cos, sin, HEAD_DIM, dtype).to(tl.float32)
            key, key_scale = written(key, keys, key_scales, new_place, HEAD_DIM, QUANTISED, LARGEST, SMALLEST)
            score = tl.sum(query * key)
            value = tl.load(row + 2 * HEADS * HEAD_DIM + dim).to(tl.float32)
            value, value_scale = written(value, values, value_scales, new_place, HEAD_DIM, QUANTISED, LARGEST, SMALLEST)
            if QUANTISED:
                score *= key_scale
                value *= value_scale
            maximum = tl.where(lane == 0, score, LOWEST)
            total = tl.where(lane == 0, 1.0, 0.0)
            mixed = tl.where(lane[:, None] == 0, value[None, :], 0.0)
        # The cached positions of this split: those before the new one.
        stop = tl.minimum(start + SPLIT, position)
        for begin in tl.range(start, stop, BLOCK, num_stages=STAGES):
            at = begin + lane
            inside = at < stop
            offsets = place + at[:, None] * HEAD_DIM + dim[None, :]
            key_block = tl.load(keys + offsets, mask=inside[:, None], other=0.0).to(tl.float32)
            value_block = tl.load(values + offsets, mask=inside[:, None], other=0.0).to(tl.float32)
            score = tl.sum(query[None, :] * key_block, axis=1)
            if QUANTISED:
                score *= tl.load(key_scales + scale_place + at, mask=inside, other=0.0)
            score = tl.where(inside, score, LOWEST)
            higher = tl.maximum(maximum, score)
            rescale = tl.exp(maximum - higher)
            weight = tl.where(inside, tl.exp(score - higher), 0.0)
            total = total * rescale + weight
            if QUANTISED:
                weight *= tl.load(value_scales + scale_place + at, mask=inside, other=0.0)
            mixed = mixed * rescale[:, None] + weight[:, None] * value_block
            maximum = higher
        highest = tl.max(maximum)
        share = tl.exp(maximum - highest)
        sum_of_all = tl.sum(total * share)
        mixed_of_all = tl.sum(mixed * share[:, None], axis=0)
        if SPLITS == 1:
            tl.store(attention + (slot * HEADS + head) * HEAD_DIM + dim, (mixed_of_all / sum_of_all).to(dtype))
        else:
            part = (slot * HEADS + head) * SPLITS + split
            tl.store(maxima + part, highest)
            tl.store(sums + part, sum_of_all)
            tl.store(weighted + part * HEAD_DIM + dim, mixed_of_all)
    elif SPLITS == 1:
        tl.store(attention + (slot * HEADS + head) * HEAD_DIM + dim, tl.zeros((HEAD_DIM,), dtype))


@triton.jit
def _join(
    positions,  # (S,) int32
    busy,  # (S,) int32
    maxima,  # (S, HEADS, SPLITS) float32
    sums,
    weighted,  # (S, HEADS, SPLITS, HEAD_DIM) float32
    attention,  # (S, HEADS * HEAD_DIM)
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
):
    slot = tl.program_id(0)
    head = tl.program_id(1)
    dim = tl.arange(0, HEAD_DIM)
    is_busy = tl.load(busy + slot) != 0
    used = tl.load(positions + slot) // SPLIT + 1
    part = (slot * HEADS + head) * SPLITS
    mixed = tl.zeros((HEAD_DIM,), tl.float32)
    if is_busy:
        maximum = float("-inf")
        total = 0.0
        split = 0
        while split < used:
            own = tl.load(maxima + part + split)
            higher = tl.maximum(maximum, own)
            rescale = tl.exp(maximum - higher)
            weight = tl.exp(own - higher)
            total = total * rescale + weight * tl.load(sums + part + split)
            mixed = mixed * rescale + weight * tl.load(weighted + (part + split) * HEAD_DIM + dim)
            maximum = higher
            split += 1
        mixed = mixed / total
    tl.store(attention + (slot * HEADS + head) * HEAD_DIM + dim, mixed.to(attention.dtype.element_ty))


@dataclass(frozen=True, slots=True)
class Shape:
    """How a slot's positions are divided: it changes the last bits, so it follows from the configuration alone."""

    split: int
    """positions of one program"""
    block: int = 64
    """positions that a program loads at once: 8 KiB of keys and as much of values in bfloat16, half of it in int8"""
    warps: int = 4
    """of 32 threads, per program"""
    stages: int = 3
    """blocks that a program has at once: it computes one and loads the others"""


def chosen_shape(slots: int, heads: int, positions: int) -> Shape:
    """Returns the shape for an engine of this size; section `attention` of the GPU check measures others."""
    return Shape(positions if slots * heads >= FULL_CHIP else min(SHORT_SPLIT, positions))


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """The decode attention of one engine, with its buffers."""

    shape: Shape
    maxima: torch.Tensor  # (S, heads, splits) float32
    sums: torch.Tensor  # same
    weighted: torch.Tensor  # (S, heads, splits, head_dim) float32

    @staticmethod
    def allocate(*, slots: int, heads: int, head_dim: int, positions: int, shape: Shape, device: torch.device) -> "Attention":
        """Allocates the buffers.

        Args:
            positions: length of the longest sequence [positions].
            shape: another one rounds differently.
        """
        parts = slots, heads, -(-positions // shape.split)
        return Attention(
            shape,
            torch.zeros(parts, device=device),
            torch.zeros(parts, device=device),
            torch.zeros((*parts, head_dim), device=device),
        )

    def __call__(
        self,
        qkv: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        positions: torch.Tensor,
        busy: torch.Tensor,
        keys: Cached,
        values: Cached,
        attention: torch.Tensor,
    ) -> None:
        """Attends for every busy slot, and writes its new key and value to the cache.

        Args:
            qkv: (S, 3 * heads * head_dim) in the model's dtype, not rotated.
            rotation: cosines and signed sines, each (positions, head_dim) float32.
            positions: (S,) int32, where each slot writes.
            busy: (S,) int32, 0 for a slot that does not take part.
            keys, values: one layer's cache; written at each busy slot's position.
            attention: (S, heads * head_dim) in the model's dtype, the result; 0 for idle slots.
        """
        slots, heads, splits = self.maxima.shape
        head_dim = self.weighted.shape[-1]
        _attend[(slots, heads, splits)](
            qkv,
            *rotation,
            positions,
            busy,
            keys.numbers,
            values.numbers,
            keys.numbers if keys.scales is None else keys.scales,
            values.numbers if values.scales is None else values.scales,
            attention,
            self.maxima,
            self.sums,
            self.weighted,
            head_dim**-0.5,
            HEADS=heads,
            HEAD_DIM=head_dim,
            CACHED=keys.numbers.shape[2],
            SPLIT=self.shape.split,
            SPLITS=splits,
            BLOCK=self.shape.block,
            STAGES=self.shape.stages,
            LOWEST=LOWEST,
            QUANTISED=keys.scales is not None,
            LARGEST=LARGEST,
            SMALLEST=SMALLEST_SCALE,
            num_warps=self.shape.warps,
        )
        if splits > 1:
            _join[(slots, heads)](
                positions,
                busy,
                self.maxima,
                self.sums,
                self.weighted,
                attention,
                HEADS=heads,
                HEAD_DIM=head_dim,
                SPLIT=self.shape.split,
                SPLITS=splits,
                num_warps=2,
            )
