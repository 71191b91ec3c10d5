"""Every kernel through Triton's compiler to a GPU's machine code, with no GPU; test_kernels.py runs it in its own process.

Out:   a line a kernel: name, dtype, bytes; a traceback for one that does not compile, or needs more than a GPU has
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton
from triton import JITFunction
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.language import bfloat16

from pipeline.model.gpu.kernels import attention, layer, product, prompt, step
from pipeline.model.quantise import LARGEST, SMALLEST_SCALE

SHARED_MEMORY = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""compute capability -> KiB that a program may have there (CUDA's programming guide, table of technical specifications)"""
MOST_SPILLED = {"_product": 48, "_attend": 8}  # bytes of the stack per thread: 64 rows on sm_100; float32 on sm_86 and 90
ALIGNED = [["tt.divisibility", 16]]  # as the runtime finds torch's allocations
CAPABILITIES = [int(argument) for argument in sys.argv[1:]] or [90]
BARRIERS_OF_A_REDUCTION = 3  # of a block-wide one: the search for a draw's thresholds has one a bit
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
FLOATS = (
    "cosines sines maxima sums weighted residual weight logits temperatures penalties dropped_masses uniforms noise hidden "
    "code_table text_table out_hidden scales speakers floats slot_uniforms"
)
SCALARS = {"scale": "fp32", "eps": "fp32", "last_position": "i32", "rows": "i32", "length": "i32"}
HALVES = "qkv keys values key_scales value_scales attention delta normed gate_up gated turned"
WIDE = {"tokens": "*i64", "numbers": "*i64"}  # of prompts
HEADS = {"HEADS": 12, "HEAD_DIM": 64}
ROW = {"WIDTH": 768, "BLOCK": 1024}
BOOKS = {"BOOKS": 4, "VOCAB": 626, "WINDOW": 16}
SHAPE = attention.Shape(attention.SHORT_SPLIT)
ATTEND = HEADS | {"CACHED": 1536, "BLOCK": SHAPE.block, "STAGES": SHAPE.stages, "LOWEST": attention.LOWEST}
ATTEND |= {"LARGEST": LARGEST, "SMALLEST": SMALLEST_SCALE}
SPLITS = [{"SPLIT": 1536, "SPLITS": 1}, {"SPLIT": SHAPE.split, "SPLITS": 12}]
PLACE = HEADS | {"GROUP": 4, "CACHED": 1536, "LARGEST": LARGEST, "SMALLEST": SMALLEST_SCALE}
PROMPTS: list[tuple[JITFunction, dict[str, Any]]] = [
    (prompt._embed, {"BOOKS": 4, "VOCAB": 626} | ROW),
    (prompt._place, PLACE | {"QUANTISED": False}),
    (prompt._admit, BOOKS | ROW | {"MAX_STEPS": 1024}),
]
INT8_CACHE = {"keys": "*i8", "values": "*i8", "key_scales": "*fp32", "value_scales": "*fp32"}
KERNELS: list[tuple[JITFunction, dict[str, Any]]] = [
    *((attention._attend, ATTEND | split | {"QUANTISED": False}) for split in SPLITS),
    (attention._join, HEADS | {"SPLIT": 128, "SPLITS": 12}),
    (layer._add_norm, ROW | {"PARTS": 0}),
    (layer._add_norm, ROW | {"PARTS": 1}),
    (layer._gate, {"WIDTH": 3072, "BLOCK": layer.GATE_BLOCK}),
    (step._draw, BOOKS | {"BLOCK": 1024, "RANK_BITS": 42, "KEEP": 3, "MAX_STEPS": 1024}),
    (step._advance, BOOKS | ROW | {"WITH_TEXT": False}),
    (step._advance, BOOKS | ROW | {"WITH_TEXT": True}),
    (step._settle, ROW | {"PARTS": 1}),
]
WHOLE, SUMMANDS = {"x": "*bf16", "weight": "*i8", "out": "*bf16"}, {"x": "*bf16", "weight": "*i8", "out": "*fp32"}
PRODUCTS = [  # rows, inputs, outputs, parts
    *((rows, 768, outputs, 1, WHOLE) for rows in (1, 64) for outputs in (2304, 6144)),
    *((rows, inputs, 768, product.PARTS, SUMMANDS) for rows in (1, 64) for inputs in (768, 3072)),
]


def kind(argument: str, half: str) -> str:
    """The type an argument has in the engine."""
    if argument in SCALARS:
        return SCALARS[argument]
    if argument in HALVES.split():
        return half
    return "*fp32" if argument in FLOATS.split() else "*i32"


def spilled(cubin: bytes) -> int:
    """Bytes of the stack that each thread of a kernel spills to."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return max(int(size) for size in re.findall(r"STACK:(\d+)", shown))


def barriers_in_a_loop(ptx: str) -> int:
    """The most block-wide barriers that one pass of a kernel's loop has."""
    labels = {match[1]: match.start() for match in re.finditer(r"^(\$L\w+):", ptx, re.MULTILINE)}
    jumps = [(labels[match[1]], match.start()) for match in re.finditer(r"bra(?:\.uni)?\s+(\$L\w+);", ptx)]
    return max((ptx[begin:end].count("bar.sync") for begin, end in jumps if begin < end), default=0)


def build(kernel: JITFunction, constants: Mapping[str, Any], types: dict[str, str], **options: int) -> None:
    """Compile it for the arguments' types and every architecture asked for, and say so."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    places = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(place,): ALIGNED for place, name in enumerate(names) if types.get(name, "").startswith("*")}
    for capability in CAPABILITIES:
        source = ASTSource(kernel, signature, places, aligned)
        compiled = compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        cubin, shared = compiled.asm["cubin"], compiled.metadata.shared
        title = f"{kernel.__name__} {constants} on sm_{capability}"
        assert shared <= SHARED_MEMORY[capability] << 10, f"{title}: {shared} bytes shared"
        assert (stack := spilled(cubin)) <= MOST_SPILLED.get(kernel.__name__, 0), f"{title}: {stack} bytes spilled"
        if kernel is step._draw:
            count = barriers_in_a_loop(compiled.asm["ptx"])
            assert count == BARRIERS_OF_A_REDUCTION, f"{title}: {count} barriers a bit"
        if kernel is attention._attend:
            assert "cp.async" in compiled.asm["ptx"], f"{title}: no block is loaded ahead"
        print(kernel.__name__, capability, *sorted({types[name] for name in names if name in types}), len(cubin))


def main() -> int:
    for half in ("*bf16", "*fp32"):
        for kernel, constants in KERNELS:
            names = kernel.arg_names
            if half == "*fp32" and not set(names) & set(HALVES.split()):
                continue
            build(kernel, constants, {name: kind(name, half) for name in names})
        for kernel, constants in PROMPTS:
            build(kernel, constants, {name: kind(name, half) for name in kernel.arg_names} | WIDE)
        types = {name: kind(name, half) for name in prompt._place.arg_names} | WIDE | INT8_CACHE
        build(prompt._place, PLACE | {"QUANTISED": True}, types, num_warps=1)
        for split in SPLITS:
            types = {name: kind(name, half) for name in attention._attend.arg_names} | INT8_CACHE
            build(attention._attend, ATTEND | split | {"QUANTISED": True}, types)
    # Summands are float32, whatever the rest is.
    for kernel in (layer._add_norm, step._settle):
        types = {name: kind(name, "*bf16") for name in kernel.arg_names} | {"delta": "*fp32"}
        build(kernel, ROW | {"PARTS": product.PARTS}, types)
    for *sizes, types in PRODUCTS:
        constants = product.blocks(*sizes) | {"MEETING": bfloat16}
        scalars = {"scales": "*fp32", "rows": "i32"}
        build(product._product, constants, types | scalars, **product.OPTIONS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
