"""Native: the decoder stack on a CPU as one call into machine code, compiled from decode.cpp at first use.

In:    the stack's tensors, then the rows to advance
Out:   their states; keys and values in the cache
Owns:  the packed weights (packing.py), the scratch memory
Never: sampling (native_step.py), the choice whether it is used

torch runs a step of 20 layers as some 600 small operations. This is one parallel region that reads every weight once;
docs/decisions has the measurements. pipeline/native/compiler.py says what it needs. With AMX, bfloat16 and int8 weights are
multiplied in tiles, and with AVX-512 or AVX2 int8 weights as integers (pipeline/native/product.h): other sums, other last bits.
Weights of 4 bits have the same bits everywhere.
"""

import ctypes
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.weights import GptSpec, Tensors
from pipeline.model.cpu.packing import STORED, Layer, Weights, arithmetic, pack_weights
from pipeline.model.cpu.rotary import rotary_tables
from pipeline.native.compiler import NativeUnavailable, best_instructions, library
from pipeline.native.instructions import Instructions
from pipeline.native.memory import ALIGNMENT, LANES, PANEL, address, aligned

SOURCE = Path(__file__).with_name("decode.cpp")
PROMPT_ROWS = 128
"""positions of prompts that advance together; more of them read the weights again"""
TILE_INPUTS = 64  # inputs of a tile in int8; a product's inputs are a multiple of it


class Model(ctypes.Structure):
    """As in decode.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("arithmetic", "layers", "width", "heads", "head_dim", "mlp_width")),
        *((name, ctypes.c_int64) for name in ("positions", "threads", "rows", "taken_width")),
        ("eps", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("final_norm", "cos", "sin")),
        ("stack", ctypes.POINTER(Layer)),
        *(
            (name, ctypes.c_void_p)
            for name in ("x", "queries", "seen", "hidden", "normed", "scores", "fresh", "taken", "places", "counts")
        ),
    )


class Cache(ctypes.Structure):
    """As in decode.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "values", "key_scales", "value_scales")),
        ("slots", ctypes.c_int64),
    )


class _Rows(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int64), ("slots", ctypes.c_void_p), ("positions", ctypes.c_void_p))


class NativeDecoder:
    """One stack's weights, packed for decode.cpp, and its scratch memory. Call it from the thread that created it."""

    def __init__(
        self,
        tensors: Tensors,
        spec: GptSpec,
        *,
        positions: int,
        rows: int,
        weights: Weights,
        threads: int,
        instructions: Instructions | None = None,
    ) -> None:
        """
        Args:
            tensors: upstream's names, as in gpt/model.safetensors.
            positions: length of the longest sequence [positions].
            rows: number of slots.
            weights: float32 or bfloat16, with a KV cache of the same type or of int8; int8, one scale per output, or int4, in
                groups, with a KV cache of bfloat16 or int8.
            threads: that compute, the calling one included.
            instructions: those to compute with; None: the best of this machine.

        Raises:
            NativeUnavailable: this machine, or a model of these dimensions, cannot use it.
        """
        check_dimensions(spec)
        self.instructions = instructions or best_instructions()
        self.library = library(SOURCE, instructions=self.instructions)
        self._advance = self.library.advance
        self._advance.argtypes = (*map(ctypes.POINTER, (Model, _Rows, Cache)), ctypes.c_void_p, ctypes.c_void_p)
        self._advance.restype = None
        self.spec, self._slots, self._rows = spec, rows, max(rows, PROMPT_ROWS)
        self.arithmetic = arithmetic(weights, self.instructions)
        self._weights = pack_weights(tensors, spec, self.arithmetic, self.library, threads=threads)
        self._rotary = rotary_tables(positions, spec.head_dim, spec.rope_theta)
        self._scratch = allocate_scratch(spec, rows=self._rows, positions=positions, threads=threads)
        self.model = self._model(threads)
        self.cache_dtype = STORED["float32" if weights == "float32" else "bfloat16"]
        """of a cache that is not int8"""

    def __call__(
        self, x: NDArray[np.float32], slots: NDArray[np.int64], positions: NDArray[np.int64], cache: tuple[NDArray[Any], ...]
    ) -> NDArray[np.float32]:
        """Advances slots: several by one position each, or one by consecutive positions.

        Args:
            x: (M, width) float32, the embeddings.
            slots, positions: (M,) int64, where each row writes.
            cache: the arguments of the method `cache`.

        Returns:
            (M, width) float32, the states.
        """
        assert x.shape == (len(x), self.spec.width), "x is (M, width)"
        assert slots.shape == positions.shape == (len(x),), "a slot and a position for each row"
        out, places = np.empty_like(x), self.cache(*cache)
        for array, dtype in ((x, np.float32), (slots, np.int64), (positions, np.int64)):
            # The C++ code checks no address.
            assert array.dtype == dtype, f"{array.dtype} where {dtype} is declared"
            assert array.flags.c_contiguous, "rows are contiguous"
        for first in range(0, len(x), self._rows):
            some = slice(first, first + self._rows)
            rows = _Rows(len(x[some]), address(slots[some]), address(positions[some]))
            self._advance(
                ctypes.byref(self.model), ctypes.byref(rows), ctypes.byref(places), address(x[some]), address(out[some])
            )
        return out

    def prefill(
        self, prompts: Sequence[NDArray[np.float32]], slots: Sequence[int], cache: tuple[NDArray[Any], ...]
    ) -> NDArray[np.float32]:
        """Computes prompts: their positions are rows of one call.

        Args:
            prompts: (L, width) float32 each, the embeddings.
            slots: where each one's keys and values are written, from position 0 on.

        Returns:
            (prompts, width) float32, the states at their last positions.
        """
        lengths = [len(prompt) for prompt in prompts]
        places = [np.arange(length, dtype=np.int64) for length in lengths]
        states = self(np.concatenate(prompts), np.repeat(np.array(slots, np.int64), lengths), np.concatenate(places), cache)
        last: NDArray[np.float32] = states[np.cumsum(lengths) - 1]
        return last

    def cache(self, keys: NDArray[Any], values: NDArray[Any], *scales: NDArray[np.float32]) -> Cache:
        """Returns the KV cache as decode.cpp takes it. The structure points into the arrays, which must outlive it.

        Args:
            keys, values: (layers, slots, heads, positions, head_dim) of `cache_dtype`, or of int8.
            scales: with int8, those of keys and of values, each (layers, slots, heads, positions) float32.
        """
        slots = keys.shape[1]
        places = (self.spec.layers, slots, self.spec.heads, self.model.positions)
        assert slots >= self._slots, "the cache has every slot"
        assert len(scales) in (0, 2), "of keys and of values"
        numbers = (STORED["int8"] if scales else self.cache_dtype, (*places, self.spec.head_dim), True)
        floats = (STORED["float32"], places, True)
        for array, expected in ((keys, numbers), (values, numbers), *((scale, floats) for scale in scales)):
            declared = (array.dtype, array.shape, array.flags.c_contiguous)
            assert declared == expected, f"a cache of {declared}"
        key_scales, value_scales = map(address, scales) if scales else (None, None)
        return Cache(address(keys), address(values), key_scales, value_scales, slots)

    def _model(self, threads: int) -> Model:
        """Returns the structure that decode.cpp takes; it points into the weights, the tables and the scratch memory."""
        spec, (cos, sin) = self.spec, self._rotary
        return Model(
            arithmetic=self.arithmetic,
            layers=spec.layers,
            width=spec.width,
            heads=spec.heads,
            head_dim=spec.head_dim,
            mlp_width=spec.mlp_width,
            positions=len(cos),
            threads=threads,
            rows=self._rows,
            taken_width=taken_width(spec),
            eps=spec.rms_eps,
            final_norm=address(self._weights.final_norm),
            cos=address(cos),
            sin=address(sin),
            stack=self._weights.layers,
            **{name: address(memory) for name, memory in self._scratch.items()},
        )


def check_dimensions(spec: GptSpec) -> None:
    """Checks all that decode.cpp assumes of a model's dimensions.

    Raises:
        NativeUnavailable: it cannot compute this model.
    """
    if spec.width % TILE_INPUTS or spec.mlp_width % TILE_INPUTS or spec.head_dim not in (PANEL, 2 * PANEL):
        raise NativeUnavailable(
            f"width {spec.width}, MLP width {spec.mlp_width}, head size {spec.head_dim}: widths must be multiples of "
            f"{TILE_INPUTS}, the head size {PANEL} or {2 * PANEL}"
        )
    if spec.heads * spec.head_dim != spec.width:
        raise NativeUnavailable(f"{spec.heads} heads of size {spec.head_dim} are not as wide as the model, {spec.width}")


def taken_width(spec: GptSpec) -> int:
    """Returns how many numbers a product's inputs take in a thread's scratch memory, their scale included, at most."""
    return max(spec.width, spec.mlp_width) + 1


def allocate_scratch(spec: GptSpec, *, rows: int, positions: int, threads: int) -> dict[str, NDArray[np.uint8]]:
    """Returns the memory that a call writes its intermediate values to, by field of Model."""

    def scratch(*shape: int, itemsize: int = 4) -> NDArray[np.uint8]:
        return aligned(math.prod(shape) * itemsize)

    return {
        "x": scratch(rows, spec.width),
        "queries": scratch(rows, spec.width),
        "seen": scratch(rows, spec.width),
        "hidden": scratch(rows, spec.mlp_width),
        "normed": scratch(threads, rows, spec.width),
        "scores": scratch(threads, positions + LANES),
        "fresh": scratch(threads, rows, spec.head_dim),
        "taken": scratch(threads, rows, taken_width(spec)),
        "places": scratch(threads + 1, 3, rows, itemsize=8),
        "counts": aligned(ALIGNMENT * (5 * spec.layers + 5) * (threads + 1)),
    }
