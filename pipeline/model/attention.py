"""Attention: where chosen heads of the model look in the text, recomputed beside the engine.

In:    a prompt and the codes that were sampled for it
Out:   for every step, how strongly each position of the prompt is looked at
Owns:  its own copy of the layers up to the last chosen head
Never: sampling; the engine's weights, cache or threads: no code can change because someone asks for times

The codes are fed to the model a second time, in fixed groups of steps. So the numbers of a step depend on the prompt and the
codes before it, never on how the steps were delivered.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from pipeline.checkpoint.weights import Checkpoint
from pipeline.model.embedding import Embedding
from pipeline.model.gpt import pack_weights, rotary_tables
from pipeline.model.linear import Linear
from pipeline.types import Prompt

USUAL_ROWS = 16
"""positions that are fed at once, but for a prompt's"""
Heads = Sequence[tuple[int, int]]
"""(layer, head), from 0"""


@dataclass(slots=True, eq=False)
class Fed:
    """What the layers keep of the positions that were fed; `keys` and `values` grow with them."""

    prompt_length: int
    keys: list[torch.Tensor]  # per layer (heads, n, head_dim)
    values: list[torch.Tensor]
    positions: int = 0


class PromptAttention:
    """The lower layers of one model. Threads may share it: it never changes."""

    def __init__(self, checkpoint: Checkpoint, heads: Heads, *, positions: int) -> None:
        """
        Args:
            heads: those to follow; layers above the last of them are not loaded.
            positions: length of the longest sequence, prompt included.

        Raises:
            CheckpointError
        """
        self._spec = spec = checkpoint.gpt_spec
        self._heads = tuple(heads)
        layers = 1 + max(layer for layer, _ in heads)
        device = torch.device("cpu")
        tensors = checkpoint.gpt()
        self._layers = pack_weights(tensors, layers, lambda weight: Linear(weight, rows=USUAL_ROWS), device).layers
        self._embedding = Embedding(checkpoint.embed(), device=device)
        self._cos, self._sin = rotary_tables(positions, spec.head_dim, spec.rope_theta, device)

    @torch.inference_mode()
    def begin(self, prompt: Prompt) -> tuple[Fed, NDArray[np.float32]]:
        """Feeds a prompt. Returns the state, and the scores (heads, 1, prompt) of the first step."""
        x = self._embedding.embed_prompt(
            # torch.tensor copies: arrays that came from another process are read-only.
            torch.tensor(prompt.ids),
            torch.tensor(prompt.text_mask),
            None if prompt.speaker is None else torch.tensor(prompt.speaker),
            prompt.speaker_position,
        )
        empty = torch.zeros(self._spec.heads, 0, self._spec.head_dim)
        fed = Fed(len(x), [empty] * len(self._layers), [empty] * len(self._layers))
        return fed, self._feed(fed, x)[:, -1:]

    @torch.inference_mode()
    def extend(self, fed: Fed, codes: NDArray[np.int64]) -> NDArray[np.float32]:
        """Feeds codes (n, 4). Returns the scores (heads, n, prompt) of the n steps after the first of them.

        A score is the logarithm of the attention on a position, but for a constant of the step.
        """
        return self._feed(fed, self._embedding.embed_codes(torch.tensor(codes)))

    def _feed(self, fed: Fed, x: torch.Tensor) -> NDArray[np.float32]:
        heads, head_dim, width = self._spec.heads, self._spec.head_dim, x.shape[1]
        start, stop = fed.positions, fed.positions + len(x)
        cos, sin = self._cos[start:stop, None], self._sin[start:stop, None]
        causal = torch.arange(stop) <= torch.arange(start, stop)[:, None]
        scores: dict[tuple[int, int], torch.Tensor] = {}
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(F.rms_norm(x, (width,), layer.attention_norm, self._spec.rms_eps)).view(len(x), 3 * heads, head_dim)
            turned = qkv[:, : 2 * heads]
            turned = (turned * cos + turned.roll(head_dim // 2, -1) * sin).transpose(0, 1)
            q = turned[:heads]
            fed.keys[index] = k = torch.cat([fed.keys[index], turned[heads:]], 1)
            fed.values[index] = v = torch.cat([fed.values[index], qkv[:, 2 * heads :].transpose(0, 1)], 1)
            for of_layer, head in self._heads:
                if of_layer == index:
                    scores[index, head] = q[head] @ k[head, : fed.prompt_length].T * head_dim**-0.5
            if index + 1 < len(self._layers):
                seen = F.scaled_dot_product_attention(q, k, v, attn_mask=causal).transpose(0, 1).reshape(len(x), -1)
                x = x + layer.attention_out(seen)
                gate, up = layer.gate_up(F.rms_norm(x, (width,), layer.mlp_norm, self._spec.rms_eps)).chunk(2, dim=-1)
                x = x + layer.down(F.silu(gate) * up)
        fed.positions = stop
        return torch.stack([scores[head] for head in self._heads]).numpy()
