"""The quality gate: agrees with itself, notices damage, and lets 8 bits through on the demo checkpoint."""

from dataclasses import replace

import pytest
import torch

from pipeline.checkpoint.in_torch import in_torch
from pipeline.model.embedding import Embedding
from pipeline.native.compiler import NativeUnavailable
from scripts.evaluate.quality_gate import WAYS, YARDSTICK, Agreement, agreement, measure, passes
from tests.support.machine import needs_native


def test_equal_states_agree_wholly_and_disturbed_ones_less_and_less(demo):
    embedding = Embedding(in_torch(demo.embed()), device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    exact, noise = (torch.randn(20, demo.gpt_spec.width, generator=generator) for _ in range(2))
    assert agreement(embedding, exact, exact) == Agreement(hidden_error=0.0, argmax=1.0, top_20=1.0, moved=0.0)
    little, much = (agreement(embedding, exact + share * noise, exact) for share in (0.01, 0.3))
    assert 0 < little.moved < much.moved <= 1
    assert 0 < little.hidden_error < much.hidden_error
    assert 1 > little.top_20 > much.top_20 > 0
    assert little.argmax > much.argmax


@pytest.mark.parametrize(("more", "verdict"), [(-0.1, True), (0.1, False)])
@pytest.mark.parametrize("way", [way for way, how in WAYS.items() if how.most_times])
def test_fewer_bits_are_judged_by_what_bfloat16_moves(more, verdict, way):
    bfloat16 = Agreement(hidden_error=0.01, argmax=0.9, top_20=0.9, moved=0.02)
    assert passes({YARDSTICK: bfloat16, way: replace(bfloat16, moved=0.02 * (WAYS[way].most_times + more))}) is verdict


@needs_native
def test_fewer_bits_pass_on_the_demo_checkpoint(demo_root):
    results = measure(demo_root, texts=1, steps=12)
    assert list(results) == list(WAYS)[1:]
    assert passes(results)
    assert all(0 < row.moved < 0.2 for row in results.values()), "every way differs from float32, a little"
    assert results["weights int8, native"].moved < results["weights int4, native"].moved / 4, "a bit is worth a factor"


def test_a_machine_that_cannot_decode_natively_judges_the_rest_and_says_so(demo_root, monkeypatch, caplog):
    def unavailable(*_: object, **__: object) -> None:
        raise NativeUnavailable("it needs AVX-512")

    monkeypatch.setattr("scripts.evaluate.quality_gate.NativeDecoder", unavailable)
    results = measure(demo_root, texts=1, steps=2)
    assert list(results) == [way for way, how in list(WAYS.items())[1:] if how.native is None]
    assert "weights int8, native is left out: it needs AVX-512" in caplog.text
