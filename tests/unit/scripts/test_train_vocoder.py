"""The vocoder's training and the recordings it learns from."""

import random

import numpy as np
import pytest
import torch

from scripts.train_demo import prose, train_vocoder
from scripts.train_demo.kokoro import SAMPLES_PER_TICK, Recording
from scripts.train_demo.prose import Text
from scripts.train_demo.recordings import SPEAKERS, Assignment, _shares, _write, load
from scripts.train_demo.sounds import Unit
from scripts.train_demo.train_vocoder import Trainer, Waves, crops, rate_at

TICKS = np.array([10, 60, 10], np.int16)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(train_vocoder, "WIDTH", 16)
    monkeypatch.setattr(train_vocoder, "LAYERS", 1)
    monkeypatch.setattr(train_vocoder, "ROWS", 2)
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    for number in range(3):
        noise = np.random.default_rng(number).integers(-9000, 9000, 80 * 600).astype(np.int16)
        _write(
            recordings / f"{number:04d}.npz",
            [Assignment(Text("A.", "en"), (Unit("ɐ", "ɐ"),), (1.0, 0.0, 0.0), 1.0)],
            [Recording(noise, TICKS)],
        )
    return tmp_path


def one_more(trainer: Trainer, waves: Waves, *, is_alone: bool) -> None:
    mel, target = waves.crops(random.Random(trainer.step))
    trainer.learn(mel, target, share=1.0, is_alone=is_alone)


def test_a_stopped_run_ends_like_one_that_was_not(folder):
    def run(*stops: int) -> torch.Tensor:
        torch.manual_seed(1)
        file = folder / f"{len(stops)}.pt"
        trainer, waves = Trainer(file), Waves(folder / "recordings")
        for _ in range(2):
            waves.refresh(random.Random(0))
        for step in range(4):
            if step in stops:
                trainer.save()
                trainer = Trainer(file)
            one_more(trainer, waves, is_alone=step < 2)
        return torch.cat([parameter.flatten() for parameter in (*trainer.model.parameters(), *trainer.critic.parameters())])

    torch.testing.assert_close(run(1, 3), run(), rtol=0, atol=0)


def test_the_critic_learns_only_once_the_generator_is_no_longer_alone(folder):
    trainer, waves = Trainer(folder / "state.pt"), Waves(folder / "recordings")
    waves.refresh(random.Random(0))
    before = [parameter.clone() for parameter in trainer.critic.parameters()]
    one_more(trainer, waves, is_alone=True)
    assert all(map(torch.equal, before, trainer.critic.parameters()))
    one_more(trainer, waves, is_alone=False)
    assert not all(map(torch.equal, before, trainer.critic.parameters()))


def test_the_held_out_shard_is_never_learned_from(folder):
    waves = Waves(folder / "recordings")
    for _ in range(5):
        waves.refresh(random.Random(0))
    assert sorted(path.stem for path in waves._waves) == ["0001", "0002"]
    mel, target = crops(train_vocoder.held_out(folder / "recordings"), random.Random(0))
    assert mel.shape == (2, 100, train_vocoder.CROP_FRAMES)
    assert target.shape == (2, (train_vocoder.CROP_FRAMES - 1) * 256)


def test_the_rate_rises_stays_and_falls_to_zero():
    assert rate_at(0, 10_000) == 1 / 200
    assert rate_at(5_000, 10_000) == 1.0
    assert rate_at(9_999, 10_000) == pytest.approx(1 / 3_000)


# What the teacher read comes back from a shard as it was written, and the texts are ones that it can read.


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
    assert [len(utterance.samples) for utterance in (cat, good)] == [18 * SAMPLES_PER_TICK, 13 * SAMPLES_PER_TICK]


def test_the_language_of_a_text_chooses_the_voices_of_its_speakers():
    for written, language, column in (
        ("Cat.", "en", 0),
        ("好.", "zh", 1),
        ("我的 email.", "mixed", 1),
        ("A 好 cat.", "mixed", 0),
    ):
        assignment = Assignment(Text(written, language), (), (0.5, 0.0, 0.5), 1.0)
        assert assignment.voices == [(SPEAKERS[0][column], 0.5), (SPEAKERS[2][column], 0.5)]
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
