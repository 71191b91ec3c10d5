"""Kernels: every set of instructions computes what float64 computes, and all of them the same bits.

NEON runs in an emulator on other processors, and AVX-VNNI's instruction as AVX-512 encodes it.
"""

import ctypes
import math
import platform
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.model.cpu.four_bit import GROUP, FourBits, pack_groups, rounded
from pipeline.model.cpu.packing import Arithmetic
from pipeline.model.quantise import quantise
from pipeline.native import instructions as sets
from pipeline.native.compiler import COMMON_FLAGS, HEADERS, library
from pipeline.native.instructions import FLAGS, Instructions, usable
from pipeline.native.memory import PANEL, pack
from scripts.evaluate.quality_gate import as_array
from tests.support.four_bit import LEVELS, rounded_inputs, weights_of
from tests.support.machine import needs_native
from tests.support.services import needed_program

SOURCE = Path(__file__).with_name("kernels.cpp")
VNNI_OF_AVX512 = ("-march=x86-64-v3", "-mavx512vnni", "-mavx512vl", "-U__AVX512F__")
KINDS = [kind for kind in Arithmetic if not kind.name.startswith("TILE")]
OUTPUTS, LANES = 3 * PANEL, 16
ERRORS = {
    "float32": 2e-6,
    "bfloat16": 2e-6,
    "int8": 4e-5,
    "int4": 2e-6,
}  # of a sum, relative to the sum of sizes
ROUND = -2  # as a kind: weights in float32 -> codes and the bits of scales
ANSWERS = (torch.float32, torch.bfloat16, torch.int8, torch.int16, *[torch.float32] * 5)  # of `functions`

pytestmark = [needs_native, pytest.mark.slow]

Kernels = Callable[..., list[torch.Tensor]]
"""kind, -1 or -2, rows or count, inputs, outputs, tensors -> tensors"""


def _sets() -> list[Instructions]:
    usable_sets = [instructions for instructions in usable() if instructions is not Instructions.AMX]
    if Instructions.AVX_VNNI not in usable_sets and "avx512_vnni" in sets.processor_flags():
        usable_sets.append(Instructions.AVX_VNNI)
    return list(dict.fromkeys([*usable_sets, Instructions.NEON]))


SETS = _sets()


@cache
def kernels(instructions: Instructions) -> Kernels:
    if instructions is Instructions.NEON and platform.machine() != "aarch64":
        return _emulated()
    with pytest.MonkeyPatch.context() as patch:
        if instructions not in usable():
            patch.setitem(sets.FLAGS, instructions, VNNI_OF_AVX512)
        loaded = library(SOURCE, instructions=instructions)

    def call(kind: int, rows: int, inputs: int, outputs: int, *tensors: torch.Tensor) -> list[torch.Tensor]:
        addresses = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        if kind == ROUND:
            codes, scales = rounded(tensors[0].numpy(), loaded, threads=2)
            return [torch.from_numpy(codes), torch.from_numpy(scales.view(np.int16))]
        if kind < 0:
            answers = [torch.zeros(LANES, dtype=dtype) for dtype in ANSWERS]
            places = [ctypes.c_void_p(answer.data_ptr()) for answer in answers]
            loaded.functions(*addresses, ctypes.c_int64(rows), *places)
            return answers
        weights, scales, x = addresses
        out, scratch = torch.full((rows, outputs), torch.nan), torch.empty(rows * (inputs + 1))
        sizes = (ctypes.c_int64(size) for size in (rows, inputs, outputs))
        ends = (ctypes.c_void_p(memory.data_ptr()) for memory in (scratch, out))
        loaded.product(ctypes.c_int64(kind), weights, None if kind < Arithmetic.PLAIN_INT8 else scales, x, *sizes, *ends)
        return [out]

    return call


def _emulated() -> Kernels:
    """The same as a program for 64-bit ARM. Skips the test where there is no compiler or no emulator for it."""
    compiler = needed_program("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
    emulator = needed_program("qemu-aarch64", "qemu-user")
    program = Path(tempfile.mkdtemp()) / "kernels"
    flags = [flag for flag in COMMON_FLAGS if flag not in ("-shared", "-fPIC")]
    command = [compiler, *flags, *FLAGS[Instructions.NEON], "-static", "-I", str(HEADERS), "-o", str(program), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True)

    def call(kind: int, rows: int, inputs: int, outputs: int, *tensors: torch.Tensor) -> list[torch.Tensor]:
        contents = [tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors]
        header = np.array([kind, rows, inputs, outputs, len(contents[0])], np.int64).tobytes()
        done = subprocess.run([emulator, str(program)], input=header + b"".join(contents), capture_output=True, check=True)
        if kind >= 0:
            return [torch.frombuffer(bytearray(done.stdout), dtype=torch.float32).view(rows, outputs)]
        if kind == ROUND:
            codes, scales = (bytearray(part) for part in (done.stdout[: rows * GROUP], done.stdout[rows * GROUP :]))
            return [torch.frombuffer(codes, dtype=torch.uint8), torch.frombuffer(scales, dtype=torch.int16)]
        answers, at = [], 0
        for dtype in ANSWERS:
            answers.append(torch.frombuffer(bytearray(done.stdout[at : at + LANES * dtype.itemsize]), dtype=dtype))
            at += LANES * dtype.itemsize
        return answers

    return call


def product(
    instructions: Instructions, kind: Arithmetic, weight: torch.Tensor, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The product of x and a weight, and what float64 makes of the same numbers."""
    if kind is Arithmetic.GROUPS_INT4:
        return grouped_product(instructions, *four_bits(SETS[0], weight), x)
    numbers, scales = weight.to(getattr(torch, kind.weights)), torch.ones(len(weight))
    if kind.weights == "int8":
        numbers, scales = quantise(weight)
    packed = torch.from_numpy(pack(as_array(numbers), in_pairs=kind is Arithmetic.PAIRS_INT8))
    (out,) = kernels(instructions)(kind, *x.shape, len(weight), packed, scales, x)
    return out, x.double() @ (numbers.double() * scales.double().view(-1, 1)).T


def four_bits(instructions: Instructions, weight: torch.Tensor) -> FourBits:
    """Codes and scales of a weight (out, in)."""
    codes, scales = kernels(instructions)(ROUND, weight.numel() // GROUP, 0, 0, weight)
    return codes.view(weight.shape).numpy(), scales.view(len(weight), -1).numpy().view(np.uint16)


def grouped_product(
    instructions: Instructions, codes: NDArray[np.uint8], scales: NDArray[np.uint16], x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    packed, unused = torch.from_numpy(pack_groups(codes, scales)), torch.ones(len(codes))
    (out,) = kernels(instructions)(Arithmetic.GROUPS_INT4, *x.shape, len(codes), packed, unused, x)
    return out, rounded_inputs(x).double() @ torch.from_numpy(weights_of(codes, scales)).double().T


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("inputs", [16, 528, 1600])
def test_a_product_is_float64s_for_any_number_of_rows_and_a_row_is_its_own(instructions, kind, inputs):
    generator = torch.Generator().manual_seed(inputs)
    inputs += inputs % GROUP if kind is Arithmetic.GROUPS_INT4 else 0  # whole groups
    weight = torch.randn(OUTPUTS, inputs, generator=generator)
    x = torch.randn(19, inputs, generator=generator) * torch.logspace(-3, 3, 19)[:, None]
    alone = torch.cat([product(instructions, kind, weight, row[None])[0] for row in x])
    for rows in (*range(2, 10), 13, 19):
        sums, exact = product(instructions, kind, weight, x[:rows].contiguous())
        size = x[:rows].double().abs() @ weight.double().abs().T
        assert ((sums - exact).abs() / size).max() < ERRORS[kind.weights]
        assert torch.equal(sums, alone[:rows])


@pytest.mark.parametrize("instructions", SETS[1:])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_all_sets_of_instructions_have_the_same_bits(instructions, kind):
    generator = torch.Generator().manual_seed(1)
    weight, x = torch.randn(OUTPUTS, 800, generator=generator), torch.randn(11, 800, generator=generator)
    assert torch.equal(product(instructions, kind, weight, x)[0], product(SETS[0], kind, weight, x)[0])


@pytest.mark.parametrize("instructions", SETS)
def test_the_largest_integers_do_not_overflow(instructions):
    """Inputs and weights at their limits: 512 products of 32767 and 127 are as much as 32 bits hold."""
    sums, exact = product(instructions, Arithmetic.PAIRS_INT8, torch.ones(PANEL, 1600), torch.ones(2, 1600))
    assert torch.allclose(sums.double(), exact, rtol=1e-6)


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("code", [0, 15])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_outermost_levels_do_not_overflow(instructions, code, sign):
    """Two products of a level and an input share 16 bits."""
    codes, ones = np.full((PANEL, 64), code, np.uint8), np.full((PANEL, 2), 0x3F80, np.uint16)
    sums, exact = grouped_product(instructions, codes, ones, torch.full((2, 64), float(sign)))
    assert torch.allclose(sums.double(), exact, rtol=1e-6)


@pytest.mark.parametrize("instructions", SETS[1:])
def test_all_sets_of_instructions_round_to_the_same_four_bits(instructions):
    weight = torch.randn(PANEL, 800, generator=torch.Generator().manual_seed(2))
    weight[0, :32], weight[1, 3], weight[2, 40] = 0, torch.nan, torch.inf
    for ours, other in zip(four_bits(SETS[0], weight), four_bits(instructions, weight), strict=True):
        assert np.array_equal(ours[3:], other[3:])
    first = torch.from_numpy(weights_of(*four_bits(instructions, weight)))
    assert torch.equal(first[0, :32], torch.zeros(32))
    assert not first[1, :32].isfinite().any()
    assert not first[2, 32:64].isfinite().any()
    assert first[1:3, 64:].isfinite().all()


def test_four_bits_lose_hardly_more_than_with_the_best_scale_of_each_group():
    weight = torch.randn(PANEL, 128, generator=torch.Generator().manual_seed(3)) * torch.logspace(-4, 4, PANEL)[:, None]
    groups, levels = weight.view(-1, GROUP), torch.from_numpy(LEVELS)
    largest = groups.abs().amax(1)
    best = torch.full_like(largest, torch.inf)
    for factor in torch.linspace(-1.5, 1.5, 301):
        near = groups[:, :, None] - levels * (largest * factor / 63)[:, None, None]
        best = torch.minimum(best, near.abs().amin(2).square().sum(1))
    lost = (torch.from_numpy(weights_of(*four_bits(SETS[0], weight))).view(-1, GROUP) - groups).square().sum(1)
    assert (lost / best).mean() < 1.05
    assert 0.004 < (lost / groups.square().sum(1)).mean() < 0.006


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_stays_so_and_alone(instructions, bad):
    weight, x = torch.ones(PANEL, 64), torch.ones(3, 64)
    x[1, 5] = bad
    for kind in KINDS:
        sums, _ = product(instructions, kind, weight, x)
        assert sums.isfinite().all(1).tolist() == [True, False, True]


def functions(instructions: Instructions, x: torch.Tensor, count: int) -> list[torch.Tensor]:
    return kernels(instructions)(-1, count, 0, 0, x)


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("count", [-3, 0, 1, 5, 8, 13, 16, 40])
def test_the_functions_of_a_vector(instructions, count):
    x = torch.randn(64, generator=torch.Generator().manual_seed(count + 3)) * 40
    exponentials, rounded, whole, shorts, first, sums, gelus, sines, cosines = functions(instructions, x, count)
    vector, four = x[:16], x.view(4, 16)
    assert torch.allclose(exponentials.double(), vector.clamp(-87.3, 88.3).double().exp(), rtol=3e-7)
    assert torch.equal(rounded, vector.bfloat16())
    assert torch.equal(whole, vector.round().clamp(-128, 127).to(torch.int8))
    assert torch.equal(shorts, vector.round().to(torch.int16))
    assert torch.equal(first, torch.where(torch.arange(16) < count, vector, 0))
    assert sums[0].item() == pytest.approx(vector.double().sum().item(), abs=1e-4)
    assert sums[1] == vector.max()
    assert torch.allclose(sums[2:6].double(), four.double().sum(1), atol=1e-4)
    assert torch.equal(sums[6:10], four.round().sum(1))
    assert torch.allclose(gelus.double(), torch.nn.functional.gelu(vector.double()), atol=1e-6 * 120)
    assert torch.allclose(sines.double(), vector.double().sin(), atol=1e-6)
    assert torch.allclose(cosines.double(), vector.double().cos(), atol=1e-6)
    answers = functions(SETS[0], x, count)
    assert all(map(torch.equal, functions(instructions, x, count), answers)), "as of every other set"


@pytest.mark.parametrize("instructions", SETS)
def test_numbers_that_are_none_stay_none(instructions):
    x = torch.zeros(64)
    x[:4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1000.0])
    exponentials, rounded, *_ = functions(instructions, x, 16)
    assert exponentials[0].isnan()
    assert rounded[:3].isnan().tolist() == [True, False, False]
    assert rounded[1:3].isinf().all()
    assert math.isclose(exponentials[3].item(), math.exp(88.3), rel_tol=1e-5), "the exponent is clamped"
