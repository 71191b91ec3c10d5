"""Kernels: every set of instructions computes what float64 computes, and all of them the same bits."""

import ctypes
from functools import cache
from pathlib import Path

import pytest
import torch

from pipeline.model.cpu.packing import Arithmetic
from pipeline.model.quantise import quantise
from pipeline.native import instructions as sets
from pipeline.native.compiler import library
from pipeline.native.instructions import Instructions, usable
from pipeline.native.memory import PANEL, pack
from tests.support.machine import needs_native

SOURCE = Path(__file__).with_name("kernels.cpp")
# AVX-VNNI's instruction as AVX-512 encodes it: what most machines with AVX-512 can run.
VNNI_OF_AVX512 = ("-march=x86-64-v3", "-mavx512vnni", "-mavx512vl", "-U__AVX512F__")
KINDS = [kind for kind in Arithmetic if not kind.name.startswith("TILE")]
OUTPUTS = 3 * PANEL
ERRORS = {torch.float32: 2e-6, torch.bfloat16: 2e-6, torch.int8: 4e-5}  # of a sum, relative to the sum of sizes

pytestmark = [needs_native, pytest.mark.slow]


def _sets() -> list[Instructions]:
    found = [one for one in usable() if one is not Instructions.AMX]
    if Instructions.AVX_VNNI not in found and torch.cpu.get_capabilities().get("avx512_vnni"):
        found.append(Instructions.AVX_VNNI)
    return found


SETS = _sets()


@cache
def kernels(instructions: Instructions) -> ctypes.CDLL:
    with pytest.MonkeyPatch.context() as patch:
        if instructions not in usable():
            patch.setitem(sets.FLAGS, instructions, VNNI_OF_AVX512)
        return library(SOURCE, instructions=instructions)


def product(
    instructions: Instructions, kind: Arithmetic, weight: torch.Tensor, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The product of x and a weight, and what float64 makes of the same numbers."""
    scales = None
    rounded = weight.to(kind.weights)
    exact = rounded.double()
    if kind.weights is torch.int8:
        rounded, scales = quantise(weight)
        exact = rounded.double() * scales.double().view(-1, 1)
    packed = pack(rounded, in_pairs=kind is Arithmetic.PAIRS_INT8)
    rows, inputs = x.shape
    scratch, out = torch.empty(rows * (inputs + 1), dtype=torch.float32), torch.full((rows, len(weight)), torch.nan)
    kernels(instructions).product(
        ctypes.c_int64(kind),
        ctypes.c_void_p(packed.data_ptr()),
        ctypes.c_void_p(None if scales is None else scales.data_ptr()),
        ctypes.c_void_p(x.data_ptr()),
        *(ctypes.c_int64(size) for size in (rows, inputs, len(weight))),
        ctypes.c_void_p(scratch.data_ptr()),
        ctypes.c_void_p(out.data_ptr()),
    )
    return out, x.double() @ exact.T


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("inputs", [16, 48, 528, 1600])
def test_a_product_is_float64s_for_any_number_of_rows_and_a_row_is_its_own(instructions, kind, inputs):
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(OUTPUTS, inputs, generator=generator)
    x = torch.randn(19, inputs, generator=generator) * torch.logspace(-3, 3, 19)[:, None]
    alone = torch.cat([product(instructions, kind, weight, row[None])[0] for row in x])
    for rows in range(1, len(x) + 1):
        sums, exact = product(instructions, kind, weight, x[:rows].contiguous())
        size = x[:rows].double().abs() @ weight.double().abs().T
        assert ((sums - exact).abs() / size).max() < ERRORS[kind.weights]
        assert torch.equal(sums, alone[:rows])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_all_sets_of_instructions_have_the_same_bits(kind):
    generator = torch.Generator().manual_seed(1)
    weight, x = torch.randn(OUTPUTS, 784, generator=generator), torch.randn(11, 784, generator=generator)
    answers = [product(instructions, kind, weight, x)[0] for instructions in SETS]
    assert all(torch.equal(answer, answers[0]) for answer in answers)


@pytest.mark.parametrize("instructions", SETS)
def test_the_largest_integers_do_not_overflow(instructions):
    """Inputs and weights at their limits: 512 products of 32767 and 127 are as much as 32 bits hold."""
    sums, exact = product(instructions, Arithmetic.PAIRS_INT8, torch.ones(PANEL, 1600), torch.ones(2, 1600))
    assert torch.allclose(sums.double(), exact, rtol=1e-6)


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_stays_so_and_alone(instructions, bad):
    weight, x = torch.ones(PANEL, 64), torch.ones(3, 64)
    x[1, 5] = bad
    for kind in KINDS:
        sums, _ = product(instructions, kind, weight, x)
        assert sums.isfinite().all(1).tolist() == [True, False, True]


def functions(instructions: Instructions, x: torch.Tensor, count: int) -> list[torch.Tensor]:
    types = (torch.float32, torch.bfloat16, torch.int8, torch.int16, torch.float32, torch.float32)
    out = [torch.zeros(16, dtype=kind) for kind in types]
    kernels(instructions).functions(
        ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(count), *(ctypes.c_void_p(one.data_ptr()) for one in out)
    )
    return out


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("count", [-3, 0, 1, 5, 8, 13, 16, 40])
def test_the_functions_of_a_vector(instructions, count):
    x = torch.randn(64, generator=torch.Generator().manual_seed(count + 3)) * 40
    exponentials, rounded, whole, shorts, first, sums = functions(instructions, x, count)
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
    assert all(map(torch.equal, functions(instructions, x, count), functions(SETS[0], x, count))), "as of every other set"


@pytest.mark.parametrize("instructions", SETS)
def test_numbers_that_are_none_stay_none(instructions):
    x = torch.zeros(64)
    x[:4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1000.0])
    exponentials, rounded, *_ = functions(instructions, x, 16)
    assert exponentials[0].isnan()
    assert rounded[:3].isnan().tolist() == [True, False, False]
    assert rounded[1:3].isinf().all()
    assert exponentials[1:4].isfinite().all(), "the exponent is clamped"
