"""GpuGpt: the decoder stack on a GPU, eight nodes of a CUDA graph per layer of a step, nine of a prefill.

In:    the residual stream, each slot's position, which slots make the step, or prompts; the KV cache
Out:   the last layer's product, not yet added to the residual stream
Owns:  the buffers between a step's products
Never: the first embedding, the last norm (pipeline/model/gpu/kernels/step.py, prompt.py), sampling

    step      add_norm - qkv - attend (- join) - attention_out - add_norm - gate_up - gate - down
    prefill   add_norm - qkv - place - torch's attention - attention_out - add_norm - gate_up - gate - down

Both use one copy of int8 weights, pipeline/model/gpu/kernels/product.py.
"""

from dataclasses import replace
from typing import Protocol

import torch
import torch.nn.functional as F

from pipeline.checkpoint.weights import GptSpec
from pipeline.model.gpt import ActiveExtent, Cached, Gpt, KeysValues
from pipeline.model.gpu.kernels.attention import Attention, chosen_shape
from pipeline.model.gpu.kernels.layer import add_norm, gate
from pipeline.model.gpu.kernels.product import Int8Product
from pipeline.model.gpu.kernels.prompt import Prompts, place


class _Attend(Protocol):
    def __call__(
        self,
        qkv: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        positions: torch.Tensor,
        busy: torch.Tensor,
        keys: Cached,
        values: Cached,
        attention: torch.Tensor,
    ) -> None: ...


class GpuGpt(Gpt):
    """The decoder stack over S slots, of which the busy ones advance."""

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        spec: GptSpec,
        *,
        positions: int,
        rows: int,
        device: torch.device,
        dtype: torch.dtype,
        weights: str,
        attention: str,
        split: int | None = None,
    ) -> None:
        """
        Args:
            weights: `dtype`, or `int8` with one scale per output.
            attention: `triton` reads the used positions of each slot; `sdpa`, torch's, reads the whole cache.
            split: positions per program with `triton`; None: chosen by slots, heads and positions.
        """
        super().__init__(
            tensors,
            spec,
            positions=positions,
            rows=rows,
            device=device,
            dtype=dtype,
            product=Int8Product if weights == "int8" else None,
        )

        def buffer(width: int) -> torch.Tensor:
            return torch.zeros(rows, width, dtype=dtype, device=device)

        self._normed, self._mixed, self._gated = buffer(spec.width), buffer(spec.heads * spec.head_dim), buffer(spec.mlp_width)
        self._attend: _Attend = sdpa
        if attention == "triton":
            shape = chosen_shape(rows, spec.heads, positions)
            self._attend = Attention.allocate(
                slots=rows,
                heads=spec.heads,
                head_dim=spec.head_dim,
                positions=positions,
                shape=replace(shape, split=split or shape.split),
                device=device,
            )
        self.final_norm = self._weights.final_norm
        self.rms_eps = spec.rms_eps

    def run_layers(
        self, residual: torch.Tensor, positions: torch.Tensor, busy: torch.Tensor, cache: KeysValues
    ) -> torch.Tensor:
        """Advances every busy slot by one position, through all layers.

        Args:
            residual: (S, width) float32, the embeddings; changed.
            positions: (S,) int32, where each slot writes.
            busy: (S,) int32; for a slot with 0 the result is undefined, and so is its cache at its position.

        Returns:
            P summands (P, S, width): the state is the norm of their sum with the residual. Row i depends on slot i alone.
        """
        rotation = self._cos, self._sin
        delta: torch.Tensor | None = None
        for layer, (keys, values) in zip(self._weights.layers, cache.layers(), strict=True):
            add_norm(residual, delta, layer.attention_norm, self._normed, eps=self.rms_eps)
            self._attend(layer.qkv(self._normed), rotation, positions, busy, keys, values, self._mixed)
            add_norm(residual, layer.attention_out.summands(self._mixed), layer.mlp_norm, self._normed, eps=self.rms_eps)
            gate(layer.gate_up(self._normed), self._gated)
            delta = layer.down.summands(self._gated)
        assert delta is not None, "a stack has layers"
        return delta

    def run_prompts(self, residual: torch.Tensor, prompts: Prompts, cache: KeysValues) -> torch.Tensor:
        """Computes prompts through all layers, and fills the first L positions of their slots.

        Args:
            residual: (P * L, width) float32, the embeddings, padded at the end to the bucket L; changed.
            prompts: names the slots, distinct; an unused row names a slot without a sequence.

        Returns:
            (P * L, width) in the model's dtype: the states are the norm of its sum with the residual. A prompt's rows depend
            on that prompt and on L alone.
        """
        spec, (rows, length, _) = self._spec, prompts.tokens.shape
        shape = rows, length, -1, spec.heads, spec.head_dim

        def like(width: int) -> torch.Tensor:
            return residual.new_empty(rows * length, width, dtype=self._dtype)

        normed, gated = like(spec.width), like(spec.mlp_width)
        turned = like(2 * spec.heads * spec.head_dim).view(shape)
        delta: torch.Tensor | None = None
        for layer, (keys, values) in zip(self._weights.layers, cache.layers(), strict=True):
            add_norm(residual, delta, layer.attention_norm, normed, eps=self.rms_eps)
            qkv = layer.qkv(normed)
            place(qkv, (self._cos, self._sin), prompts, turned, keys, values)
            query, key, value = (part.transpose(1, 2) for part in (*turned.unbind(2), qkv.view(shape)[:, :, 2]))
            attention = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            product = layer.attention_out(attention.transpose(1, 2).reshape(rows * length, -1))
            add_norm(residual, product[None], layer.mlp_norm, normed, eps=self.rms_eps)
            gate(layer.gate_up(normed), gated)
            delta = layer.down(gated)[None]
        assert delta is not None, "a stack has layers"
        return delta[0]


def sdpa(
    qkv: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    busy: torch.Tensor,
    keys: Cached,
    values: Cached,
    attention: torch.Tensor,
) -> None:
    """The twin in torch of kernels.attention.Attention: it reads all positions, and computes idle slots too."""
    slots, (_, heads, length, head_dim) = len(qkv), keys.numbers.shape
    at = positions[:slots].long()
    cos, sin = (table[at].unsqueeze(1) for table in rotation)  # (S, 1, head_dim)
    parts = qkv.view(slots, 3 * heads, head_dim)
    turned = parts[:, : 2 * heads].float()
    turned = (turned * cos + turned.roll(head_dim // 2, -1) * sin).to(qkv.dtype)
    place = torch.arange(slots, device=qkv.device), slice(None), at
    keys.write(place, turned[:, heads:])
    values.write(place, parts[:, 2 * heads :])
    mask = (torch.arange(length, device=qkv.device) <= at[:, None])[:, None, None, :]
    query, (k, v) = (
        turned[:, :heads].unsqueeze(2),
        (part.read(ActiveExtent(slots, length), qkv.dtype) for part in (keys, values)),
    )
    attention.copy_(F.scaled_dot_product_attention(query, k, v, attn_mask=mask).reshape(slots, -1))
