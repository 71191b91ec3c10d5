"""Eight bits and a scale: within half a step, a row by itself, and what is not finite stays so."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.model.linear import QuantisedLinear
from pipeline.model.quantise import dequantise, quantise

DTYPES = [torch.float32, torch.bfloat16]
seeds = st.integers(0, 2**20)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(seed=seeds, scale=st.sampled_from([0.0, 1e-38, 1e-30, 1e-3, 1.0, 1e4]), dtype=st.sampled_from(DTYPES))
def test_what_comes_back_is_within_half_a_step(seed, scale, dtype):
    numbers = (random(2, 3, 40, seed=seed) * scale).to(dtype)
    numbers[1, 2] = 0
    quantised, scales = quantise(numbers)
    assert (quantised.dtype, scales.dtype) == (torch.int8, torch.float32)
    assert quantised.min() >= -127
    assert ((dequantise(quantised, scales) - numbers).abs() <= 0.5001 * scales[..., None]).all()
    assert not dequantise(quantised, scales)[1, 2].any()


@given(seed=seeds)
def test_a_row_is_rounded_as_if_alone(seed):
    rows = random(5, 24, seed=seed)
    others = random(5, 24, seed=seed + 1) * 1e3
    others[3] = rows[3]
    for mine, theirs in zip(quantise(rows), quantise(others), strict=True):
        assert torch.equal(mine[3], theirs[3])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_comes_back_not_finite_and_alone(bad):
    rows = random(3, 16, seed=1)
    rows[1, 5] = bad
    back = dequantise(*quantise(rows)).isfinite()
    assert not back[1].any()
    assert back[[0, 2]].all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_of_rounded_weights_is_the_product_of_what_they_stand_for(dtype):
    weight, x = random(48, 64, seed=2), random(5, 64, seed=3).to(dtype)
    expected = x.double() @ dequantise(*quantise(weight)).double().T
    y = QuantisedLinear(weight)(x)
    assert y.dtype is dtype
    torch.testing.assert_close(y, expected.to(dtype), rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-4)
