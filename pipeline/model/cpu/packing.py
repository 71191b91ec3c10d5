"""Packing: the decoder stack's weights in the order in which decode.cpp reads them.

In:    the stack's tensors, the arithmetic of its products
Out:   PackedWeights
Owns:  the packed memory
Never: activations, the KV cache, the calls into decode.cpp (native.py)
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.bfloat16 import rounded
from pipeline.checkpoint.weights import GptSpec, Tensors
from pipeline.model.cpu import four_bit
from pipeline.model.cpu.quantise_numpy import quantise
from pipeline.native.instructions import Instructions
from pipeline.native.memory import ALIGNMENT, BFLOAT16, LANES, PANEL, Arena, address, pack, pack_tiles

Weights = Literal["float32", "bfloat16", "int8", "int4"]
"""int8 has one scale per output, int4 is in groups of 32 inputs"""
STORED: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": BFLOAT16,
    "int8": np.dtype(np.int8),
    "int4": np.dtype(np.uint8),
}
"""type of numbers -> numpy's; two of 4 bits share a byte"""

PRODUCTS_PER_LAYER = 4


class Arithmetic(IntEnum):
    """How decode.cpp multiplies, by the type of the weights; as in decode.cpp."""

    PLAIN_FLOAT = 0
    PLAIN_BF16 = 1
    PLAIN_INT8 = 2
    PAIRS_INT8 = 3
    TILE_BF16 = 4
    TILE_INT8 = 5
    GROUPS_INT4 = 6

    @property
    def weights(self) -> Weights:
        """The type of the weights."""
        types: dict[str, Weights] = {"FLOAT": "float32", "BF16": "bfloat16", "INT8": "int8", "INT4": "int4"}
        return types[self.name.partition("_")[2]]


def arithmetic(weights: Weights, instructions: Instructions) -> Arithmetic:
    """Returns the fastest arithmetic for weights of a type; float32 and int4 have but one."""
    if weights == "int4":
        return Arithmetic.GROUPS_INT4
    if weights == "float32":
        return Arithmetic.PLAIN_FLOAT
    if instructions is Instructions.AMX:
        return Arithmetic.TILE_BF16 if weights == "bfloat16" else Arithmetic.TILE_INT8
    if weights == "bfloat16":
        return Arithmetic.PLAIN_BF16
    return Arithmetic.PLAIN_INT8 if instructions is Instructions.NEON else Arithmetic.PAIRS_INT8


class Product(ctypes.Structure):
    """As in pipeline/native/product.h."""

    _fields_ = (("weights", ctypes.c_void_p), ("scales", ctypes.c_void_p))


class Layer(ctypes.Structure):
    """As in decode.cpp."""

    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("qkv", Product),
        ("attention_out", Product),
        ("mlp_norm", ctypes.c_void_p),
        ("gate_up", Product),
        ("down", Product),
    )


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """One stack's weights as decode.cpp reads them."""

    layers: "ctypes.Array[Layer]"
    final_norm: NDArray[np.float32]  # (width,) float32
    arrays: tuple[NDArray[Any], ...]
    """every array that `layers` points into; they must live as long as the layers are used"""


def pack_weights(
    tensors: Tensors, spec: GptSpec, arithmetic: Arithmetic, library: ctypes.CDLL, *, threads: int
) -> PackedWeights:
    """Packs the weights of all layers into one arena.

    Args:
        tensors: upstream's names, as in gpt/model.safetensors.
        arithmetic: weights are packed as it reads them; int8 has one scale per output.
        library: decode.cpp, compiled: it rounds to 4 bits, on so many threads.
    """
    numbers = sum(tensor.size for name, tensor in tensors.items() if "_proj" in name)
    size = numbers * STORED[arithmetic.weights].itemsize + spec.layers * PRODUCTS_PER_LAYER * ALIGNMENT
    packer = _Packer(size, arithmetic, partial(four_bit.rounded, library=library, threads=threads))
    layers = (packer.layer(tensors, f"layers.{index}", spec) for index in range(spec.layers))
    stack = (Layer * spec.layers)(*layers)
    return PackedWeights(stack, tensors["norm.weight"], tuple(packer.arrays))


class _Packer:
    """Packs products into an arena, and collects every array that a structure points into."""

    def __init__(self, size: int, arithmetic: Arithmetic, in_four_bits: Callable[..., four_bit.FourBits]) -> None:
        self._arena = Arena(size)
        self._weights, self._in_four_bits = arithmetic.weights, in_four_bits
        in_tiles = arithmetic in (Arithmetic.TILE_BF16, Arithmetic.TILE_INT8)
        self._pack = pack_tiles if in_tiles else partial(pack, in_pairs=arithmetic is Arithmetic.PAIRS_INT8)
        self.arrays: list[NDArray[Any]] = []

    def layer(self, tensors: Tensors, prefix: str, spec: GptSpec) -> Layer:
        """Packs one layer."""

        def named(*names: str) -> list[NDArray[np.float32]]:
            return [tensors[f"{prefix}.{name}.weight"] for name in names]

        # One panel holds numbers that are used together: sixteen of a head and the sixteen they are rotated with,
        # sixteen gates and the sixteen values they belong to.
        heads = np.stack(named(*(f"self_attn.{part}_proj" for part in "qkv")))
        rotated = heads.reshape(-1, 2, spec.head_dim // PANEL, LANES, spec.width).transpose(0, 2, 1, 3, 4)
        gate, up = (part.reshape(-1, LANES, spec.width) for part in named("mlp.gate_proj", "mlp.up_proj"))
        return Layer(
            attention_norm=self._address(named("input_layernorm")[0]),
            qkv=self._product(rotated.reshape(3 * spec.width, spec.width)),
            attention_out=self._product(*named("self_attn.o_proj")),
            mlp_norm=self._address(named("post_attention_layernorm")[0]),
            gate_up=self._product(np.stack([gate, up], 1).reshape(-1, spec.width)),
            down=self._product(*named("mlp.down_proj")),
        )

    def _product(self, weight: NDArray[np.float32]) -> Product:
        """Packs one weight (out, in)."""
        if self._weights == "int4":
            packed = four_bit.pack_groups(*self._in_four_bits(np.ascontiguousarray(weight)))
            return Product(self._address(self._arena.keep(packed)), None)
        if self._weights == "int8":
            quantised, scales = quantise(weight)
            return Product(self._address(self._arena.keep(self._pack(quantised))), self._address(scales))
        numbers = weight if self._weights == "float32" else rounded(weight)
        return Product(self._address(self._arena.keep(self._pack(numbers))), None)

    def _address(self, array: NDArray[Any]) -> int:
        self.arrays.append(array)
        return address(array)
