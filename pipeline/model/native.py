"""Native: the decode step of a CPU as one call into machine code, made from decode.cpp when it is first needed.

In:    the decoder stack's tensors, then the rows to advance
Out:   their states
Owns:  the packed weights, the scratch
Never: prefill, sampling, the choice whether it is used

torch runs a step of 20 layers as some 600 small operations. Here it is one parallel region that reads every weight once:
measured in README, Decisions. It needs Linux on x86-64 with AVX-512 and, once per machine, a C++ compiler.
"""

import ctypes
from pathlib import Path

import torch

from pipeline.model.weights import GptSpec
from pipeline.native.build import NativeUnavailable, library
from pipeline.native.memory import ALIGNMENT, LANES, PANEL, Arena, aligned, pack

SOURCE = Path(__file__).with_name("decode.cpp")

WEIGHT_BITS = {torch.float32: 32, torch.bfloat16: 16, torch.int8: 8}


class _Product(ctypes.Structure):
    _fields_ = (("weights", ctypes.c_void_p), ("scales", ctypes.c_void_p))


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("qkv", _Product),
        ("attention_out", _Product),
        ("mlp_norm", ctypes.c_void_p),
        ("gate_up", _Product),
        ("down", _Product),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("weight_bits", "layers", "width", "heads", "head_dim", "mlp_width", "positions")),
        ("eps", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("final_norm", "cos", "sin")),
        ("stack", ctypes.POINTER(_Layer)),
        *((name, ctypes.c_void_p) for name in ("x", "qkv", "seen", "hidden", "normed", "scores", "counts")),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("rows", "positions", "x", "out", "keys", "values")),
        ("layer_stride", ctypes.c_int64),
        ("threads", ctypes.c_int64),
    )


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
    ) -> None:
        """
        Args:
            tensors: upstream's names, as in gpt/model.safetensors.
            rotary: cosines and signed sines, each (positions, head_dim) float32.
            rows: slots.
            weights: float32 or bfloat16, with a KV cache of the same type; int8, one scale an output, with one of bfloat16.

        Raises:
            NativeUnavailable: this machine, or a model of these dimensions, cannot use it.
        """
        if spec.width % PANEL or spec.mlp_width % LANES or spec.head_dim not in (PANEL, 2 * PANEL):
            raise NativeUnavailable(
                f"width {spec.width}, MLP width {spec.mlp_width}, head size {spec.head_dim}: it takes multiples of {PANEL}, "
                f"multiples of {LANES}, and {PANEL} or {2 * PANEL}"
            )
        self._decode = library(SOURCE).decode
        self._decode.argtypes, self._decode.restype = (ctypes.POINTER(_Model), ctypes.POINTER(_Step)), None
        self._spec, self._rows, self._threads = spec, rows, torch.get_num_threads()
        self._kept: list[torch.Tensor] = []  # everything the structures below point into
        arena = Arena(
            sum(tensor.numel() for name, tensor in tensors.items() if "_proj" in name) * weights.itemsize
            + spec.layers * 4 * ALIGNMENT
        )

        def pointer(tensor: torch.Tensor) -> int:
            self._kept.append(tensor)
            return tensor.data_ptr()

        def product(*parts: torch.Tensor) -> _Product:
            weight = torch.cat(parts)
            if weights is not torch.int8:
                return _Product(pointer(arena.keep(pack(weight.to(weights)))), None)
            quantised, scales = quantise(weight)
            return _Product(pointer(arena.keep(pack(quantised))), pointer(scales))

        def layer(prefix: str) -> _Layer:
            def named(*names: str) -> list[torch.Tensor]:
                return [tensors[f"{prefix}.{name}.weight"].float() for name in names]

            gate, up = (part.view(-1, LANES, spec.width) for part in named("mlp.gate_proj", "mlp.up_proj"))
            return _Layer(
                attention_norm=pointer(named("input_layernorm")[0].contiguous()),
                qkv=product(*named(*(f"self_attn.{part}_proj" for part in "qkv"))),
                attention_out=product(*named("self_attn.o_proj")),
                mlp_norm=pointer(named("post_attention_layernorm")[0].contiguous()),
                # Sixteen gates, then the sixteen values they belong to: one panel holds both.
                gate_up=product(torch.stack([gate, up], 1).flatten(0, 2)),
                down=product(*named("mlp.down_proj")),
            )

        def scratch(*shape: int) -> int:
            return pointer(torch.zeros(shape))

        self._stack = (_Layer * spec.layers)(*(layer(f"layers.{index}") for index in range(spec.layers)))
        cos, sin = (table.float().contiguous() for table in rotary)
        self._model = _Model(
            weight_bits=WEIGHT_BITS[weights],
            layers=spec.layers,
            width=spec.width,
            heads=spec.heads,
            head_dim=spec.head_dim,
            mlp_width=spec.mlp_width,
            positions=len(cos),
            eps=spec.rms_eps,
            final_norm=pointer(tensors["norm.weight"].float().contiguous()),
            cos=pointer(cos),
            sin=pointer(sin),
            stack=self._stack,
            x=scratch(rows, spec.width),
            qkv=scratch(rows, 3 * spec.width),
            seen=scratch(rows, spec.width),
            hidden=scratch(rows, spec.mlp_width),
            normed=scratch(self._threads, rows, spec.width),
            scores=scratch(self._threads, len(cos) + LANES),
            counts=pointer(aligned(ALIGNMENT * (2 + (5 * spec.layers + 2) * self._threads))),
        )
        self._cache_dtype = torch.float32 if weights is torch.float32 else torch.bfloat16

    def __call__(
        self, x: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Advance some slots by one position.

        Args:
            x: (S, width) float32. rows: (M,) int64, the slots to advance. positions: (S,) int64, where each slot writes.
            keys, values: (layers, slots, heads, positions, head_dim).

        Returns:
            (S, width) float32: the states of `rows`; other rows are zero.
        """
        out = torch.zeros_like(x)
        shape = (self._spec.layers, keys.shape[1], self._spec.heads, self._model.positions, self._spec.head_dim)
        for name, tensor, dtype, size in (
            ("x", x, torch.float32, (self._rows, self._spec.width)),
            ("rows", rows, torch.int64, (len(rows),)),
            ("positions", positions, torch.int64, (self._rows,)),
            ("keys", keys, self._cache_dtype, shape),
            ("values", values, self._cache_dtype, shape),
        ):
            # Behind this line nothing checks an address.
            assert (tensor.dtype, tensor.shape, tensor.is_contiguous()) == (dtype, size, True), f"{name} is not as declared"
        step = _Step(
            count=len(rows),
            rows=rows.data_ptr(),
            positions=positions.data_ptr(),
            x=x.data_ptr(),
            out=out.data_ptr(),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            layer_stride=keys.stride(0),
            threads=self._threads,
        )
        self._decode(ctypes.byref(self._model), ctypes.byref(step))
        return out


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, in) float32 as int8 and one scale an output (out,): weight ~ int8 * scale."""
    scales = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    return (weight / scales[:, None]).round().clamp(-127, 127).to(torch.int8), scales
