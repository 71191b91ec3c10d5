"""Vocabulary: turns the ids of a prompt into vectors, and folds the heads; numpy's twin of pipeline/model/embedding.py.

In:    a checkpoint's embedding part; prompts, codes
Out:   embeddings float32; heads
Owns:  the tables
Never: torch, logits: native_step.py multiplies

Its numbers are torch's to the last bit: sums are added in torch's order.
Source: ChatTTS/model/embed.py; weight norm is w = g * v / |v| per row.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.spec import CODEBOOKS
from pipeline.types import Prompt

ADDED_TOGETHER = 8
"""partial sums of a row's squares that torch keeps, on any processor"""
SMALLEST_NORM = np.float16(1e-12)  # as torch's: 0 in float16


class Heads(NamedTuple):
    """The weights of the logits of both vocabularies, their weight norm folded. Whoever packs them needs them no longer."""

    code: NDArray[np.float32]  # (4 * V, width)
    text: NDArray[np.float32]  # (text vocabulary, width)


class Vocabulary:
    """Tables of both vocabularies: text, and four codebooks of audio codes."""

    def __init__(self, tensors: Mapping[str, NDArray[np.float32]]) -> None:
        """
        Args:
            tensors: upstream's names, as in Embed.safetensors.
        """
        self.text_table = tensors["emb_text.weight"]  # (text vocabulary, width)
        self.code_table = np.stack([tensors[f"emb_code.{book}.weight"] for book in range(CODEBOOKS)])  # (4, V, width)

    def embed_prompt(self, prompt: Prompt) -> NDArray[np.float32]:
        """Returns the embeddings (L, width) of one prompt, its speaker normalised in float16 as upstream does."""
        is_text = prompt.text_mask
        x = self.embed_codes(np.where(is_text[:, None], 0, prompt.ids))
        x[is_text] = self.text_table[prompt.ids[is_text, 0]]
        if prompt.speaker is not None and prompt.speaker_position is not None:
            x[prompt.speaker_position] = _normalised(prompt.speaker)
        return x

    def embed_codes(self, codes: NDArray[np.int64]) -> NDArray[np.float32]:
        """Returns (M, width) float32 for codes (M, 4) int64: the sum over the codebooks."""
        total: NDArray[np.float32] = self.code_table[0][codes[:, 0]]
        for book in range(1, CODEBOOKS):
            total += self.code_table[book][codes[:, book]]
        return total


def folded_heads(tensors: Mapping[str, NDArray[np.float32]]) -> Heads:
    """Returns the heads of an embedding part with upstream's names, as in Embed.safetensors."""
    code = [folded(tensors, f"head_code.{book}") for book in range(CODEBOOKS)]
    return Heads(np.concatenate(code), folded(tensors, "head_text"))


def folded(tensors: Mapping[str, NDArray[np.float32]], name: str) -> NDArray[np.float32]:
    """Returns the weights (V, width) of a head."""
    gain = tensors[f"{name}.parametrizations.weight.original0"]  # (V, 1)
    direction = tensors[f"{name}.parametrizations.weight.original1"]  # (V, width)
    result: NDArray[np.float32] = direction * (gain / norms(direction))
    return result


def norms(direction: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the lengths (V, 1) of rows (V, width)."""
    squares: NDArray[np.float32] = np.square(direction).reshape(len(direction), -1, ADDED_TOGETHER)
    sums: NDArray[Any] = squares[:, 0].copy()
    for index in range(1, squares.shape[1]):
        sums += squares[:, index]
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    lengths: NDArray[np.float32] = np.sqrt(sums)
    return lengths


def _normalised(speaker: NDArray[np.float16]) -> NDArray[np.float32]:
    norm = np.float16(np.sqrt(np.square(speaker.astype(np.float64)).sum()))
    with np.errstate(invalid="ignore", divide="ignore"):
        unit: NDArray[np.float16] = speaker / np.maximum(norm, SMALLEST_NORM)
    return unit.astype(np.float32)
