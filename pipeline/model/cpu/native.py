"""Native: the decoder stack of a CPU as one call into machine code, made from decode.cpp when it is first needed.

In:    the stack's tensors, then the rows to advance
Out:   their states; keys and values in the cache
Owns:  the packed weights, the scratch
Never: sampling (pipeline/model/cpu/native_step.py), the choice whether it is used

torch runs a step of 20 layers as some 600 small operations. Here it is one parallel region that reads every weight once:
measured in docs/decisions. It needs Linux on x86-64 with AVX-512 and, once per machine, a C++ compiler. Where there is
AMX, bfloat16 and int8 weights are multiplied in tiles (pipeline/native/product.h): other sums, so other last bits.
"""

import ctypes
from pathlib import Path

import torch

from pipeline.checkpoint.weights import GptSpec
from pipeline.model.quantise import quantise
from pipeline.native.compiler import NativeUnavailable, has_tiles, library
from pipeline.native.memory import ALIGNMENT, LANES, PANEL, Arena, aligned, pack, pack_tiles

SOURCE = Path(__file__).with_name("decode.cpp")
PROMPT_ROWS = 128
"""positions of prompts that advance together; more go through the weights again"""
TILE_INPUTS = 64  # a tile's inputs in int8; a product's inputs are a multiple of it

WEIGHT_BITS = {torch.float32: 32, torch.bfloat16: 16, torch.int8: 8}


class Product(ctypes.Structure):
    """As in pipeline/native/product.h."""

    _fields_ = (("weights", ctypes.c_void_p), ("scales", ctypes.c_void_p))


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("qkv", Product),
        ("attention_out", Product),
        ("mlp_norm", ctypes.c_void_p),
        ("gate_up", Product),
        ("down", Product),
    )


class Model(ctypes.Structure):
    """As in decode.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("weight_bits", "tiles", "layers", "width", "heads", "head_dim", "mlp_width")),
        *((name, ctypes.c_int64) for name in ("positions", "threads", "rows")),
        ("eps", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("final_norm", "cos", "sin")),
        ("stack", ctypes.POINTER(_Layer)),
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
    """One stack's weights, packed for decode.cpp, and its scratch. Call it from the thread that made it."""

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        spec: GptSpec,
        *,
        rotary: tuple[torch.Tensor, torch.Tensor],
        rows: int,
        weights: torch.dtype,
        tiles: bool | None = None,
    ) -> None:
        """
        Args:
            tensors: upstream's names, as in gpt/model.safetensors.
            rotary: cosines and signed sines, each (positions, head_dim) float32.
            rows: slots.
            weights: float32 or bfloat16, with a KV cache of the same type or of int8; int8, one scale an output, with a KV
                cache of bfloat16 or int8.
            tiles: whether to multiply with AMX; None: where there is one. float32 never does.

        Raises:
            NativeUnavailable: this machine, or a model of these dimensions, cannot use it.
        """
        if spec.width % TILE_INPUTS or spec.mlp_width % TILE_INPUTS or spec.head_dim not in (PANEL, 2 * PANEL):
            raise NativeUnavailable(
                f"width {spec.width}, MLP width {spec.mlp_width}, head size {spec.head_dim}: it takes multiples of "
                f"{TILE_INPUTS} twice, and {PANEL} or {2 * PANEL}"
            )
        self.library = library(SOURCE)
        self._advance = self.library.advance
        self._advance.argtypes = (
            ctypes.POINTER(Model),
            ctypes.POINTER(_Rows),
            ctypes.POINTER(Cache),
            ctypes.c_void_p,
            ctypes.c_void_p,
        )
        self._advance.restype = None
        self.spec, self._slots, self._rows = spec, rows, max(rows, PROMPT_ROWS)
        in_tiles = weights is not torch.float32 and (has_tiles() if tiles is None else tiles)
        threads = torch.get_num_threads()
        self._kept: list[torch.Tensor] = []  # everything the structures below point into
        arena = Arena(
            sum(tensor.numel() for name, tensor in tensors.items() if "_proj" in name) * weights.itemsize
            + spec.layers * 4 * ALIGNMENT
        )

        def pointer(tensor: torch.Tensor) -> int:
            self._kept.append(tensor)
            return tensor.data_ptr()

        def product(weight: torch.Tensor) -> Product:
            packed = pack_tiles if in_tiles else pack
            if weights is not torch.int8:
                return Product(pointer(arena.keep(packed(weight.to(weights)))), None)
            quantised, scales = quantise(weight)
            return Product(pointer(arena.keep(packed(quantised))), pointer(scales))

        def layer(prefix: str) -> _Layer:
            def named(*names: str) -> list[torch.Tensor]:
                return [tensors[f"{prefix}.{name}.weight"].float() for name in names]

            # One panel holds what meets: sixteen numbers of a head and the sixteen they are rotated with,
            # sixteen gates and the sixteen values they belong to.
            heads = torch.stack(named(*(f"self_attn.{part}_proj" for part in "qkv")))
            rotated = heads.view(-1, 2, spec.head_dim // PANEL, LANES, spec.width).transpose(1, 2)
            gate, up = (part.view(-1, LANES, spec.width) for part in named("mlp.gate_proj", "mlp.up_proj"))
            return _Layer(
                attention_norm=pointer(named("input_layernorm")[0].contiguous()),
                qkv=product(rotated.reshape(3 * spec.width, spec.width)),
                attention_out=product(*named("self_attn.o_proj")),
                mlp_norm=pointer(named("post_attention_layernorm")[0].contiguous()),
                gate_up=product(torch.stack([gate, up], 1).flatten(0, 2)),
                down=product(*named("mlp.down_proj")),
            )

        def scratch(*shape: int, dtype: torch.dtype = torch.float32) -> int:
            return pointer(aligned(torch.Size(shape).numel() * dtype.itemsize))

        self._stack = (_Layer * spec.layers)(*(layer(f"layers.{index}") for index in range(spec.layers)))
        cos, sin = (table.float().contiguous() for table in rotary)
        self.model = Model(
            weight_bits=WEIGHT_BITS[weights],
            tiles=in_tiles,
            layers=spec.layers,
            width=spec.width,
            heads=spec.heads,
            head_dim=spec.head_dim,
            mlp_width=spec.mlp_width,
            positions=len(cos),
            threads=threads,
            rows=self._rows,
            eps=spec.rms_eps,
            final_norm=pointer(tensors["norm.weight"].float().contiguous()),
            cos=pointer(cos),
            sin=pointer(sin),
            stack=self._stack,
            x=scratch(self._rows, spec.width),
            queries=scratch(self._rows, spec.width),
            seen=scratch(self._rows, spec.width),
            hidden=scratch(self._rows, spec.mlp_width),
            normed=scratch(threads, self._rows, spec.width),
            scores=scratch(threads, len(cos) + LANES),
            fresh=scratch(threads, self._rows, spec.head_dim),
            taken=scratch(threads, self._rows, max(spec.width, spec.mlp_width) + 1),
            places=scratch(threads + 1, 3, self._rows, dtype=torch.int64),
            counts=pointer(aligned(ALIGNMENT * (5 * spec.layers + 5) * (threads + 1))),
        )
        self.cache_dtype = torch.float32 if weights is torch.float32 else torch.bfloat16  # where the cache is not int8

    def __call__(
        self, x: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, cache: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Advance some slots: by one position each, or one slot by several positions that follow each other.

        Args:
            x: (M, width) float32. slots, positions: (M,) int64, where each row writes.
            cache: see `cache`.

        Returns:
            (M, width) float32.
        """
        assert x.shape == (len(x), self.spec.width), "x is (M, width)"
        assert slots.shape == positions.shape == (len(x),), "a slot and a position for each row"
        out, places = torch.empty_like(x), self.cache(*cache)
        for tensor, dtype in ((x, torch.float32), (slots, torch.int64), (positions, torch.int64)):
            # Behind this line nothing checks an address.
            assert tensor.dtype is dtype, f"{tensor.dtype} where {dtype} is declared"
            assert tensor.is_contiguous(), "rows lie one after another"
        for first in range(0, len(x), self._rows):
            some = slice(first, first + self._rows)
            rows = _Rows(len(x[some]), slots[some].data_ptr(), positions[some].data_ptr())
            self._advance(
                ctypes.byref(self.model), ctypes.byref(rows), ctypes.byref(places), x[some].data_ptr(), out[some].data_ptr()
            )
        return out

    def cache(self, keys: torch.Tensor, values: torch.Tensor, *scales: torch.Tensor) -> Cache:
        """The KV cache, as decode.cpp takes it.

        Args:
            keys, values: (layers, slots, heads, positions, head_dim) of `cache_dtype`, or of int8 with
            scales: of keys and of values, (layers, slots, heads, positions) float32.
        """
        slots = keys.shape[1]
        places = (self.spec.layers, slots, self.spec.heads, self.model.positions)
        assert slots >= self._slots, "every slot has its place"
        assert len(scales) in (0, 2), "of keys and of values"
        numbers = (torch.int8 if scales else self.cache_dtype, (*places, self.spec.head_dim), True)
        for tensor, expected in ((keys, numbers), (values, numbers), *((one, (torch.float32, places, True)) for one in scales)):
            declared = (tensor.dtype, tensor.shape, tensor.is_contiguous())
            assert declared == expected, f"a cache of {declared}"
        key_scales, value_scales = (tensor.data_ptr() for tensor in scales) if scales else (None, None)
        return Cache(keys.data_ptr(), values.data_ptr(), key_scales, value_scales, slots)
