"""The quality gate: agrees with itself, notices damage, and lets int8 through on the demo checkpoint."""

from dataclasses import replace

import pytest
import torch

from pipeline.model.embedding import Embedding
from scripts.quality_gate import MOST_TIMES, Agreement, agreement, measure, passes
from tests.machine import needs_native


def test_equal_states_agree_wholly_and_disturbed_ones_less_and_less(demo):
    embedding = Embedding(demo.embed(), device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    exact, noise = (torch.randn(20, demo.gpt_spec.width, generator=generator) for _ in range(2))
    assert agreement(embedding, exact, exact) == Agreement(hidden_error=0.0, argmax=1.0, top_20=1.0, moved=0.0)
    little, much = (agreement(embedding, exact + share * noise, exact) for share in (0.01, 0.3))
    assert 0 < little.moved < much.moved <= 1
    assert 0 < little.hidden_error < much.hidden_error
    assert 1 > little.top_20 > much.top_20 > 0
    assert little.argmax > much.argmax


@pytest.mark.parametrize(("times", "verdict"), [(1.0, True), (MOST_TIMES + 0.1, False)])
def test_int8_is_judged_by_what_bfloat16_moves(times, verdict):
    bfloat16 = Agreement(hidden_error=0.01, argmax=0.9, top_20=0.9, moved=0.02)
    assert passes({"bfloat16, torch": bfloat16, "int8, native": replace(bfloat16, moved=0.02 * times)}) is verdict


@needs_native
def test_int8_passes_on_the_demo_checkpoint(demo_root):
    results = measure(demo_root, texts=1, steps=12)
    assert passes(results)
    assert all(0 < row.moved < 0.1 for row in results.values()), "every way differs from float32, a little"
