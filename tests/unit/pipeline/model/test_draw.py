"""The kernel that draws codes, in Triton's interpreter: against torch's sampler, and against its own search done plainly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.model.gpu.kernels import step
from pipeline.model.gpu.kernels.step import SlotState
from pipeline.model.sampling import RowParams, draw, filter_logits
from pipeline.spec import MIN_TOKENS_TO_KEEP
from tests.support.effort import examples
from tests.support.slot_state import VOCAB, make_state

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, of infinities that a GPU takes for granted
]

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
        *(one.view(-1, 1, 1) for one in (state.temperature, state.dropped_mass, state.top_k.long(), state.penalty))
    )
    eos = torch.full((slots, 4, 1), VOCAB - 1)
    kept = filter_logits(logits, state.recent.long(), params, eos=eos, eos_forbidden=torch.full((slots, 1, 1), bool(min_steps)))
    expected = draw(kept, state.uniforms[:, 0], state.noise, state.from_noise.bool()[:, None])
    step.draw(logits, state)
    # At a border that a float32 rounding decides the two may part; the token is still one that is in.
    parted = (state.tokens.long() != expected).nonzero().tolist()
    assert len(parted) <= 1
    for slot, book in parted:
        assert _is_borderline(kept[slot, book], float(state.uniforms[slot, 0, book]), state.dropped_mass[slot].item())
    assert torch.equal(state.ends, (state.tokens == VOCAB - 1).int())
    assert (state.finite == 1).all()


def _is_borderline(kept: torch.Tensor, uniform: float, dropped_mass: float) -> bool:
    cumulated = kept.double().softmax(-1).cumsum(-1)
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
    kept = (rank >= min(above_mass, last)) & (rank // block >= kth // block) & (np.arange(block) < VOCAB)
    value = np.where(kept, value, np.float32(-np.inf))
    weight = np.exp(value - np.nanmax(value))
    probability = weight / weight.sum()
    if state.from_noise[0]:
        drawn = int(np.argmax(probability[:VOCAB] / state.noise[0, book].numpy()))
    else:
        reached = np.float64(state.uniforms[0, 0, book]) * probability.astype(np.float64).sum()
        drawn = int((np.cumsum(probability.astype(np.float64)) <= reached)[:VOCAB].sum())
    return min(drawn, VOCAB - 1)
