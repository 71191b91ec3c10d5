"""Numbers: eight bits and a scale, bfloat16, tables and heads, and the sampler, against torch or a slow twin."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.bfloat16 import rounded, widened
from pipeline.checkpoint.in_torch import in_torch
from pipeline.engine import cpu_state
from pipeline.model import sampling
from pipeline.model.cpu.quantise_numpy import quantise as quantise_in_numpy
from pipeline.model.cpu.vocabulary import Vocabulary, folded_heads
from pipeline.model.embedding import Embedding
from pipeline.model.linear import QuantisedLinear
from pipeline.model.quantise import dequantise, quantise
from pipeline.model.sampling import RowParams, draw, filter_logits, upstream_noise
from pipeline.model.uniforms import counter_uniforms
from pipeline.types import Head, SamplingParams
from pipeline.vocoder.incremental.vocoder_packing import code_tables
from pipeline.vocoder.windowed.network import CodeEmbedding
from tests.support import reference
from tests.support.effort import examples
from tests.support.factories import make_prompt, make_speaker

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


# The vocabulary, the quantiser and the code tables in numpy: torch's numbers to the last bit.


def same(ours: np.ndarray, theirs: torch.Tensor) -> bool:
    return ours.dtype == theirs.numpy().dtype and np.array_equal(ours, theirs.numpy())


def test_tables_and_heads_are_torchs(demo):
    generator = np.random.default_rng(0)
    tensors = demo.embed()
    for name, tensor in tensors.items():  # of all bits, which a checkpoint in float16 does not have
        tensors[name] = (tensor + 1e-3 * generator.standard_normal(tensor.shape)).astype(np.float32)
    ours, theirs = Vocabulary(tensors), Embedding(in_torch(tensors), device=torch.device("cpu"))
    for name in ("text_table", "code_table"):
        assert same(getattr(ours, name), getattr(theirs, name)), name
    assert all(map(same, folded_heads(tensors), (theirs.code_heads, theirs.text_head)))


@pytest.mark.parametrize("with_speaker", [True, False])
@pytest.mark.parametrize("scale", [1.0, 100.0, 0.0])
def test_a_prompt_is_embedded_as_in_torch(demo, with_speaker, scale):
    width = demo.gpt_spec.width
    speaker = (make_speaker(3, width) * np.float16(scale)).astype(np.float16) if with_speaker else None
    prompt = make_prompt(20, number=5, max_steps=10, speaker=speaker)
    ours = Vocabulary(demo.embed()).embed_prompt(prompt)
    theirs = Embedding(in_torch(demo.embed()), device=torch.device("cpu")).embed_prompt(
        torch.tensor(prompt.ids),
        torch.tensor(prompt.text_mask),
        None if speaker is None else torch.tensor(speaker),
        prompt.speaker_position,
    )
    assert np.array_equal(ours, theirs.numpy(), equal_nan=True)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e30])
def test_weights_are_quantised_as_in_torch(scale):
    numbers = (np.random.default_rng(1).standard_normal((37, 65)) * scale).astype(np.float32)
    for ours, theirs in zip(quantise_in_numpy(numbers), quantise(torch.from_numpy(numbers)), strict=True):
        assert same(ours, theirs)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.05, 1.2, 1.5, 2.0])
def test_penalties_are_torchs(penalty):
    assert same(cpu_state.penalty_powers(penalty), sampling.penalty_powers(torch.tensor(penalty)))


def test_the_tables_of_codes_are_the_embedding_in_torch(demo):
    tensors = demo.dvae()
    codes = np.random.default_rng(2).integers(0, 625, (40, 4))
    rows = [table[codes[:, place]] for place, table in enumerate(code_tables(tensors))]
    ours = np.concatenate([rows[0] + rows[1], rows[2] + rows[3]], 1)
    theirs = CodeEmbedding(in_torch(tensors))(torch.from_numpy(codes)[None].float())[0]
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-5)


# The sampler against its slow twin, and the draws against what they claim to be.


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


# Bfloat16 in numpy: torch's, to the last bit.


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_any_number_is_rounded_as_torch_rounds_it(words):
    numbers = np.array(words, np.uint32).view(np.float32)
    theirs = torch.from_numpy(numbers).bfloat16()
    is_number = ~np.isnan(numbers)
    assert np.array_equal(rounded(numbers)[is_number], theirs.view(torch.int16).numpy().view(np.uint16)[is_number])
    assert np.isnan(widened(rounded(numbers))[~is_number]).all(), "what is no number stays none"


def test_of_two_equally_near_ones_the_even_one_is_taken():
    between = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF], np.uint32).view(np.float32)
    assert rounded(between).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80]


def test_every_bfloat16_comes_back():
    words = np.arange(2**16).astype(np.uint16)
    numbers = widened(words)
    is_number = ~np.isnan(numbers)
    assert np.array_equal(rounded(numbers)[is_number], words[is_number])
    assert np.array_equal(
        numbers[is_number], torch.from_numpy(words.view(np.int16)).view(torch.bfloat16).float().numpy()[is_number]
    )
