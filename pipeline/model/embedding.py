"""Embedding: turns ids into vectors, and states into logits.

In:    ids of text or of audio codes; last-layer states
Out:   embeddings, logits, float32
Owns:  the embedding tables and the heads, their weight norm folded once
Never: positions, sampling

Source: ChatTTS/model/embed.py; weight norm is w = g * v / |v| per row.
"""

import torch
import torch.nn.functional as F

from pipeline.spec import CODEBOOKS


class Embedding:
    """Tables and heads of both vocabularies: text, and four codebooks of audio codes."""

    def __init__(self, tensors: dict[str, torch.Tensor], *, device: torch.device) -> None:
        """
        Args:
            tensors: upstream's names, as in Embed.safetensors.
        """

        def table(name: str) -> torch.Tensor:
            return tensors[name].to(device, torch.float32)

        def folded_head(name: str) -> torch.Tensor:
            gain = table(f"{name}.parametrizations.weight.original0")  # (V, 1)
            direction = table(f"{name}.parametrizations.weight.original1")  # (V, width)
            return torch._weight_norm(direction, gain, 0)

        self.text_table = table("emb_text.weight")  # (text vocabulary, width)
        self.code_table = torch.stack([table(f"emb_code.{book}.weight") for book in range(CODEBOOKS)])  # (4, V, width)
        self.code_heads = torch.cat([folded_head(f"head_code.{book}") for book in range(CODEBOOKS)])  # (4 * V, width)
        self.text_head = folded_head("head_text")  # (text vocabulary, width)
        self._books = torch.arange(CODEBOOKS, device=device)
        self.code_vocab: int = self.code_table.shape[1]
        """entries of a codebook, the last of which ends a sequence"""
        self.text_vocab: int = self.text_table.shape[0]

    def embed_prompt(
        self,
        ids: torch.Tensor,
        text_mask: torch.Tensor,
        speaker: torch.Tensor | None,
        speaker_position: int | None,
    ) -> torch.Tensor:
        """Embeds one prompt.

        Args:
            ids: (L, 4) int64, text in the first column or codes in all.
            text_mask: (L,) bool, True for text.
            speaker: (width,) float16, as in upstream's speaker strings; normalised here, in float16 as upstream does.
            speaker_position: the position that the speaker replaces.

        Returns:
            (L, width) float32.
        """
        as_text = self.text_table[ids[:, 0].where(text_mask, 0)]
        as_codes = self.embed_codes(ids.where(~text_mask[:, None], 0))
        x = torch.where(text_mask[:, None], as_text, as_codes)
        if speaker is not None and speaker_position is not None:
            x[speaker_position] = F.normalize(speaker, dim=0).float()
        return x

    def embed_codes(self, codes: torch.Tensor) -> torch.Tensor:
        """Returns (M, width) float32 for codes (M, 4) int64: the sum over the codebooks."""
        return self.code_table[self._books, codes].sum(1)

    def embed_text(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns (M, width) float32 for text tokens (M,) int64."""
        return self.text_table[tokens]

    def code_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits of codes (M, 4, V) float32 for states (M, width)."""
        return F.linear(hidden, self.code_heads).view(len(hidden), CODEBOOKS, self.code_vocab)

    def text_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits of text (M, 1, text vocabulary) float32 for states (M, width)."""
        return F.linear(hidden, self.text_head).unsqueeze(1)
