"""The GPU's product with int8 weights in Triton's interpreter: torch's numbers, and a row that is its own."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.weights import Checkpoint
from pipeline.errors import ConfigError
from pipeline.model.gpt import ActiveExtent, Gpt, KeysValues
from pipeline.model.gpu.gpu_gpt import GpuGpt
from pipeline.model.gpu.kernels.product import Int8Product
from pipeline.model.linear import Product, QuantisedLinear
from tests.support.effort import examples

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, of infinities that a GPU takes for granted
]

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
SLOTS, POSITIONS = 3, 64

sizes = st.tuples(st.integers(1, 70), st.sampled_from([16, 48, 96]), st.sampled_from([64, 192, 320]))


@pytest.fixture(autouse=True, scope="module")
def exact_dots() -> Iterator[None]:
    """The interpreter multiplies with NumPy's library, whose float32 sums depend on a row's place on some processors.

    A GPU's do not. Products of bfloat16 and int8 are summed in float64, where their sums are exact in any order.
    """

    def dot(_: InterpreterBuilder, a: TensorHandle, b: TensorHandle, d: TensorHandle, *_precision: object) -> TensorHandle:
        sums = np.matmul(a.data, b.data, dtype=np.float64).astype(d.data.dtype)
        return TensorHandle(sums + d.data, d.dtype.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", dot)
        yield


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=examples(15))
@given(size=sizes, seed=st.integers(0, 2**20), dtype=st.sampled_from(DTYPES))
def test_it_is_torchs_product_whole_or_in_summands(size, seed, dtype):
    rows, outputs, inputs = size
    weight, x = random(outputs, inputs, seed=seed), random(rows, inputs, seed=seed + 1).to(dtype)
    product, expected = Int8Product(weight), QuantisedLinear(weight)(x)
    rounding = {"rtol": 2**-7, "atol": 1e-4} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-4}
    whole, summands = product(x), product.summands(x)
    assert (whole.dtype, summands.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(whole, expected, **rounding)
    torch.testing.assert_close(summands.sum(0).to(dtype), expected, **rounding)


def _both(product: Product, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([product(x).float(), *product.summands(x)], -1)


@settings(max_examples=examples(10))
@example(rows=17, seed=17, neighbours=0.0)  # two blocks of rows
@given(rows=st.integers(2, 20), seed=st.integers(0, 2**20), neighbours=st.sampled_from([0.0, 1.0, 1e20, torch.nan, torch.inf]))
def test_a_rows_bits_are_its_own_in_any_company_and_any_place(rows, seed, neighbours):
    product = Int8Product(random(48, 192, seed=seed))
    mine = random(192, seed=seed + 1).bfloat16()
    found = []
    for place in (0, rows - 1):
        x = (random(rows, 192, seed=seed + place) * neighbours).bfloat16()
        x[place] = mine
        y = _both(product, x)
        found.append(y[place])
        others = torch.arange(rows) != place
        assert y[others].isfinite().all() == (abs(neighbours) <= 1e20), "the neighbours were what they should be"
    assert torch.equal(*found)


@pytest.mark.parametrize(("outputs", "inputs"), [(40, 64), (64, 96), (8, 64), (64, 32)])
def test_a_size_that_does_not_divide_into_blocks_is_refused(outputs, inputs):
    with pytest.raises(ConfigError, match=f"one of {inputs} and {outputs}: set weights to dtype"):
        Int8Product(torch.zeros(outputs, inputs))


def _state(gpt: GpuGpt, x: torch.Tensor, positions: torch.Tensor, cache: KeysValues) -> torch.Tensor:
    """What the runner makes of the layers, with torch."""
    residual = x.clone()
    delta = gpt.run_layers(residual, positions.int(), torch.ones(len(x), dtype=torch.int32), cache)
    return torch.nn.functional.rms_norm(residual + delta.sum(0), x.shape[-1:], gpt.final_norm, gpt.rms_eps)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.01)])
def test_the_stack_over_int8_weights_agrees_with_its_twin_in_torch(demo: Checkpoint, dtype: torch.dtype, bound: float):
    """A prompt, then a step."""
    spec = demo.gpt_spec
    settings = {"positions": POSITIONS, "rows": SLOTS, "device": CPU, "dtype": dtype}
    fast = GpuGpt(in_torch(demo.gpt()), spec, **settings, weights="int8", attention="triton")
    slow = Gpt(in_torch(demo.gpt()), spec, **settings, product=QuantisedLinear)
    prompt, x = random(2, 20, spec.width, seed=4), random(SLOTS, spec.width, seed=5)
    slots, last, positions = torch.tensor([2, 0]), torch.tensor([19, 12]), torch.tensor([13, 0, 20])
    caches = [
        KeysValues(*(torch.zeros(spec.layers, SLOTS, spec.heads, POSITIONS, spec.head_dim, dtype=dtype) for _ in range(2)))
        for _ in range(2)
    ]
    with torch.inference_mode():
        read = [gpt.prefill(prompt, slots, last, cache) for gpt, cache in zip((fast, slow), caches, strict=True)]
        stepped = _state(fast, x, positions, caches[0]), slow.decode(x, positions, caches[1], ActiveExtent(SLOTS, POSITIONS))
    for ours, twins in (read, stepped):
        assert (ours - twins).norm() / twins.norm() < bound
