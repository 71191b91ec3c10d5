"""What judges the model: the quality gate, the recognisers, the limits of intelligibility."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.checkpoint.in_torch import in_torch
from pipeline.model.embedding import Embedding
from pipeline.native.compiler import NativeUnavailable
from scripts.evaluate import intelligibility as judge
from scripts.evaluate.intelligibility import ABOVE_TEACHER, REAL_TIME_FACTOR, TEACHER, beyond
from scripts.evaluate.listening import KINDS, Listener, Recording, language_of, syllables_of
from scripts.evaluate.quality_gate import WAYS, YARDSTICK, Agreement, agreement, measure, passes
from scripts.train_demo.held_out import held_out
from scripts.train_demo.syllable_recogniser import BLANK, as_heard, classes, decoded, labels
from scripts.train_demo.syllables import syllables
from scripts.train_demo.word_errors import edits
from tests.support.machine import needs_native

# The quality gate: agrees with itself, notices damage, and lets 8 bits through on the demo checkpoint.


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


# The ears of the judge: recognisers tell the teachers' sentences from others, and mistakes are counted.

SYLLABLES = st.lists(st.sampled_from(sorted(syllables())), max_size=8)


@given(SYLLABLES, st.integers(1, 4))
def test_syllables_are_decoded_from_their_classes(spoken: list[str], frames: int):
    frames_of = [index for label in labels(spoken) for index in (*[label] * frames, BLANK)]
    assert decoded(frames_of) == as_heard(spoken)


def test_a_class_is_an_initial_or_a_final_with_its_tone():
    assert len(set(classes().values())) == len(classes())
    assert BLANK not in classes().values()
    assert {index for syllable in syllables() for index in labels([syllable])} <= set(classes().values())


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_edits_are_a_distance(first: list[str], second: list[str]):
    assert edits(first, second) == edits(second, first)
    assert abs(len(first) - len(second)) <= edits(first, second) <= max(len(first), len(second))
    assert (edits(first, second) == 0) == (first == second)


def test_every_kind_belongs_to_one_language():
    kinds = [kind for of_language in KINDS.values() for kind in of_language]
    assert len(set(kinds)) == len(kinds)
    assert {language_of("mandarin"), language_of("digits")} == {"zh", "en"}


def test_chinese_sentences_become_syllables():
    assert syllables_of("听音乐。") == ["ting1", "yin1", "yue4"]


@pytest.mark.slow
def test_nothing_is_recognised_in_silence():
    listener, silence = Listener(), Recording(np.zeros(16_000, np.float32), 16_000, 0.0)
    first = listener.compare("mandarin", held_out("mandarin")[0], silence)
    assert first.mistakes >= len(first.expected) - 1
    assert listener.compare("digits", "five seven two", silence).recognised in ([], ["eight"])


# The judge: it says no above its limits, which are the demo checkpoint's card's.

CARD = (Path(__file__).resolve().parents[3] / "pipeline/assets/demo/README.md").read_text()
ABOVE = {"words": 12.0, "digits": 5.0}


def result(words: float, digits: float, factor: float) -> dict:
    return {"words": {"wer": words}, "digits": {"wer": digits}, "real_time_factor": factor}


def cells(figure: str) -> list[str]:
    (line,) = [line for line in CARD.splitlines() if line.startswith(f"| {figure}")]
    return line.split("|")


@pytest.mark.slow
def test_the_limits_are_the_cards():
    for kind, limit in ABOVE_TEACHER.items():
        _, _, must, _, measured, *_ = cells(kind)
        assert must.strip() == f"<= {limit:g} points"
        assert re.search(r"the teacher ([\d.]+) %", measured)[1] == f"{TEACHER[kind]:.1f}"
    assert cells("real-time factor")[2].strip() == f"<= {REAL_TIME_FACTOR:g}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("figures", "broken"),
    [
        (result(0.17, 0.10, 0.5), []),
        (result(0.171, 0.10, 0.5), ["words: 17.1 % of the words are wrong; the limit is 5.0 + 12 %"]),
        (result(0.0, 0.101, 0.5), ["digits: 10.1 % of the words are wrong; the limit is 5.0 + 5 %"]),
        (result(0.0, 0.0, 0.51), ["the real-time factor is 0.51; the limit is 0.5"]),
    ],
)
def test_a_figure_beyond_its_limit_is_named(figures, broken, monkeypatch):
    monkeypatch.setattr(judge, "TEACHER", dict.fromkeys(ABOVE, 5.0))
    assert beyond(figures, ABOVE, 0.5) == broken


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "code"), [pytest.param("1e9", 0, marks=pytest.mark.nightly), ("0", 1)])
def test_its_exit_code_says_so(limit, code, taught_root, monkeypatch, capsys):
    lenient = [option for kind in ABOVE for option in (f"--{kind}-above-teacher", "100")]
    everything = ["--kinds", *ABOVE, *lenient, "--real-time-factor", limit]
    monkeypatch.setattr(sys, "argv", ["judge", "--local", "--checkpoint", str(taught_root), "--sentences", "1", *everything])
    assert judge.main() == code
    output = capsys.readouterr()
    assert json.loads(output.out.splitlines()[-1])["words"]["words"] > 0
    assert ("the real-time factor is" in output.err) == bool(code)
