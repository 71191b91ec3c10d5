"""Gpt: the Llama decoder stack over a slotted KV cache.

In:    embeddings, positions, the KV cache
Out:   last-layer states after the final norm, float32
Owns:  the weights of the stack
Never: embeddings, heads, sampling, which sequence a row belongs to

Two ways through the same weights:
  prefill  (P prompts, L positions each) writes L positions of P slots; L is padded to a bucket, causality hides the padding
  decode   (S slots, 1 position each) writes one position of every slot; the rows of idle slots are computed and not read

Both have a fast twin for CPUs, pipeline/model/cpu/native.py. It sums in float32 instead of rounding to `dtype` in between, so
its bits differ from torch's; a row's bits depend on that row alone there too. It computes no padding.

Source: the Llama architecture as transformers' LlamaModel runs it for ChatTTS (RMSNorm, rotary halves, SwiGLU).
Precision: matrix products and the KV cache in `dtype`; residual stream, norms and rotation in float32. A cache of int8 has
one scale per position and head: a step attends to its own key and value after they are rounded, a prompt to its own before; the
native twin's prompt is a step, so it too attends after.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from pipeline.checkpoint.weights import GptSpec
from pipeline.model.linear import Linear, Product
from pipeline.model.quantise import dequantise, quantise


@dataclass(frozen=True, slots=True, eq=False)
class Cached:
    """The cached keys, or values, of one layer."""

    numbers: torch.Tensor  # (slots, heads, positions, head_dim)
    scales: torch.Tensor | None  # (slots, heads, positions)

    def write(self, place: tuple[slice | torch.Tensor, ...], rows: torch.Tensor) -> None:
        """Writes rows (..., head_dim) to a place of (slots, heads, positions), quantised if the cache is int8."""
        if self.scales is None:
            self.numbers[place] = rows
        else:
            self.numbers[place], self.scales[place] = quantise(rows)

    def read(self, extent: "ActiveExtent", dtype: torch.dtype) -> torch.Tensor:
        """Returns the numbers of the extent, (slots, heads, positions, head_dim) in `dtype`."""
        place = slice(extent.slots), slice(None), slice(extent.positions)
        if self.scales is None:
            return self.numbers[place]
        return dequantise(self.numbers[place], self.scales[place]).to(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class KeysValues:
    """The KV cache of one model, allocated once."""

    keys: torch.Tensor  # (layers, slots, heads, positions, head_dim), dtype of the model, or int8
    values: torch.Tensor  # same
    key_scales: torch.Tensor | None = None  # (layers, slots, heads, positions) float32, where the cache is int8
    value_scales: torch.Tensor | None = None  # same

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors that exist; the first dimensions of each are (layers, slots, heads, positions)."""
        return tuple(tensor for tensor in (self.keys, self.values, self.key_scales, self.value_scales) if tensor is not None)

    @property
    def nbytes(self) -> int:
        """Size of all tensors [bytes]."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def layers(self) -> Iterator[tuple[Cached, Cached]]:
        """Yields keys and values, layer by layer."""
        for layer in range(len(self.keys)):
            scales = (None if tensor is None else tensor[layer] for tensor in (self.key_scales, self.value_scales))
            yield Cached(self.keys[layer], next(scales)), Cached(self.values[layer], next(scales))


@dataclass(frozen=True, slots=True)
class ActiveExtent:
    """The part of the batch that a decode step computes: slots [0, slots) and, of the cache, positions [0, positions).

    Everything beyond is masked anyway; leaving it out changes no bit of the rows within (tests/unit, test_gpt.py).
    """

    slots: int
    positions: int


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """The weights of one layer; products over the same input are stacked into one."""

    attention_norm: torch.Tensor  # (width,) float32
    qkv: Product  # width -> 3 * heads * head_dim
    attention_out: Product
    mlp_norm: torch.Tensor  # (width,) float32
    gate_up: Product  # width -> 2 * MLP width
    down: Product


@dataclass(frozen=True, slots=True, eq=False)
class GptWeights:
    """The weights of a stack, in the form in which torch's decode and prefill use them."""

    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # (width,) float32


def pack_weights(
    tensors: dict[str, torch.Tensor], layers: int, product: Callable[[torch.Tensor], Product], device: torch.device
) -> GptWeights:
    """Moves the weights to the device, and stacks those of products over the same input.

    Args:
        tensors: upstream's names, as in gpt/model.safetensors.
        layers: how many of the stack's layers to pack.
        product: makes a Product of a weight (out, in) float32 on the device.
    """

    def norm(name: str) -> torch.Tensor:
        return tensors[f"{name}.weight"].to(device, torch.float32)

    def stacked(*names: str) -> Product:
        return product(torch.cat([tensors[f"{name}.weight"].to(device, torch.float32) for name in names]))

    def layer(prefix: str) -> LayerWeights:
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return LayerWeights(
            attention_norm=norm(f"{prefix}.input_layernorm"),
            qkv=stacked(*(f"{attention}.{part}_proj" for part in "qkv")),
            attention_out=stacked(f"{attention}.o_proj"),
            mlp_norm=norm(f"{prefix}.post_attention_layernorm"),
            gate_up=stacked(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            down=stacked(f"{mlp}.down_proj"),
        )

    return GptWeights(tuple(layer(f"layers.{index}") for index in range(layers)), norm("norm"))


class Gpt:
    """The decoder stack."""

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        spec: GptSpec,
        *,
        positions: int,
        rows: int,
        device: torch.device,
        dtype: torch.dtype,
        product: Callable[[torch.Tensor], Product] | None = None,
    ) -> None:
        """
        Args:
            tensors: upstream's names, as in gpt/model.safetensors.
            positions: length of the longest sequence [positions].
            rows: number of slots in a decode step.
            product: makes a Product of a weight (out, in) float32 on the device; None: Linear, in `dtype`.
        """
        self._spec = spec
        self._dtype = dtype
        self._weights = pack_weights(
            tensors, spec.layers, product or (lambda weight: Linear(weight.to(dtype), rows=rows)), device
        )
        self._cos, self._sin = rotary_tables(positions, spec.head_dim, spec.rope_theta, device)
        self._slot_index = torch.arange(rows, device=device)
        self._position_index = torch.arange(positions, device=device)

    def decode(self, x: torch.Tensor, positions: torch.Tensor, cache: KeysValues, extent: ActiveExtent) -> torch.Tensor:
        """Advances every slot by one position.

        Args:
            x: (S, width) float32, one embedding per slot.
            positions: (S,) int64, where each slot writes; those outside `extent` may be any valid position.

        Returns:
            (S, width) float32, or its first rows. Row i depends on slot i alone; rows outside `extent` are undefined.
        """
        cos, sin = self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)  # (S, 1, head_dim)
        in_reach = self._position_index[: extent.positions] <= positions[: extent.slots, None]
        mask = torch.zeros_like(in_reach, dtype=self._dtype).masked_fill_(~in_reach, float("-inf"))
        mask = mask[:, None, None, :]  # (slots, 1, 1, positions)
        place = self._slot_index, slice(None), positions
        for layer, (keys, values) in zip(self._weights.layers, cache.layers(), strict=True):
            q, k, v = self._project(layer, x, cos, sin)  # each (S, heads, head_dim)
            keys.write(place, k)
            values.write(place, v)
            attention = F.scaled_dot_product_attention(
                q[: extent.slots].unsqueeze(2),
                keys.read(extent, self._dtype),
                values.read(extent, self._dtype),
                attn_mask=mask,
            )
            if extent.slots < len(x):
                attention = torch.cat([attention, attention.new_zeros((len(x) - extent.slots, *attention.shape[1:]))])
            x = self._finish_layer(layer, x, attention.reshape(len(x), -1))
        return self._norm(x, self._weights.final_norm)

    def prefill(self, x: torch.Tensor, slots: torch.Tensor, last: torch.Tensor, cache: KeysValues) -> torch.Tensor:
        """Computes prompts, and fills the first L positions of their slots.

        Args:
            x: (P, L, width) float32, the embeddings, padded at the end to the bucket L.
            slots: (P,) int64, distinct; an unused row names a slot without a sequence.
            last: (P,) int64, the last position of each prompt before the padding.

        Returns:
            (P, width) float32: the state at `last`. Row i depends on prompt i and on L alone.
        """
        rows, length, width = x.shape
        x = x.reshape(rows * length, width)
        cos = self._cos[:length].repeat(rows, 1).unsqueeze(1)  # (P * L, 1, head_dim)
        sin = self._sin[:length].repeat(rows, 1).unsqueeze(1)
        place = slots, slice(None), slice(length)
        for layer, (keys, values) in zip(self._weights.layers, cache.layers(), strict=True):
            q, k, v = (
                part.view(rows, length, self._spec.heads, self._spec.head_dim).transpose(1, 2)
                for part in self._project(layer, x, cos, sin)
            )
            keys.write(place, k)
            values.write(place, v)
            attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = self._finish_layer(layer, x, attention.transpose(1, 2).reshape(rows * length, -1))
        ends = torch.arange(rows, device=x.device) * length + last
        return self._norm(x[ends], self._weights.final_norm)

    def _project(
        self, layer: LayerWeights, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns queries, keys and values of x (M, width), the first two rotated; each (M, heads, head_dim) in `dtype`."""
        heads, head_dim = self._spec.heads, self._spec.head_dim
        qkv = layer.qkv(self._norm(x, layer.attention_norm).to(self._dtype)).view(len(x), 3 * heads, head_dim)
        turned = qkv[:, : 2 * heads].float()
        turned = (turned * cos + turned.roll(head_dim // 2, -1) * sin).to(self._dtype)
        return turned[:, :heads], turned[:, heads:], qkv[:, 2 * heads :]

    def _finish_layer(self, layer: LayerWeights, x: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
        x = x + layer.attention_out(attention)
        gate, up = layer.gate_up(self._norm(x, layer.mlp_norm).to(self._dtype)).chunk(2, dim=-1)
        return x + layer.down(F.silu(gate) * up)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._spec.rms_eps)


def rotary_tables(positions: int, head_dim: int, theta: float, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns cosines and signed sines, each (positions, head_dim) float32.

    Rotating [a, b] gives [a cos - b sin, b cos + a sin]: with the halves swapped by a roll, the sign sits in the table.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    angles = torch.outer(torch.arange(positions).float(), frequencies)  # (positions, head_dim / 2)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], -1).to(device), torch.cat([-sin, sin], -1).to(device)
