"""Native step: heads, draws, embeddings and the stack of a CPU's decode step as one call into decode.cpp.

In:    the packed stack, both vocabularies, the per-slot arrays
Out:   the same arrays, one step further
Owns:  the packed heads, the scratch memory
Never: prompts, the meaning of a slot's values: pipeline/engine/cpu_state.py
"""

import ctypes
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.model.cpu.native import Cache, Model, NativeDecoder
from pipeline.model.cpu.packing import Arithmetic, Product
from pipeline.model.cpu.quantise_numpy import quantise
from pipeline.model.cpu.vocabulary import Heads, Vocabulary
from pipeline.native.memory import ALIGNMENT, PANEL, Arena, address, aligned, pack
from pipeline.spec import CODEBOOKS

DRAW_BYTES = 24  # scratch memory per token of a vocabulary: two keys, two places, one mass


@dataclass(frozen=True, slots=True, eq=False)
class SlotArrays:
    """Settings, progress and results of S slots; a step changes them in place. Names and order as in decode.cpp."""

    temperature: NDArray[np.float32]  # S numbers, float32
    dropped_mass: NDArray[np.float32]  # S numbers, float32: 1 - top_p
    powers: NDArray[np.float32]  # (S, window + 1) float32: the repetition penalty to the power of 0, 1, ...
    uniforms: NDArray[np.float32]  # (S, steps, 4) float32
    top_k: NDArray[np.int64]  # S numbers, int64
    min_steps: NDArray[np.int64]  # (S,) int64
    max_steps: NDArray[np.int64]  # (S,) int64
    eos: NDArray[np.int64]  # S numbers, int64
    is_text: NDArray[np.bool_]  # (S,) bool
    from_noise: NDArray[np.bool_]  # S numbers, bool
    hidden: NDArray[np.float32]  # (S, width) float32
    positions: NDArray[np.int64]  # (S,) int64
    steps: NDArray[np.int64]  # (S,) int64
    active: NDArray[np.bool_]  # (S,) bool
    out_hidden: NDArray[np.float32]  # (K, S, width) float32; undefined for slots that were not active
    out_tokens: NDArray[np.int64]  # (K, S, 4) int64; undefined likewise
    out_emitted: NDArray[np.bool_]  # (K, S) bool
    ended: NDArray[np.bool_]  # (S,) bool
    broken: NDArray[np.bool_]  # (S,) bool


@dataclass(frozen=True, slots=True, eq=False)
class HeadArrays:
    """Noise and recent draws of S slots for C codebooks of a vocabulary of V tokens."""

    noise: NDArray[np.float32]  # (S, C, V) float32
    recent: NDArray[np.int64]  # (S, C, window) int64


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
        *((field.name, ctypes.c_void_p) for field in fields(SlotArrays)),
        *((name, ctypes.c_void_p) for name in ("drawn", "draws")),
        ("draw_bytes", ctypes.c_int64),
    )


class NativeStep:
    """One decode step of all active slots. Call it from the thread that created the decoder."""

    def __init__(
        self,
        decoder: NativeDecoder,
        vocabulary: Vocabulary,
        heads: Heads,
        slots: SlotArrays,
        code: HeadArrays,
        text: HeadArrays,
        cache: tuple[NDArray[Any], ...],
    ) -> None:
        """
        Args:
            slots, code, text, cache: their arrays are read and changed in place by every call, and must be contiguous.
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
        self._cache = decoder.cache(*cache)
        self._arrays: list[NDArray[Any]] = []  # every array that the structures below point into
        self._heads = (_Head * 2)(
            self._head(heads.code, vocabulary.code_table, code),
            self._head(heads.text, vocabulary.text_table, text),
        )
        largest_vocab = max(code.noise.shape[2], text.noise.shape[2])
        draw_bytes = -(-largest_vocab * DRAW_BYTES // ALIGNMENT) * ALIGNMENT
        count = len(slots.active)
        self._slots = _Slots(
            count=count,
            uniform_steps=slots.uniforms.shape[1],
            **{field.name: self._address(getattr(slots, field.name)) for field in fields(SlotArrays)},
            drawn=self._address(np.zeros((count, CODEBOOKS), np.int64)),
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

    def _head(self, weight: NDArray[np.float32], table: NDArray[np.float32], arrays: HeadArrays) -> _Head:
        """Packs a head's weight (books * vocab, width) and describes its vocabulary."""
        slots, books, vocab = arrays.noise.shape
        panels = -(-len(weight) // PANEL)
        scales = None
        padded = np.zeros((panels * PANEL, weight.shape[1]), np.float32)
        padded[: len(weight)] = weight
        numbers: NDArray[Any] = padded
        if self._decoder.arithmetic is Arithmetic.GROUPS_INT4:  # beside those, heads of float32 are a fifteenth of all bytes
            numbers, scales = quantise(padded)
        arena = Arena(numbers.nbytes)
        return _Head(
            books=books,
            vocab=vocab,
            panels=panels,
            product=Product(self._address(arena.keep(pack(numbers))), None if scales is None else self._address(scales)),
            table=self._address(table),
            noise=self._address(arrays.noise),
            recent=self._address(arrays.recent),
            logits=self._address(np.zeros((slots, panels * PANEL), np.float32)),
        )

    def _address(self, array: NDArray[Any]) -> int:
        self._arrays.append(array)
        return address(array)
