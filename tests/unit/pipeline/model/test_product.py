"""Kernels of int8 products and of draws, in Triton's interpreter: the numbers of torch, and a row that is its own."""

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
from pipeline.model.gpu.kernels import step
from pipeline.model.gpu.kernels.product import Int8Product
from pipeline.model.gpu.kernels.step import SlotState
from pipeline.model.linear import Product, QuantisedLinear
from pipeline.model.sampling import RowParams, draw, filter_logits
from pipeline.spec import MIN_TOKENS_TO_KEEP
from tests.support.effort import examples
from tests.support.slot_state import VOCAB, make_state

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
def test_the_product_equals_torchs_whole_or_in_summands(size, seed, dtype):
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
    results = []
    for place in (0, rows - 1):
        x = (random(rows, 192, seed=seed + place) * neighbours).bfloat16()
        x[place] = mine
        y = _both(product, x)
        results.append(y[place])
        others = torch.arange(rows) != place
        assert y[others].isfinite().all() == (abs(neighbours) <= 1e20), "the neighbours were what they should be"
    assert torch.equal(*results)


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


# The kernel that draws codes, in Triton's interpreter: against torch's sampler, and against its own search done plainly.


one_row = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.1, 0.3, 1.0, 2.0]),
        "top_p": st.sampled_from([0.05, 0.5, 0.7, 0.95, 1.0]),
        "top_k": st.sampled_from([1, 3, 5, 20, 69, 626]),
        "penalty": st.sampled_from([0.8, 1.0, 1.05, 1.5]),
    }
)


@settings(max_examples=examples(12))
@given(
    rows=st.lists(one_row, min_size=1, max_size=2),
    seed=st.integers(0, 2**20),
    coarse=st.sampled_from([0.0, 1.0, 4.0]),
    min_steps=st.integers(0, 1),
)
def test_codes_are_those_of_the_torch_sampler(rows, seed, coarse, min_steps):
    """Both ways to draw; with coarse logits most tokens tie."""
    slots = len(rows)
    state = make_state(slots, rows=rows, seed=seed)
    state.min_steps.fill_(min_steps)
    logits = 2 * torch.randn(slots, 4, VOCAB, generator=torch.Generator().manual_seed(seed))
    if coarse:
        logits = (logits * coarse).round() / coarse
    params = RowParams(
        *(value.view(-1, 1, 1) for value in (state.temperature, state.dropped_mass, state.top_k.long(), state.penalty))
    )
    eos = torch.full((slots, 4, 1), VOCAB - 1)
    filtered = filter_logits(
        logits, state.recent.long(), params, eos=eos, eos_forbidden=torch.full((slots, 1, 1), bool(min_steps))
    )
    expected = draw(filtered, state.uniforms[:, 0], state.noise, state.from_noise.bool()[:, None])
    step.draw(logits, state)
    # At a border that a float32 rounding decides the two may part; the token is still one that is in.
    parted = (state.tokens.long() != expected).nonzero().tolist()
    assert len(parted) <= 1
    for slot, book in parted:
        assert _is_borderline(filtered[slot, book], float(state.uniforms[slot, 0, book]), state.dropped_mass[slot].item())
    assert torch.equal(state.ends, (state.tokens == VOCAB - 1).int())
    assert (state.finite == 1).all()


def _is_borderline(filtered: torch.Tensor, uniform: float, dropped_mass: float) -> bool:
    cumulated = filtered.double().softmax(-1).cumsum(-1)
    return float((cumulated - uniform).abs().min()) < 1e-6 or dropped_mass in (0.0, 0.5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_draws_are_a_rows_own_and_odd_numbers_are_seen(bad):
    logits = torch.randn(3, 4, VOCAB, generator=torch.Generator().manual_seed(3))
    clean, beside = make_state(3, seed=4), make_state(3, seed=4)
    step.draw(logits, clean)
    spoiled = logits.clone()
    spoiled[1] = bad
    spoiled[2, 3, 17] = bad
    step.draw(spoiled, beside)
    assert torch.equal(beside.tokens[0], clean.tokens[0])
    assert torch.equal(beside.finite, torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.int32))
    assert ((beside.tokens >= 0) & (beside.tokens < VOCAB)).all(), "whatever was drawn can be embedded"


BITS = 39
"""of a token's rank: 32 of its value, 7 of its index"""
extreme_row = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([1e-4, 0.01, 0.3, 1.0, 100.0]),
        "top_p": st.sampled_from([0.0, 1e-6, 0.5, 0.7, 0.999999, 1.0]),
        "top_k": st.sampled_from([1, 3, 4, VOCAB - 1, VOCAB, 10_000]),
        "penalty": st.sampled_from([0.5, 1.0, 1.05, 5.0]),
    }
)
LOGITS = {
    "even": torch.zeros_like,
    "near": lambda normal: 1e-6 * normal,
    "far": lambda normal: 1e4 * normal,
    "tied": lambda normal: (2 * normal).round(),
    "one": lambda normal: torch.where(torch.arange(VOCAB) == 3, 1.0, -torch.inf).expand(normal.shape).clone(),
    "broken": lambda normal: torch.where(torch.arange(VOCAB) == 5, torch.nan, normal),
    "boundless": lambda normal: torch.where(torch.arange(VOCAB) == 7, torch.inf, normal),
}


@settings(max_examples=examples(10))
@given(row=extreme_row, seed=st.integers(0, 2**20), kind=st.sampled_from(sorted(LOGITS)), from_noise=st.integers(0, 1))
def test_codes_are_exactly_those_of_two_searches_one_sum_a_bit(row, seed, kind, from_noise):
    """One reduction for both thresholds gives each the sums that it would have of its own."""
    state = make_state(1, rows=[row], seed=seed)
    state.from_noise.fill_(from_noise)
    logits = LOGITS[kind](torch.randn(1, 4, VOCAB, generator=torch.Generator().manual_seed(seed)))
    expected = [_plainly(logits[0, book].numpy(), state, book) for book in range(4)]
    step.draw(logits, state)
    assert state.tokens[0].tolist() == expected


def _plainly(logits: np.ndarray, state: SlotState, book: int) -> int:
    """The draw of slot 0, in float32 as the kernel computes, each threshold searched alone."""
    block = 1 << (BITS - 32)
    value = np.full(block, -np.inf, np.float32)
    value[:VOCAB] = logits / state.temperature.numpy()[0]
    factor = np.ones(block, np.float32)
    for recent in state.recent[0, book].tolist():
        factor[recent] *= state.penalty.numpy()[0]
    value = np.where(value < 0, value * factor, value / factor) + np.float32(0)
    value[VOCAB:] = -np.inf
    share = np.exp(value - np.nanmax(value))
    bits = value.view(np.int32)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    rank = (bits.astype(np.int64) + 2**31) * block + np.arange(block)
    most = state.dropped_mass.numpy()[0] * share.sum()
    count = max(int(state.top_k[0]), MIN_TOKENS_TO_KEEP)
    above_mass = kth = 0
    for bit in reversed(range(BITS)):
        if np.where(rank < above_mass + (1 << bit), share, np.float32(0)).sum() <= most:
            above_mass += 1 << bit
        if (rank >= kth + (1 << bit)).sum() >= count:
            kth += 1 << bit
    last = np.sort(rank)[-MIN_TOKENS_TO_KEEP]
    allowed = (rank >= min(above_mass, last)) & (rank // block >= kth // block) & (np.arange(block) < VOCAB)
    value = np.where(allowed, value, np.float32(-np.inf))
    weight = np.exp(value - np.nanmax(value))
    probability = weight / weight.sum()
    if state.from_noise[0]:
        drawn = int(np.argmax(probability[:VOCAB] / state.noise[0, book].numpy()))
    else:
        reached = np.float64(state.uniforms[0, 0, book]) * probability.astype(np.float64).sum()
        drawn = int((np.cumsum(probability.astype(np.float64)) <= reached)[:VOCAB].sum())
    return min(drawn, VOCAB - 1)
