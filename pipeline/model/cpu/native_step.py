"""Native step: heads, draws, embeddings and the stack of a CPU's decode step as one call into decode.cpp.

In:    the packed stack, both vocabularies, the per-slot tensors
Out:   the same tensors, one step further
Owns:  the packed heads, the scratch memory
Never: prompts, the meaning of a slot's values: pipeline/engine/cpu_state.py
"""

import ctypes
from dataclasses import dataclass, fields

import torch

from pipeline.model.cpu.native import Cache, Model, NativeDecoder
from pipeline.model.cpu.packing import Arithmetic, Product
from pipeline.model.embedding import Embedding
from pipeline.model.gpt import KeysValues
from pipeline.model.quantise import quantise
from pipeline.native.memory import ALIGNMENT, PANEL, Arena, aligned, pack
from pipeline.spec import CODEBOOKS

DRAW_BYTES = 24  # scratch memory per token of a vocabulary: two keys, two places, one mass


@dataclass(frozen=True, slots=True, eq=False)
class SlotTensors:
    """Settings, progress and results of S slots; a step changes them in place. Names and order as in decode.cpp."""

    temperature: torch.Tensor  # S numbers, float32
    dropped_mass: torch.Tensor  # S numbers, float32: 1 - top_p
    powers: torch.Tensor  # (S, window + 1) float32: the repetition penalty to the power of 0, 1, ...
    uniforms: torch.Tensor  # (S, steps, 4) float32
    top_k: torch.Tensor  # S numbers, int64
    min_steps: torch.Tensor  # (S,) int64
    max_steps: torch.Tensor  # (S,) int64
    eos: torch.Tensor  # S numbers, int64
    is_text: torch.Tensor  # (S,) bool
    from_noise: torch.Tensor  # S numbers, bool
    hidden: torch.Tensor  # (S, width) float32
    positions: torch.Tensor  # (S,) int64
    steps: torch.Tensor  # (S,) int64
    active: torch.Tensor  # (S,) bool
    out_hidden: torch.Tensor  # (K, S, width) float32; undefined for slots that were not active
    out_tokens: torch.Tensor  # (K, S, 4) int64; undefined likewise
    out_emitted: torch.Tensor  # (K, S) bool
    ended: torch.Tensor  # (S,) bool
    broken: torch.Tensor  # (S,) bool


@dataclass(frozen=True, slots=True, eq=False)
class HeadTensors:
    """Noise and recent draws of S slots for C codebooks of a vocabulary of V tokens."""

    noise: torch.Tensor  # (S, C, V) float32
    recent: torch.Tensor  # (S, C, window) int64


class _Head(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("books", "vocab", "panels")),
        ("product", Product),
        *((name, ctypes.c_void_p) for name in ("table", "noise", "recent", "logits")),
    )


class _Slots(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int64),
        ("uniform_steps", ctypes.c_int64),
        *((field.name, ctypes.c_void_p) for field in fields(SlotTensors)),
        *((name, ctypes.c_void_p) for name in ("drawn", "draws")),
        ("draw_bytes", ctypes.c_int64),
    )


class NativeStep:
    """One decode step of all active slots. Call it from the thread that created the decoder."""

    def __init__(
        self,
        decoder: NativeDecoder,
        embedding: Embedding,
        slots: SlotTensors,
        code: HeadTensors,
        text: HeadTensors,
        cache: KeysValues,
    ) -> None:
        """
        Args:
            slots, code, text, cache: their tensors are read and changed in place by every call, and must be contiguous.
        """
        self._step = decoder.library.step
        self._step.argtypes = (
            ctypes.POINTER(Model),
            ctypes.POINTER(_Head * 2),
            ctypes.POINTER(_Slots),
            ctypes.POINTER(Cache),
            ctypes.c_int64,
        )
        self._step.restype = None
        self._decoder = decoder
        self._cache = decoder.cache(*cache.tensors)
        self._kept: list[torch.Tensor] = []  # every tensor that the structures below point into
        self._heads = (_Head * 2)(
            self._head(embedding.code_heads, embedding.code_table, code),
            self._head(embedding.text_head, embedding.text_table, text),
        )
        largest_vocab = max(code.noise.shape[2], text.noise.shape[2])
        draw_bytes = -(-largest_vocab * DRAW_BYTES // ALIGNMENT) * ALIGNMENT
        count = len(slots.active)
        self._slots = _Slots(
            count=count,
            uniform_steps=slots.uniforms.shape[1],
            **{field.name: self._address(getattr(slots, field.name)) for field in fields(SlotTensors)},
            drawn=self._address(torch.zeros(count, CODEBOOKS, dtype=torch.int64)),
            draws=self._address(aligned(draw_bytes * decoder.model.threads)),
            draw_bytes=draw_bytes,
        )

    def __call__(self, number: int) -> None:
        """Draws, feeds back and advances; `number` is the step's index in its round, 0 .. K - 1."""
        self._step(
            ctypes.byref(self._decoder.model),
            ctypes.byref(self._heads),
            ctypes.byref(self._slots),
            ctypes.byref(self._cache),
            number,
        )

    def _head(self, weight: torch.Tensor, table: torch.Tensor, tensors: HeadTensors) -> _Head:
        """Packs a head's weight (books * vocab, width) and describes its vocabulary."""
        slots, books, vocab = tensors.noise.shape
        panels = -(-len(weight) // PANEL)
        padded = torch.cat([weight, weight.new_zeros(panels * PANEL - len(weight), weight.shape[1])])
        scales = None
        if self._decoder.arithmetic is Arithmetic.GROUPS_INT4:  # beside those, heads of float32 are a fifteenth of all bytes
            padded, scales = quantise(padded)
        arena = Arena(padded.nbytes)
        return _Head(
            books=books,
            vocab=vocab,
            panels=panels,
            product=Product(self._address(arena.keep(pack(padded))), None if scales is None else self._address(scales)),
            table=self._address(table),
            noise=self._address(tensors.noise),
            recent=self._address(tensors.recent),
            logits=self._address(torch.zeros(slots, panels * PANEL)),
        )

    def _address(self, tensor: torch.Tensor) -> int:
        assert tensor.is_contiguous(), "the step sees plain arrays"
        self._kept.append(tensor)
        return tensor.data_ptr()
