"""Prompt: the parts of a prefill between and around its matrix products, as three kernels.

In:    prompts of one length; the layers' projections
Out:   embeddings; rotated queries and keys; the KV cache filled; the states and settings of the prompts' slots
Owns:  Prompts
Never: attention among a prompt's positions (torch's), where prompts come from (pipeline/engine/gpu_prompts.py)

    prompts -- embed --> residual -- layers: add_norm, qkv, place, attention, ... --> admit --> SlotState

A row is one position of one prompt; a padded one computes too, and is overwritten or never read.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pipeline.model.gpt import Cached
from pipeline.model.gpu.kernels.attention import rotated, written
from pipeline.model.gpu.kernels.row_embedding import embedded
from pipeline.model.gpu.kernels.step import SlotState
from pipeline.model.quantise import LARGEST, SMALLEST_SCALE
from pipeline.spec import CODEBOOKS, REPETITION_WINDOW

SETTINGS = ("top_k", "min_steps", "max_steps", "from_noise", "is_text")
PLACE_FIELDS = ("slot", "last", "speaker_at", *SETTINGS, "text_eos")
"""whole numbers of a prompt, in the order of the columns of Prompts.numbers"""
FLOAT_FIELDS = ("temperature", "dropped_mass", "penalty")
"""other numbers of a prompt, in the order of the columns of Prompts.floats"""
GROUP = 4
"""heads that a program places, if their number is a multiple"""
_FIELDS = tl.constexpr(len(PLACE_FIELDS))
_SLOT, _LAST, _SPEAKER_AT, _FIRST_SETTING = (
    tl.constexpr(PLACE_FIELDS.index(name)) for name in ("slot", "last", "speaker_at", SETTINGS[0])
)


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """The static input of one prefill: P prompts of L positions."""

    tokens: torch.Tensor  # (P, L, 5) int64: four ids, then whether they are text
    numbers: torch.Tensor  # (P, len(PLACE_FIELDS)) int64
    floats: torch.Tensor  # (P, len(FLOAT_FIELDS)) float32
    speakers: torch.Tensor  # (P, width) float32, normalised
    uniforms: torch.Tensor  # (P, steps, 4) float32

    def number(self, name: str) -> torch.Tensor:
        """Returns the column of one of PLACE_FIELDS: (P,) int64."""
        return self.numbers[:, PLACE_FIELDS.index(name)]


@triton.jit
def _embed(
    tokens,  # (P, L, BOOKS + 1) int64
    numbers,  # (P, FIELDS) int64
    speakers,  # (P, WIDTH) float32
    code_table,  # (BOOKS, VOCAB, WIDTH) float32
    text_table,  # (text vocabulary, WIDTH) float32
    residual,  # (P * L, WIDTH) float32
    BOOKS: tl.constexpr,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0)
    prompt = tl.program_id(1)
    row = prompt * tl.num_programs(0) + at
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    ids = tokens + row * (BOOKS + 1)
    text = tl.load(ids + BOOKS) != 0
    speaks = tl.load(numbers + prompt * _FIELDS + _SPEAKER_AT) == at
    x = embedded(ids, text, code_table, text_table, column, inside & (speaks == 0), BOOKS, VOCAB, WIDTH, True)
    x += tl.load(speakers + prompt * WIDTH + column, mask=inside & speaks, other=0.0)
    tl.store(residual + row * WIDTH + column, x, mask=inside)


@triton.jit
def _place(
    qkv,  # (P * L, 3 * HEADS * HEAD_DIM) dtype
    cosines,  # (positions, HEAD_DIM) float32
    sines,  # (positions, HEAD_DIM) float32, signed
    numbers,  # (P, FIELDS) int64
    turned,  # (P * L, 2 * HEADS * HEAD_DIM) dtype: queries, keys
    keys,  # (slots, HEADS, CACHED, HEAD_DIM) dtype, or int8
    values,
    key_scales,  # (slots, HEADS, CACHED) float32; not written unless QUANTISED
    value_scales,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CACHED: tl.constexpr,
    QUANTISED: tl.constexpr,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
):
    at = tl.program_id(0)
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)[:, None]
    prompt = tl.program_id(2)
    row = prompt * tl.num_programs(0) + at
    dtype = turned.dtype.element_ty
    dim = tl.arange(0, HEAD_DIM)
    cos = tl.load(cosines + at * HEAD_DIM + dim)
    sin = tl.load(sines + at * HEAD_DIM + dim)
    source = qkv + row * (3 * HEADS * HEAD_DIM) + head * HEAD_DIM
    target = turned + row * (2 * HEADS * HEAD_DIM) + head * HEAD_DIM
    key = rotated(source + HEADS * HEAD_DIM, cos, sin, HEAD_DIM, dtype)
    tl.store(target + dim, rotated(source, cos, sin, HEAD_DIM, dtype))
    tl.store(target + HEADS * HEAD_DIM + dim, key)
    value = tl.load(source + 2 * HEADS * HEAD_DIM + dim).to(tl.float32)
    place = (tl.load(numbers + prompt * _FIELDS + _SLOT) * HEADS + head) * CACHED + at
    written(key.to(tl.float32), keys, key_scales, place, HEAD_DIM, QUANTISED, LARGEST, SMALLEST)
    written(value, values, value_scales, place, HEAD_DIM, QUANTISED, LARGEST, SMALLEST)


@triton.jit
def _admit(
    residual,  # (P * L, WIDTH) float32
    delta,  # (P * L, WIDTH) dtype
    weight,  # (WIDTH,) float32
    numbers,  # (P, FIELDS) int64
    floats,  # (P, 3) float32
    uniforms,  # (P, MAX_STEPS, BOOKS) float32
    hidden,  # (S, WIDTH) float32
    positions,
    steps,
    temperatures,
    dropped_masses,
    penalties,
    top_ks,
    min_steps,
    max_steps,
    from_noise,
    is_text,
    slot_uniforms,  # (S, MAX_STEPS, BOOKS) float32
    recent,  # (S, BOOKS, WINDOW) int32
    eps,
    length,
    BOOKS: tl.constexpr,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    MAX_STEPS: tl.constexpr,
):
    prompt = tl.program_id(0)
    line = numbers + prompt * _FIELDS
    slot = tl.load(line + _SLOT)
    last = tl.load(line + _LAST)
    row = prompt * length + last
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    x = tl.load(residual + row * WIDTH + column, mask=inside, other=0.0)
    x += tl.load(delta + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / WIDTH + eps)
    y = x * scale * tl.load(weight + column, mask=inside, other=0.0)
    tl.store(hidden + slot * WIDTH + column, y, mask=inside)
    tl.store(positions + slot, (last + 1).to(tl.int32))
    tl.store(steps + slot, 0)
    tl.store(temperatures + slot, tl.load(floats + prompt * 3))
    tl.store(dropped_masses + slot, tl.load(floats + prompt * 3 + 1))
    tl.store(penalties + slot, tl.load(floats + prompt * 3 + 2))
    setting = line + _FIRST_SETTING
    tl.store(top_ks + slot, tl.load(setting).to(tl.int32))
    tl.store(min_steps + slot, tl.load(setting + 1).to(tl.int32))
    tl.store(max_steps + slot, tl.load(setting + 2).to(tl.int32))
    tl.store(from_noise + slot, tl.load(setting + 3).to(tl.int32))
    tl.store(is_text + slot, tl.load(setting + 4).to(tl.int32))
    ring = tl.arange(0, BOOKS * WINDOW)
    tl.store(recent + slot * (BOOKS * WINDOW) + ring, tl.full((BOOKS * WINDOW,), VOCAB, tl.int32))
    for begin in range(0, MAX_STEPS * BOOKS, BLOCK):
        place = begin + column
        drawn = tl.load(uniforms + prompt * (MAX_STEPS * BOOKS) + place, mask=place < MAX_STEPS * BOOKS, other=0.0)
        tl.store(slot_uniforms + slot * (MAX_STEPS * BOOKS) + place, drawn, mask=place < MAX_STEPS * BOOKS)


def embed(prompts: Prompts, code_table: torch.Tensor, text_table: torch.Tensor, residual: torch.Tensor) -> None:
    """Writes every row's embedding, or its prompt's speaker, to `residual` (P * L, width) float32.

    Args:
        code_table: (4, V, width) float32.
        text_table: (text vocabulary, width) float32.
    """
    rows, length, _ = prompts.tokens.shape
    width = residual.shape[1]
    _embed[(length, rows)](
        prompts.tokens,
        prompts.numbers,
        prompts.speakers,
        code_table,
        text_table,
        residual,
        BOOKS=CODEBOOKS,
        VOCAB=code_table.shape[1],
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4,
    )


def place(
    qkv: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    prompts: Prompts,
    turned: torch.Tensor,
    keys: Cached,
    values: Cached,
) -> None:
    """Rotates queries and keys, and fills one layer's cache.

    Args:
        qkv: (P * L, 3 * heads * head_dim) in the model's dtype, not rotated.
        rotation: cosines and signed sines, each (positions, head_dim) float32.
        turned: (P, L, 2, heads, head_dim) in the model's dtype, written: queries, then keys as they are before any rounding.
        keys, values: one layer's cache; positions [0, L) of the prompts' slots are written.
    """
    rows, length, _, heads, head_dim = turned.shape
    group = math.gcd(heads, GROUP)
    _place[(length, heads // group, rows)](
        qkv,
        *rotation,
        prompts.numbers,
        turned,
        keys.numbers,
        values.numbers,
        keys.numbers if keys.scales is None else keys.scales,
        values.numbers if values.scales is None else values.scales,
        HEADS=heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        CACHED=keys.numbers.shape[2],
        QUANTISED=keys.scales is not None,
        LARGEST=LARGEST,
        SMALLEST=SMALLEST_SCALE,
        num_warps=1,
    )


def admit(
    prompts: Prompts, state: SlotState, residual: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> None:
    """Computes the stack's last sum and norm at each prompt's last position, and writes state and settings of its slot.

    Args:
        residual: (P * L, width) float32.
        delta: (P * L, width), added to it.
        weight: (width,) float32, of the norm.
    """
    rows, length, _ = prompts.tokens.shape
    width = residual.shape[1]
    _admit[(rows,)](
        residual,
        delta,
        weight,
        prompts.numbers,
        prompts.floats,
        prompts.uniforms,
        state.hidden,
        state.positions,
        state.steps,
        *(getattr(state, name) for name in FLOAT_FIELDS),
        *(getattr(state, name) for name in SETTINGS),
        state.uniforms,
        state.recent,
        eps,
        length,
        BOOKS=CODEBOOKS,
        VOCAB=state.noise.shape[-1],
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        WINDOW=REPETITION_WINDOW,
        MAX_STEPS=state.uniforms.shape[1],
        num_warps=4,
    )
