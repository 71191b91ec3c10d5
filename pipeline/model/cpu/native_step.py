"""Native step: heads, draws, embeddings and the stack of a CPU's decode step as one call into decode.cpp.

In:    the packed stack, both vocabularies, every slot's tensors
Out:   the same tensors, one step on
Owns:  the packed heads, the scratch
Never: prompts, the meaning of a slot's values: pipeline/engine/cpu_runner.py
"""

import ctypes
from dataclasses import dataclass, fields

import torch

from pipeline.model.cpu.native import Cache, Model, NativeDecoder, Product
from pipeline.model.embedding import Embedding
from pipeline.model.gpt import KeysValues
from pipeline.native.memory import ALIGNMENT, PANEL, Arena, aligned, pack
from pipeline.spec import CODEBOOKS

DRAW_BYTES = 24  # scratch of one token of a vocabulary: two keys, two places, one mass


@dataclass(frozen=True, slots=True, eq=False)
class SlotTensors:
    """What S slots are and where they stand; a step changes them in place. Names and order as in decode.cpp."""

    temperature: torch.Tensor  # (S,) float32, like the next one
    dropped_mass: torch.Tensor
    powers: torch.Tensor  # (S, window + 1) float32: the repetition penalty to the power of 0, 1, ...
    uniforms: torch.Tensor  # (S, steps, 4) float32
    top_k: torch.Tensor  # (S,) int64, like the next three
    min_steps: torch.Tensor
    max_steps: torch.Tensor
    eos: torch.Tensor
    is_text: torch.Tensor  # (S,) bool, like the next one
    from_noise: torch.Tensor
    hidden: torch.Tensor  # (S, width) float32
    positions: torch.Tensor  # (S,) int64, like the next one
    steps: torch.Tensor
    active: torch.Tensor  # (S,) bool
    out_hidden: torch.Tensor  # (K, S, width) float32; of slots that were not active it means nothing
    out_tokens: torch.Tensor  # (K, S, 4) int64; likewise
    out_emitted: torch.Tensor  # (K, S) bool
    ended: torch.Tensor  # (S,) bool, like the next one
    broken: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class HeadTensors:
    """What S slots keep of one vocabulary V of C codebooks."""

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
    """One decode step of all active slots. Call it from the thread that made the decoder."""

    def __init__(
        self,
        decoder: NativeDecoder,
        embedding: Embedding,
        slots: SlotTensors,
        code: HeadTensors,
        text: HeadTensors,
        cache: KeysValues,
    ) -> None:
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
        self._kept: list[torch.Tensor] = []  # everything the structures below point into
        count = len(slots.active)

        def pointer(tensor: torch.Tensor) -> int:
            assert tensor.is_contiguous(), "the step sees plain arrays"
            self._kept.append(tensor)
            return tensor.data_ptr()

        def head(weight: torch.Tensor, table: torch.Tensor, tensors: HeadTensors) -> _Head:
            _, books, vocab = tensors.noise.shape
            panels = -(-len(weight) // PANEL)
            arena = Arena(panels * PANEL * weight[0].nbytes)
            self._kept.append(
                arena.keep(pack(torch.cat([weight, weight.new_zeros(panels * PANEL - len(weight), weight.shape[1])])))
            )
            return _Head(
                books=books,
                vocab=vocab,
                panels=panels,
                product=Product(self._kept[-1].data_ptr(), None),
                table=pointer(table),
                noise=pointer(tensors.noise),
                recent=pointer(tensors.recent),
                logits=pointer(torch.zeros(count, panels * PANEL)),
            )

        self._heads = (_Head * 2)(
            head(embedding.code_heads, embedding.code_table, code), head(embedding.text_head, embedding.text_table, text)
        )
        largest_vocab = max(code.noise.shape[2], text.noise.shape[2])
        draw_bytes = -(-largest_vocab * DRAW_BYTES // ALIGNMENT) * ALIGNMENT
        self._slots = _Slots(
            count=count,
            uniform_steps=slots.uniforms.shape[1],
            **{field.name: pointer(getattr(slots, field.name)) for field in fields(SlotTensors)},
            drawn=pointer(torch.zeros(count, CODEBOOKS, dtype=torch.int64)),
            draws=pointer(aligned(draw_bytes * decoder.model.threads)),
            draw_bytes=draw_bytes,
        )

    def __call__(self, number: int) -> None:
        """Draw, feed back and advance; `number` is the step's place in its round."""
        self._step(
            ctypes.byref(self._decoder.model),
            ctypes.byref(self._heads),
            ctypes.byref(self._slots),
            ctypes.byref(self._cache),
            number,
        )
