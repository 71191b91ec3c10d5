"""The sampler against its slow twin, and the draws against what they claim to be."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.model.sampling import RowParams, draw, filter_logits, upstream_noise
from pipeline.model.uniforms import counter_uniforms
from pipeline.types import Head, SamplingParams
from tests.support import reference
from tests.support.effort import examples

VOCAB = 40


def row_params(rows: list[dict[str, float]]) -> RowParams:
    def column(name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([row[name] for row in rows], dtype=dtype)[:, None, None]

    return RowParams(
        temperature=column("temperature", torch.float32),
        dropped_mass=1 - column("top_p", torch.float64).float(),
        top_k=column("top_k", torch.int64),
        repetition_penalty=column("penalty", torch.float32),
    )


def filtered(logits: torch.Tensor, recent: torch.Tensor, rows: list[dict[str, float]], *, forbidden: bool = False):
    eos = torch.full((*logits.shape[:2], 1), logits.shape[-1] - 1)
    return filter_logits(logits, recent, row_params(rows), eos=eos, eos_forbidden=torch.full((len(logits), 1, 1), forbidden))


one_row = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.1, 0.3, 1.0, 2.0]),
        "top_p": st.sampled_from([0.1, 0.5, 0.7, 0.95, 1.0]),
        "top_k": st.sampled_from([1, 3, 5, 20, 40, 626]),
        "penalty": st.sampled_from([0.8, 1.0, 1.05, 1.5]),
    }
)


@settings(max_examples=examples(150))
@given(rows=st.lists(one_row, min_size=1, max_size=4), seed=st.integers(0, 2**20))
def test_filters_equal_their_slow_twin_row_by_row(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows), 2, VOCAB, generator=generator)
    recent = torch.randint(0, VOCAB + 1, (len(rows), 2, 16), generator=generator)  # VOCAB: not yet used
    fast = filtered(logits, recent, rows)
    for number, row in enumerate(rows):
        for book in range(2):
            slow = reference.filter_logits(
                logits[number, book].tolist(), [token for token in recent[number, book].tolist() if token < VOCAB], **row
            )
            np.testing.assert_allclose(fast[number, book].numpy(), slow, rtol=1e-5)


@settings(max_examples=examples(50))
@given(rows=st.lists(one_row, min_size=2, max_size=5), seed=st.integers(0, 2**20))
def test_a_row_is_its_own_whatever_its_neighbours_are(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows), 4, VOCAB, generator=generator)
    recent = torch.randint(0, VOCAB + 1, (len(rows), 4, 16), generator=generator)
    together = filtered(logits, recent, rows)
    other = logits.clone()
    other[1:] = torch.nan
    assert torch.equal(filtered(other, recent, rows)[0], together[0])


@pytest.mark.parametrize("top_k", [3, 626])
def test_end_can_be_forbidden(top_k):
    logits = torch.zeros(1, 4, VOCAB)
    logits[..., -1] = 50.0
    rows = [{"temperature": 1.0, "top_p": 1.0, "top_k": top_k, "penalty": 1.0}]
    recent = torch.full((1, 4, 16), VOCAB)
    assert filtered(logits, recent, rows)[..., -1].isfinite().all()
    assert (filtered(logits, recent, rows, forbidden=True)[..., -1] == -math.inf).all()


@settings(max_examples=examples(200))
@given(
    weights=st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1)), min_size=2, max_size=30).filter(any),
    uniform=st.integers(0, 2**23 - 1),
)
def test_uniform_draw_equals_its_slow_twin_and_never_takes_what_is_out(weights, uniform):
    logits = torch.tensor([[weights]]).log()
    u = (uniform + 0.5) / 2**23
    token = int(draw(logits, torch.tensor([[u]]), torch.ones(1, 1, len(weights)), torch.tensor([[False]])))
    assert weights[token] > 0
    probabilities = logits.softmax(-1)[0, 0].double().tolist()
    slow = reference.draw_by_uniform(probabilities, u)
    assert token == slow or abs(sum(probabilities[: max(token, slow)]) - u) < 1e-9, "equal but for a tie at the border"


def test_uniform_draws_follow_the_probabilities():
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.125, 0.0])
    uniforms = torch.from_numpy(counter_uniforms(SamplingParams(seed=9), Head.CODE, 0, 5000)).reshape(-1, 1)
    rows = len(uniforms)
    drawn = draw(
        probabilities.log().expand(rows, 1, 5), uniforms, torch.ones(rows, 1, 5), torch.zeros(rows, 1, dtype=torch.bool)
    )
    shares = torch.bincount(drawn.flatten(), minlength=5) / rows
    assert (shares - probabilities).abs().max() < 4 * (0.25 / rows) ** 0.5  # four standard deviations


def test_counter_uniforms_are_a_function_of_key_and_place_alone():
    base = SamplingParams(seed=5)
    long, short = (counter_uniforms(base, Head.CODE, 3, steps) for steps in (100, 10))
    assert np.array_equal(long[:10], short)
    others = [
        counter_uniforms(SamplingParams(seed=6), Head.CODE, 3, 10),
        counter_uniforms(SamplingParams(seed=5, attempt=1), Head.CODE, 3, 10),
        counter_uniforms(base, Head.CODE, 4, 10),
        counter_uniforms(base, Head.TEXT, 3, 10),
    ]
    assert len({part.tobytes() for part in [short, *others]}) == 5, "another key, other draws"
    assert long.min() > 0
    assert long.max() < 1


def test_counter_uniforms_never_change():
    """A seed somebody wrote down must sound the same in every release."""
    uniforms = counter_uniforms(SamplingParams(seed=2**32 - 1), Head.CODE, 1, 2)
    expected = np.random.Philox(key=np.array([2**32 - 1, 1 << 32], dtype=np.uint64)).random_raw(8)
    assert np.array_equal(uniforms.reshape(-1), ((expected >> 41).astype(np.float64) + 0.5).astype(np.float32) / 2**23)


def test_noise_draw_is_multinomial_with_a_generator_reseeded_at_every_step():
    for seed in range(20):
        probabilities = torch.rand(4, 626, generator=torch.Generator().manual_seed(1000 + seed)).softmax(-1)
        expected = torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(seed))[:, 0]
        noise = upstream_noise(seed, 4, 626)
        drawn = draw(probabilities.log()[None], torch.full((1, 4), 0.5), noise[None], torch.tensor([[True]]))
        assert torch.equal(drawn[0], expected)
