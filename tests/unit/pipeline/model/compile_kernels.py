"""Every kernel through Triton's compiler to a GPU's machine code, with no GPU; test_kernels.py runs it in a process of its own.

In:    nothing
Out:   a line a kernel: name, dtype, bytes; a traceback for one that does not compile
"""

import sys

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from pipeline.model.kernels import attention, layer, step

CAPABILITY = 90
FLOATS = (
    "cosines sines maxima sums weighted residual weight logits temperatures penalties dropped_masses uniforms noise hidden "
    "code_table text_table out_hidden"
)
SCALARS = {"scale": "fp32", "eps": "fp32", "last_position": "i32"}
HALVES = "qkv keys values seen delta normed gate_up gated"
HEADS = {"HEADS": 12, "HEAD_DIM": 64}
ROW = {"WIDTH": 768, "BLOCK": 1024}
BOOKS = {"BOOKS": 4, "VOCAB": 626, "WINDOW": 16}
KERNELS = [
    (attention._attend, HEADS | {"CACHED": 1536, "SPLIT": 1536, "SPLITS": 1, "BLOCK": attention.BLOCK}),
    (attention._attend, HEADS | {"CACHED": 1536, "SPLIT": 128, "SPLITS": 12, "BLOCK": attention.BLOCK}),
    (attention._join, HEADS | {"SPLIT": 128, "SPLITS": 12}),
    (layer._add_norm, ROW | {"HAS_DELTA": False}),
    (layer._add_norm, ROW | {"HAS_DELTA": True}),
    (layer._gate, {"WIDTH": 3072, "BLOCK": layer.GATE_BLOCK}),
    (step._draw, BOOKS | {"BLOCK": 1024, "RANK_BITS": 42, "KEEP": 3, "MAX_STEPS": 1024}),
    (step._advance, BOOKS | ROW | {"WITH_TEXT": False}),
    (step._advance, BOOKS | ROW | {"WITH_TEXT": True}),
    (step._settle, ROW),
]


def kind(argument: str, half: str) -> str:
    """The type an argument has in the engine."""
    if argument in SCALARS:
        return SCALARS[argument]
    if argument in HALVES.split():
        return half
    return "*fp32" if argument in FLOATS.split() else "*i32"


def main() -> int:
    for half in ("*bf16", "*fp32"):
        for kernel, constants in KERNELS:
            names = kernel.arg_names
            if half == "*fp32" and not set(names) & set(HALVES.split()):
                continue
            signature = {name: "constexpr" if name in constants else kind(name, half) for name in names}
            places = {(names.index(name),): value for name, value in constants.items()}
            compiled = compile(ASTSource(kernel, signature, places), target=GPUTarget("cuda", CAPABILITY, 32))
            print(kernel.__name__, half, len(compiled.asm["cubin"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
