"""Codes: what a step of sound is called, four codes of 625, as ChatTTS's quantiser numbers them.

In:    mel frames (T, 200), two a step
Out:   codes (T, 4)
Owns:  a linear map from a step and its neighbours to eight numbers of unit variance
Never: training by gradient

The first six numbers tell phones and their parts apart (linear discriminants), so the codes say where in the text the
voice is; the last two say what those leave out of the sound. Book 2g holds group g's four numbers to five levels each,
book 2g + 1 what was rounded away, on a quarter of the scale: the GFSQ of the layout, (5, 5, 5, 5), 2 groups, 2 residuals.

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
PARTS = 3  # of a phone: a class each
KEPT = 96  # principal components before the discriminants


@dataclass(frozen=True, slots=True, eq=False)
class Coder:
    """Steps to codes."""

    weight: Tensor  # (8, 600)
    bias: Tensor  # (8,)

    def numbers(self, mel: Tensor) -> Tensor:
        """(T, 200) mel frames to (T, 8) numbers."""
        return neighbours(mel.float()) @ self.weight.T + self.bias

    def codes(self, mel: Tensor) -> Tensor:
        """(T, 200) mel frames to (T, 4) codes."""
        return quantise(self.numbers(mel))


def neighbours(mel: Tensor) -> Tensor:
    """Each step between the one before and the one after: (T, 600)."""
    before, after = torch.cat([mel[:1], mel[:-1]]), torch.cat([mel[1:], mel[-1:]])
    return torch.cat([before, mel, after], 1)


def quantise(numbers: Tensor) -> Tensor:
    """(..., 8) numbers to (..., 4) codes."""
    books = []
    for group in torch.split(numbers, DIGITS, -1):
        coarse = _digits(group)
        fine = _digits((group - coarse / 2) / RESIDUAL_SCALE)
        books += [_code(coarse), _code(fine)]
    return torch.stack(books, -1)


def _digits(values: Tensor) -> Tensor:
    """-2 .. 2"""
    return (values.tanh() * (LEVELS - 1) / 2 * 1.001).round()


def _code(digits: Tensor) -> Tensor:
    return ((digits.long() + LEVELS // 2) * LEVELS ** torch.arange(DIGITS)).sum(-1)


def values_of(codes: Tensor) -> Tensor:
    """(..., 4) codes to the (..., 8) numbers they stand for."""
    values = (digit_table()[codes.long()] - LEVELS // 2) / (LEVELS // 2)  # (..., 4 books, 4 digits)
    coarse, fine = values[..., ::2, :], values[..., 1::2, :]
    return (coarse + RESIDUAL_SCALE * fine).flatten(-2)


def digit_table() -> Tensor:
    """(625, 4): a code's digits 0 .. 4, lowest first."""
    return torch.arange(CODES)[:, None] // LEVELS ** torch.arange(DIGITS) % LEVELS


def fit(mels: Sequence[Tensor], classes: Sequence[Tensor]) -> Coder:
    """Find the map.

    Args:
        mels: (T, 200) a sentence.
        classes: (T,) which part of which phone every step is.
    """
    inputs = torch.cat([neighbours(mel.float()) for mel in mels]).double()
    labels = torch.cat(list(classes)).long()
    mean = inputs.mean(0)
    centred = inputs - mean
    _, axes = torch.linalg.eigh(centred.T @ centred / len(centred))
    kept = axes.flip(1)[:, :KEPT]
    reduced = centred @ kept
    counts = torch.bincount(labels).double()
    means = torch.zeros(len(counts), KEPT, dtype=torch.float64).index_add_(0, labels, reduced)
    means /= counts.clamp(min=1)[:, None]
    within = reduced - means[labels]
    spread, turn = torch.linalg.eigh(within.T @ within / len(within))
    whiten = turn / spread.sqrt()
    between = (means @ whiten) * (counts / counts.sum()).sqrt()[:, None]
    _, directions = torch.linalg.eigh(between.T @ between)
    chosen = kept @ whiten @ directions.flip(1)[:, :DISCRIMINANTS]
    explained = centred @ chosen
    rest = centred - explained @ torch.linalg.lstsq(explained, centred).solution
    _, left = torch.linalg.eigh(rest.T @ rest)
    chosen = torch.cat([chosen, left.flip(1)[:, : GROUPS * DIGITS - DISCRIMINANTS]], 1)
    # Uncorrelated already; unit variance fills the five levels evenly.
    weight = (chosen / (centred @ chosen).std(0)).T
    return Coder(weight.float(), (-(weight @ mean)).float())
