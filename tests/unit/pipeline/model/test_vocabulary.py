"""The vocabulary, the quantiser and the code tables in numpy: torch's numbers to the last bit."""

import numpy as np
import pytest
import torch

from pipeline.checkpoint.in_torch import in_torch
from pipeline.engine import cpu_state
from pipeline.model import sampling
from pipeline.model.cpu.quantise import quantise
from pipeline.model.cpu.vocabulary import Vocabulary
from pipeline.model.embedding import Embedding
from pipeline.model.quantise import quantise as quantise_in_torch
from pipeline.vocoder.incremental.packing import code_tables
from pipeline.vocoder.windowed.network import CodeEmbedding
from tests.support.factories import make_prompt, make_speaker


def same(ours: np.ndarray, theirs: torch.Tensor) -> bool:
    return ours.dtype == theirs.numpy().dtype and np.array_equal(ours, theirs.numpy())


def test_tables_and_heads_are_torchs(demo):
    generator = np.random.default_rng(0)
    tensors = demo.embed()
    for name, tensor in tensors.items():  # of all bits, which a checkpoint in float16 does not have
        tensors[name] = (tensor + 1e-3 * generator.standard_normal(tensor.shape)).astype(np.float32)
    ours, theirs = Vocabulary(tensors), Embedding(in_torch(tensors), device=torch.device("cpu"))
    for name in ("text_table", "code_table", "text_head", "code_heads"):
        assert same(getattr(ours, name), getattr(theirs, name)), name


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
    for ours, theirs in zip(quantise(numbers), quantise_in_torch(torch.from_numpy(numbers)), strict=True):
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
