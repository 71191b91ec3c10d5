"""Sampling: draws tokens from logits, each row with its own sampling values.

In:    logits (M, C, V), each row's sampling values, recent draws and randomness
Out:   tokens (M, C)
Never: generators, the host (no sync, no data-dependent shape: a CUDA graph can hold all of it)

Order of filters as in ChatTTS/model/gpt.py `generate`: temperature, repetition penalty, top-p, top-k,
EOS forbidden while too early, softmax, draw. Two ways to draw (pipeline/types/request.py, SeedMode):

  COUNTER   inverse CDF of one uniform per (step, codebook), from a counter-based generator keyed by the request
  UPSTREAM  argmax(p / q), q one constant tensor of exponentials per seed. This is what torch.multinomial computes,
            and upstream re-seeds its generator at every step, so its noise never changes.

Probabilities and their sums are float64, so that the fast twin on a CPU, pipeline/model/cpu/draw.h, which sums in another
order, draws the same tokens.
"""

from dataclasses import dataclass

import torch

from pipeline.spec import MIN_TOKENS_TO_KEEP, REPETITION_WINDOW


@dataclass(frozen=True, slots=True, eq=False)
class RowParams:
    """Sampling values of M rows, each (M, 1, 1), on the model's device."""

    temperature: torch.Tensor  # float32
    dropped_mass: torch.Tensor  # float32: 1 - top_p, subtracted before rounding to float32 as upstream does
    top_k: torch.Tensor  # int64
    repetition_penalty: torch.Tensor  # float32


def filter_logits(
    logits: torch.Tensor, recent: torch.Tensor, params: RowParams, *, eos: torch.Tensor, eos_forbidden: torch.Tensor
) -> torch.Tensor:
    """Applies temperature, repetition penalty, top-p, top-k and the minimum length.

    Args:
        logits: (M, C, V) float32.
        recent: (M, C, R) int64, the last draws; unused places hold V.
        eos: (M, C, 1) int64, the token that ends each row.
        eos_forbidden: (M, 1, 1) bool, True while the row is too short to end.

    Returns:
        (M, C, V) float32, -inf for each token that cannot be drawn.
    """
    vocab = logits.shape[-1]
    logits = logits / params.temperature
    logits = _penalise_repetition(logits, recent, params.repetition_penalty)
    ordered, order = logits.sort(dim=-1, stable=True)  # ascending
    # top-p: the smallest tokens go while their cumulated probability stays within 1 - top_p
    out = ordered.softmax(-1, dtype=torch.float64).cumsum(-1) <= params.dropped_mass
    out[..., -MIN_TOKENS_TO_KEEP:] = False
    ordered = ordered.masked_fill(out, float("-inf"))
    # top-k: everything below the k-th largest goes
    k = params.top_k.clamp(MIN_TOKENS_TO_KEEP, vocab).expand(*ordered.shape[:2], 1)
    threshold = ordered.gather(-1, vocab - k)
    ordered = ordered.masked_fill(ordered < threshold, float("-inf"))
    filtered = torch.empty_like(ordered).scatter_(-1, order, ordered)
    forbidden = torch.zeros_like(filtered, dtype=torch.bool).scatter_(-1, eos, eos_forbidden.expand(eos.shape))
    return filtered.masked_fill(forbidden, float("-inf"))


def draw(logits: torch.Tensor, uniforms: torch.Tensor, noise: torch.Tensor, from_noise: torch.Tensor) -> torch.Tensor:
    """Draws one token per row and codebook.

    Args:
        logits: (M, C, V), filtered.
        uniforms: (M, C) float32 in (0, 1): the randomness of COUNTER rows.
        noise: (M, C, V) float32 > 0: the randomness of UPSTREAM rows.
        from_noise: (M, 1) bool, True for UPSTREAM rows.

    Returns:
        (M, C) int64.
    """
    probabilities = logits.softmax(-1, dtype=torch.float64)
    by_noise = (probabilities.float() / noise).argmax(-1)
    cumulated = probabilities.cumsum(-1)
    reached = uniforms.double().unsqueeze(-1) * cumulated[..., -1:]
    # A token owns [cumulated before it, cumulated with it): tokens of probability 0 are never drawn.
    by_uniform = (cumulated <= reached).sum(-1).clamp_(max=logits.shape[-1] - 1)
    return torch.where(from_noise, by_noise, by_uniform)


def upstream_noise(seed: int, draws: int, vocab: int) -> torch.Tensor:
    """Returns the UPSTREAM noise of one seed: (draws, vocab) float32 on the CPU, as torch.multinomial draws it at batch 1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(draws, vocab).exponential_(1, generator=generator)


def penalty_powers(penalty: torch.Tensor) -> torch.Tensor:
    """Returns (..., window + 1) for a penalty (...,) float32: the factor for a token drawn 0, 1, ... times."""
    return penalty.unsqueeze(-1).pow(torch.arange(REPETITION_WINDOW + 1, dtype=torch.float32, device=penalty.device))


def _penalise_repetition(logits: torch.Tensor, recent: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    rows, draws, vocab = logits.shape
    # One extra column counts the unused places.
    counts = torch.zeros(rows, draws, vocab + 1, dtype=torch.int64, device=logits.device)
    counts.scatter_add_(-1, recent, torch.ones_like(recent))
    powers = penalty_powers(penalty[..., 0]).expand(rows, draws, REPETITION_WINDOW + 1)
    factor = powers.gather(-1, counts[..., :vocab])
    return torch.where(logits < 0, logits * factor, logits / factor)


def remember(recent: torch.Tensor, drawn: torch.Tensor, rows: torch.Tensor) -> None:
    """Shifts the tokens `drawn` (S, C) into the windows `recent` (S, C, R) of the rows marked in `rows` (S,) bool."""
    shifted = torch.cat([recent[..., 1:], drawn.unsqueeze(-1)], -1)
    recent.copy_(torch.where(rows[:, None, None], shifted, recent))
