"""Step: the parts of a decode step outside its layers, as three kernels.

In:    the heads' logits; each slot's sampling values, position and state
Out:   tokens, which slots made a step, the next embeddings; at the end the next state
Owns:  SlotState
Never: text vocabularies (torch draws refine tokens, `advance` takes them), the host

    hidden --heads--> logits -- draw --> tokens -- advance --> residual -- layers --> settle --> hidden
                                                      |                                  |
                                             emitted, recent, out                positions, steps, active

Each is one node of a CUDA graph. Filters and their order are those of pipeline/model/sampling.py, ties included;
probabilities differ in their last place, because exp does.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pipeline.model.gpu.kernels.row_embedding import embedded
from pipeline.spec import CODEBOOKS, MIN_TOKENS_TO_KEEP, REPETITION_WINDOW

VALUE_BITS = 32


@dataclass(frozen=True, slots=True, eq=False)
class SlotState:
    """Every per-slot tensor of the kernels: S slots, K steps per round. Static, so that a graph can hold the addresses."""

    # the settings of a slot: written at prefill, constant afterwards
    temperature: torch.Tensor  # (S,) float32
    dropped_mass: torch.Tensor  # (S,) float32: 1 - top_p
    penalty: torch.Tensor  # (S,) float32
    top_k: torch.Tensor  # (S,) int32
    min_steps: torch.Tensor  # (S,) int32
    max_steps: torch.Tensor  # (S,) int32
    from_noise: torch.Tensor  # (S,) int32
    is_text: torch.Tensor  # (S,) int32
    uniforms: torch.Tensor  # (S, steps, 4) float32
    noise: torch.Tensor  # (S, 4, V) float32
    # the progress of a slot: changed by every step it makes
    hidden: torch.Tensor  # (S, width) float32
    positions: torch.Tensor  # (S,) int32
    steps: torch.Tensor  # (S,) int32
    active: torch.Tensor  # (S,) int32
    recent: torch.Tensor  # (S, 4, REPETITION_WINDOW) int32: a ring, by step; V where nothing was drawn yet
    # the results of the current step
    tokens: torch.Tensor  # (S, 4) int32
    ends: torch.Tensor  # (S, 4) int32
    finite: torch.Tensor  # (S, 4) int32
    emitted: torch.Tensor  # (S,) int32
    # the results of a round, which the host reads
    out_hidden: torch.Tensor  # (K, S, width) float32
    out_tokens: torch.Tensor  # (K, S, 4) int32
    out_emitted: torch.Tensor  # (K, S) int32
    ended: torch.Tensor  # (S,) int32
    broken: torch.Tensor  # (S,) int32


@triton.jit
def _draw(
    logits,  # (S, BOOKS, VOCAB) float32
    recent,  # (S, BOOKS, WINDOW) int32
    temperatures,
    penalties,
    dropped_masses,
    top_ks,
    min_steps,
    steps,
    from_noise,
    uniforms,  # (S, MAX_STEPS, BOOKS) float32
    noise,  # (S, BOOKS, VOCAB) float32
    tokens,  # (S, BOOKS) int32
    ends,  # (S, BOOKS) int32
    finite,  # (S, BOOKS) int32
    BOOKS: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    RANK_BITS: tl.constexpr,
    WINDOW: tl.constexpr,
    KEEP: tl.constexpr,
    MAX_STEPS: tl.constexpr,
):
    slot = tl.program_id(0)
    book = tl.program_id(1)
    line = slot * BOOKS + book
    logits += line.to(tl.int64) * VOCAB
    recent += line * WINDOW
    temperature = tl.load(temperatures + slot)
    penalty = tl.load(penalties + slot)
    step = tl.load(steps + slot)
    token = tl.arange(0, BLOCK)
    real = token < VOCAB

    raw = tl.load(logits + token, mask=real, other=0.0)
    # Divisions and products, correctly rounded; adding 0 makes the two zeros one.
    value = tl.div_rn(raw, tl.zeros_like(raw) + temperature)
    factor = tl.full((BLOCK,), 1.0, tl.float32)
    for place in tl.static_range(WINDOW):
        factor *= tl.where(token == tl.load(recent + place), penalty, 1.0)
    value = tl.where(value < 0, value * factor, tl.div_rn(value, factor)) + 0.0
    value = tl.where(real, value, float("-inf"))
    share = tl.exp(value - tl.max(value))

    # Every token's rank in the stable ascending order is one whole number: its value's bits, then its index. Two
    # thresholds in that order are found bit by bit, from the highest down. Row 0 is top-p's and row 1 top-k's, so that
    # both sums of a bit are one reduction.
    bits = value.to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    rank = (bits.to(tl.int64) + 2147483648) * BLOCK + token
    by_mass = tl.arange(0, 2)[:, None] == 0
    # top-p: drops the smallest while their mass stays within the dropped mass
    # top-k: the k-th largest stays, and what equals it: those not below it count -1 each, and are at most -k
    if_below = tl.where(by_mass, share[None, :], 0.0)
    if_above = tl.where(by_mass, tl.zeros_like(share)[None, :], -1.0)
    most = tl.load(dropped_masses + slot) * tl.sum(share)
    count = tl.maximum(tl.load(top_ks + slot), KEEP).to(tl.float32)
    limit = tl.where(by_mass, most, -count)
    threshold = tl.zeros((2, 1), tl.int64)
    for bit in range(RANK_BITS):
        half = tl.full((), 1, tl.int64) << (RANK_BITS - 1 - bit)
        amount = tl.sum(tl.where(rank[None, :] < threshold + half, if_below, if_above), axis=1, keep_dims=True)
        threshold += tl.where(amount <= limit, half, 0)
    above_mass = tl.sum(tl.where(by_mass, threshold, 0))
    kth = tl.sum(tl.where(by_mass, 0, threshold))
    last = tl.max(rank)
    for _ in tl.static_range(KEEP - 1):
        last = tl.max(tl.where(rank < last, rank, 0))
    candidates = (rank >= tl.minimum(above_mass, last)) & (rank // BLOCK >= kth // BLOCK)
    too_early = step < tl.load(min_steps + slot)
    candidates = candidates & real & ((token != VOCAB - 1) | (too_early == 0))
    value = tl.where(candidates, value, float("-inf"))
    weight = tl.exp(value - tl.max(value))
    probability = tl.div_rn(weight, tl.zeros_like(weight) + tl.sum(weight))

    # COUNTER: inverse CDF, a token owns [cumulated before it, cumulated with it)
    uniform = tl.load(uniforms + (slot.to(tl.int64) * MAX_STEPS + tl.minimum(step, MAX_STEPS - 1)) * BOOKS + book)
    cumulated = tl.cumsum(probability.to(tl.float64))
    reached = uniform.to(tl.float64) * tl.sum(probability.to(tl.float64))
    by_uniform = tl.sum(((cumulated <= reached) & real).to(tl.int32))
    # UPSTREAM: argmax(p / q)
    is_noise = tl.load(from_noise + slot) != 0
    q = tl.load(noise + line.to(tl.int64) * VOCAB + token, mask=real & is_noise, other=1.0)
    by_noise = tl.argmax(tl.where(real, tl.div_rn(probability, q), -1.0), axis=0)

    drawn = tl.minimum(tl.where(is_noise, by_noise, by_uniform), VOCAB - 1).to(tl.int32)
    tl.store(tokens + line, drawn)
    tl.store(ends + line, (drawn == VOCAB - 1).to(tl.int32))
    odd = (raw != raw) | (tl.abs(raw) == float("inf"))
    tl.store(finite + line, (tl.sum(odd.to(tl.int32)) == 0).to(tl.int32))


@triton.jit
def _advance(
    tokens,  # (S, BOOKS) int32
    ends,  # (S, BOOKS) int32
    finite,  # (S, BOOKS) int32
    active,
    is_text,
    steps,
    hidden,  # (S, WIDTH) float32
    code_table,  # (BOOKS, VOCAB, WIDTH) float32
    text_table,  # (text vocabulary, WIDTH) float32
    recent,  # (S, BOOKS, WINDOW) int32
    emitted,
    ended,
    broken,
    out_hidden,  # (S, WIDTH) float32: this step's
    out_tokens,  # (S, BOOKS) int32
    out_emitted,
    residual,  # (S, WIDTH) float32
    BOOKS: tl.constexpr,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    WITH_TEXT: tl.constexpr,
):
    slot = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    book = tl.arange(0, BOOKS)
    end = tl.max(tl.load(ends + slot * BOOKS + book)) != 0
    fine = tl.min(tl.load(finite + slot * BOOKS + book)) != 0
    running = tl.load(active + slot) != 0
    moves = running & fine & (end == 0)
    tl.store(emitted + slot, moves.to(tl.int32))
    tl.store(out_emitted + slot, moves.to(tl.int32))
    tl.store(ended + slot, 1, mask=running & fine & end)
    tl.store(broken + slot, 1, mask=running & (fine == 0))
    state = tl.load(hidden + slot * WIDTH + column, mask=inside, other=0.0)
    tl.store(out_hidden + slot * WIDTH + column, state, mask=inside)
    drawn = tl.load(tokens + slot * BOOKS + book)
    tl.store(out_tokens + slot * BOOKS + book, drawn)
    text = False
    if WITH_TEXT:
        text = tl.load(is_text + slot) != 0
    place = tl.load(steps + slot) % WINDOW
    tl.store(recent + (slot * BOOKS + book) * WINDOW + place, drawn, mask=moves & (text == 0))
    ids = tokens + slot * BOOKS
    x = embedded(ids, text, code_table, text_table, column, inside, BOOKS, VOCAB, WIDTH, WITH_TEXT)
    tl.store(residual + slot * WIDTH + column, x, mask=inside)


@triton.jit
def _settle(
    residual,  # (S, WIDTH) float32
    delta,  # (PARTS, S, WIDTH)
    weight,  # (WIDTH,) float32
    emitted,
    max_steps,
    hidden,  # (S, WIDTH) float32
    positions,
    steps,
    active,
    eps,
    last_position,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    slot = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    moves = tl.load(emitted + slot)
    x = tl.load(residual + slot * WIDTH + column, mask=inside, other=0.0)
    for part in tl.static_range(PARTS):
        place = part * tl.num_programs(0) + slot
        x += tl.load(delta + place * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / WIDTH + eps)
    y = x * scale * tl.load(weight + column, mask=inside, other=0.0)
    tl.store(hidden + slot * WIDTH + column, y, mask=inside & (moves != 0))
    step_count = tl.load(steps + slot) + moves
    # A full slot's position stays in range; its sequence has ended by its step cap.
    position = tl.minimum(tl.load(positions + slot) + moves, last_position)
    goes_on = moves & (step_count < tl.load(max_steps + slot)).to(tl.int32)
    tl.debug_barrier()  # every thread has read what is written now
    tl.store(steps + slot, step_count)
    tl.store(positions + slot, position)
    tl.store(active + slot, goes_on)


def draw(logits: torch.Tensor, state: SlotState) -> None:
    """Draws every slot's codes from logits (S, 4, V) float32; writes `tokens`, `ends` and `finite`."""
    slots, books, vocab = logits.shape
    block = triton.next_power_of_2(vocab)
    _draw[(slots, books)](
        logits,
        state.recent,
        state.temperature,
        state.penalty,
        state.dropped_mass,
        state.top_k,
        state.min_steps,
        state.steps,
        state.from_noise,
        state.uniforms,
        state.noise,
        state.tokens,
        state.ends,
        state.finite,
        BOOKS=books,
        VOCAB=vocab,
        BLOCK=block,
        RANK_BITS=VALUE_BITS + block.bit_length() - 1,
        WINDOW=REPETITION_WINDOW,
        KEEP=MIN_TOKENS_TO_KEEP,
        MAX_STEPS=state.uniforms.shape[1],
        num_warps=4,
    )


def advance(
    state: SlotState, step: int, code_table: torch.Tensor, text_table: torch.Tensor, residual: torch.Tensor, *, with_text: bool
) -> None:
    """Decides which slots make the step, records it, and embeds the drawn tokens.

    Args:
        step: its index in the round, 0 .. K - 1.
        code_table: (4, V, width) float32.
        text_table: (text vocabulary, width) float32.
        residual: (S, width) float32, the layers' input; written.
        with_text: whether any slot may hold a refine pass; column 0 of its `tokens` is then its text token.
    """
    slots, width = residual.shape
    _advance[(slots,)](
        state.tokens,
        state.ends,
        state.finite,
        state.active,
        state.is_text,
        state.steps,
        state.hidden,
        code_table,
        text_table,
        state.recent,
        state.emitted,
        state.ended,
        state.broken,
        state.out_hidden[step],
        state.out_tokens[step],
        state.out_emitted[step],
        residual,
        BOOKS=CODEBOOKS,
        VOCAB=code_table.shape[1],
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        WINDOW=REPETITION_WINDOW,
        WITH_TEXT=with_text,
        num_warps=4,
    )


def settle(
    state: SlotState, residual: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, *, eps: float, positions: int
) -> None:
    """Computes the stack's last sum and norm, and advances the slots that made the step.

    Args:
        residual: (S, width) float32.
        delta: (P, S, width), as in layer.add_norm.
        weight: (width,) float32, of the norm.
        positions: positions per slot.
    """
    slots, width = residual.shape
    _settle[(slots,)](
        residual,
        delta,
        weight,
        state.emitted,
        state.max_steps,
        state.hidden,
        state.positions,
        state.steps,
        state.active,
        eps,
        positions - 1,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        PARTS=len(delta),
        num_warps=4,
    )
