"""Text attention: where chosen heads of the model look in the text, recomputed beside the engine.

In:    a prompt and the codes that were sampled for it
Out:   for every step, how strongly each position of the prompt is looked at
Owns:  its own copy of the layers up to the last chosen head
Never: torch; sampling; the engine's weights, cache or threads: no code can change because someone asks for times

The codes are fed to the model a second time, in fixed groups of steps. So the numbers of a step depend on the prompt and the
codes before it, never on how the steps were delivered. They are float32 and numpy's: few rows at a time, beside the engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.weights import Checkpoint, Tensors
from pipeline.model.cpu.rotary import rotary_tables
from pipeline.model.cpu.vocabulary import Vocabulary
from pipeline.types import Prompt

Floats = NDArray[np.float32]
Heads = Sequence[tuple[int, int]]
"""(layer, head), from 0"""


@dataclass(slots=True, eq=False)
class Fed:
    """What the layers keep of the positions that were fed; `keys` and `values` grow with them."""

    prompt_length: int
    keys: list[Floats]  # per layer (heads, n, head_dim)
    values: list[Floats]
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
        tensors = checkpoint.gpt()
        self._layers = [_Layer.of(tensors, f"layers.{index}") for index in range(layers)]
        self._vocabulary = Vocabulary(checkpoint.embed())
        self._cos, self._sin = rotary_tables(positions, spec.head_dim, spec.rope_theta)

    def begin(self, prompt: Prompt) -> tuple[Fed, Floats]:
        """Feeds a prompt. Returns the state, and the scores (heads, 1, prompt) of the first step."""
        x = self._vocabulary.embed_prompt(prompt)
        empty = np.zeros((self._spec.heads, 0, self._spec.head_dim), np.float32)
        fed = Fed(len(x), [empty] * len(self._layers), [empty] * len(self._layers))
        return fed, self._feed(fed, x)[:, -1:]

    def extend(self, fed: Fed, codes: NDArray[np.int64]) -> Floats:
        """Feeds codes (n, 4). Returns the scores (heads, n, prompt) of the n steps after the first of them.

        A score is the logarithm of the attention on a position, but for a constant of the step.
        """
        return self._feed(fed, self._vocabulary.embed_codes(codes))

    def _feed(self, fed: Fed, x: Floats) -> Floats:
        heads, head_dim = self._spec.heads, self._spec.head_dim
        start, stop = fed.positions, fed.positions + len(x)
        cos, sin = self._cos[start:stop, None], self._sin[start:stop, None]
        unseen = np.arange(stop) > np.arange(start, stop)[:, None]
        scores: dict[tuple[int, int], Floats] = {}
        for index, layer in enumerate(self._layers):
            qkv = (self._norm(x, layer.attention_norm) @ layer.qkv).reshape(len(x), 3 * heads, head_dim)
            turned = qkv[:, : 2 * heads]
            turned = (turned * cos + np.roll(turned, head_dim // 2, -1) * sin).transpose(1, 0, 2)
            q = turned[:heads]
            fed.keys[index] = k = np.concatenate([fed.keys[index], turned[heads:]], 1)
            fed.values[index] = v = np.concatenate([fed.values[index], qkv[:, 2 * heads :].transpose(1, 0, 2)], 1)
            for of_layer, head in self._heads:
                if of_layer == index:
                    scores[index, head] = q[head] @ k[head, : fed.prompt_length].T * np.float32(head_dim**-0.5)
            if index + 1 < len(self._layers):
                logits = q @ k.transpose(0, 2, 1) * np.float32(head_dim**-0.5)
                attention = _softmax(np.where(unseen, np.float32(-np.inf), logits)) @ v
                x = x + attention.transpose(1, 0, 2).reshape(len(x), -1) @ layer.attention_out
                gate, up = np.split(self._norm(x, layer.mlp_norm) @ layer.gate_up, 2, axis=1)
                x = x + (_silu(gate) * up) @ layer.down
        fed.positions = stop
        return np.stack([scores[head] for head in self._heads])

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        normed: Floats = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(self._spec.rms_eps)) * weight
        return normed


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One layer's weights, the inputs of each product in rows; products over the same input are stacked into one."""

    attention_norm: Floats
    qkv: Floats
    attention_out: Floats
    mlp_norm: Floats
    gate_up: Floats
    down: Floats

    @classmethod
    def of(cls, tensors: Tensors, prefix: str) -> "_Layer":
        def stacked(*names: str) -> Floats:
            return np.concatenate([tensors[f"{prefix}.{name}_proj.weight"] for name in names]).T

        return cls(
            attention_norm=tensors[f"{prefix}.input_layernorm.weight"],
            qkv=stacked(*(f"self_attn.{part}" for part in "qkv")),
            attention_out=stacked("self_attn.o"),
            mlp_norm=tensors[f"{prefix}.post_attention_layernorm.weight"],
            gate_up=stacked("mlp.gate", "mlp.up"),
            down=stacked("mlp.down"),
        )


def _softmax(logits: Floats) -> Floats:
    powers: Floats = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _silu(x: Floats) -> Floats:
    with np.errstate(over="ignore"):  # then it is 0
        gated: Floats = x / (1 + np.exp(-x))
    return gated
