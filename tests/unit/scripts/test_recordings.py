"""What the teacher read comes back from a shard as it was written, and the texts are ones that it can read."""

import random

import numpy as np
import pytest

from scripts.train_demo import prose
from scripts.train_demo.kokoro import SAMPLES_PER_TICK, Recording
from scripts.train_demo.prose import Text
from scripts.train_demo.recordings import SPEAKERS, Assignment, _shares, _write, load
from scripts.train_demo.sounds import Unit


def recording(ticks: list[int]) -> Recording:
    return Recording(np.arange(sum(ticks) * SAMPLES_PER_TICK, dtype=np.int16), np.array(ticks, np.int16))


def test_a_shard_gives_back_what_was_written(tmp_path):
    units = (Unit("k", "k"), Unit("##ˈæ", "ˈæ"), Unit("##t", "t"), Unit(".", "."))
    assignments = [
        Assignment(Text("Cat.", "en"), units, (0.0, 1.0, 0.0), 1.0),
        Assignment(Text("好.", "zh"), (Unit("hao3", "xau↓"), Unit(".", ".")), (0.5, 0.25, 0.25), 1.3),
    ]
    recordings = [recording([3, 1, 2, 4, 1, 5, 2]), recording([2, 1, 1, 1, 1, 6, 1])]
    _write(tmp_path / "0000.npz", assignments, recordings)
    cat, good = load(tmp_path / "0000.npz")
    assert (cat.written, cat.units, cat.shares, cat.pace) == ("Cat.", ("k", "##ˈæ", "##t", "."), (0.0, 1.0, 0.0), 1.0)
    assert cat.ticks.tolist() == [3, 1, 6, 1, 5, 2]
    assert good.ticks.tolist() == [2, 4, 6, 1]
    assert [len(one.samples) for one in (cat, good)] == [18 * SAMPLES_PER_TICK, 13 * SAMPLES_PER_TICK]


def test_the_language_of_a_text_chooses_the_voices_of_its_speakers():
    for written, language, column in (
        ("Cat.", "en", 0),
        ("好.", "zh", 1),
        ("我的 email.", "mixed", 1),
        ("A 好 cat.", "mixed", 0),
    ):
        found = Assignment(Text(written, language), (), (0.5, 0.0, 0.5), 1.0)
        assert found.voices == [(SPEAKERS[0][column], 0.5), (SPEAKERS[2][column], 0.5)]
    draw = random.Random(3)
    assert all(sum(_shares(draw)) == pytest.approx(1, abs=0.01) for _ in range(200))


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("“Where?” she asked.", "Where? she asked."),
        ("It costs 30 dollars!", "It costs thirty dollars!"),
        ("他说：“好吗？”", "他说, 好吗?"),
        ("A well-known fact", "A well known fact."),
        ("…", None),
        ("α is a letter.", None),
    ],
)
def test_prose_keeps_what_prosody_is_learned_from(written, plain):
    assert prose._plain(written) == plain


def test_templates_name_slots_that_there_are():
    for file in ("everyday_en.txt", "everyday_zh.txt"):
        slots, templates = prose._everyday(file)
        for template in templates:
            assert prose._plain(template.format_map({name: words[0] for name, words in slots.items()})), template
