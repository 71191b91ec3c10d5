"""Codes: four codes per step of sound, each one of 625, numbered as by ChatTTS's quantiser.

In:    mel frames (T, 200), two per step
Out:   codes (T, 4)
Owns:  a linear map from a step and its neighbours to eight numbers of unit variance
Never: training by gradient

The first six numbers tell phones and their parts apart (linear discriminants), so the codes show the place in the
text; the last two hold the rest of the sound. Book 2g holds group g's four numbers, rounded to five levels each; book
2g + 1 holds the rounding errors, on a quarter of the scale: the GFSQ of the layout, (5, 5, 5, 5), 2 groups, 2 residuals.

Source: vector_quantize_pytorch, classes FSQ (`bound`) and ResidualFSQ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEVELS = 5
DIGITS = 4
CODES = LEVELS**DIGITS
BOOKS = 4
GROUPS = 2
END = CODES
RESIDUAL_SCALE = 1 / (LEVELS - 1)
DISCRIMINANTS = 6
PARTS = 3  # per phone: one class each
KEPT = 96  # principal components before the discriminants


@dataclass(frozen=True, slots=True, eq=False)
class Coder:
    """A linear map from steps to codes."""

    weight: Tensor  # (8, 600)
    bias: Tensor  # (8,)

    def numbers(self, mel: Tensor) -> Tensor:
        """Maps mel frames (T, 200) to numbers (T, 8)."""
        return neighbours(mel.float()) @ self.weight.T + self.bias

    def codes(self, mel: Tensor) -> Tensor:
        """Maps mel frames (T, 200) to codes (T, 4)."""
        return quantise(self.numbers(mel))


def neighbours(mel: Tensor) -> Tensor:
    """Returns each step between its predecessor and its successor: (T, 600)."""
    before, after = torch.cat([mel[:1], mel[:-1]]), torch.cat([mel[1:], mel[-1:]])
    return torch.cat([before, mel, after], 1)


def quantise(numbers: Tensor) -> Tensor:
    """Maps numbers (..., 8) to codes (..., 4)."""
    books = []
    for group in torch.split(numbers, DIGITS, -1):
        coarse = _digits(group)
        fine = _digits((group - coarse / 2) / RESIDUAL_SCALE)
        books += [_code(coarse), _code(fine)]
    return torch.stack(books, -1)


def _digits(values: Tensor) -> Tensor:
    """Rounds to the digits -2 .. 2."""
    return (values.tanh() * (LEVELS - 1) / 2 * 1.001).round()


def _code(digits: Tensor) -> Tensor:
    return ((digits.long() + LEVELS // 2) * LEVELS ** torch.arange(DIGITS, device=digits.device)).sum(-1)


def values_of(codes: Tensor) -> Tensor:
    """Maps codes (..., 4) to the numbers (..., 8) that they stand for."""
    values = (digit_table()[codes.long()] - LEVELS // 2) / (LEVELS // 2)  # (..., 4 books, 4 digits)
    coarse, fine = values[..., ::2, :], values[..., 1::2, :]
    return (coarse + RESIDUAL_SCALE * fine).flatten(-2)


def digit_table() -> Tensor:
    """Returns (625, 4): the digits 0 .. 4 of each code, lowest first."""
    return torch.arange(CODES)[:, None] // LEVELS ** torch.arange(DIGITS) % LEVELS


def fit(mels: Sequence[Tensor], classes: Sequence[Tensor]) -> Coder:
    """Fits the map to sentences.

    Args:
        mels: (T, 200) per sentence.
        classes: (T,) per sentence: which part of which phone each step is.
    """
    inputs = torch.cat([neighbours(mel.float()) for mel in mels]).double()
    labels = torch.cat(list(classes)).long()
    mean = inputs.mean(0)
    centred = inputs - mean
    _, axes = torch.linalg.eigh(centred.T @ centred / len(centred))
    principal = axes.flip(1)[:, :KEPT]
    reduced = centred @ principal
    counts = torch.bincount(labels).double()
    means = torch.zeros(len(counts), KEPT, dtype=torch.float64).index_add_(0, labels, reduced)
    means /= counts.clamp(min=1)[:, None]
    within = reduced - means[labels]
    spread, turn = torch.linalg.eigh(within.T @ within / len(within))
    whiten = turn / spread.sqrt()
    between = (means @ whiten) * (counts / counts.sum()).sqrt()[:, None]
    _, directions = torch.linalg.eigh(between.T @ between)
    chosen = principal @ whiten @ directions.flip(1)[:, :DISCRIMINANTS]
    explained = centred @ chosen
    rest = centred - explained @ torch.linalg.lstsq(explained, centred).solution
    _, remaining = torch.linalg.eigh(rest.T @ rest)
    chosen = torch.cat([chosen, remaining.flip(1)[:, : GROUPS * DIGITS - DISCRIMINANTS]], 1)
    # Uncorrelated already; unit variance fills the five levels evenly.
    weight = (chosen / (centred @ chosen).std(0)).T
    return Coder(weight.float(), (-(weight @ mean)).float())
