"""The vocoder's training goes on where it was stopped, learns from both losses, and has upstream's names."""

import random

import numpy as np
import pytest
import torch

from scripts.train_demo import train_vocoder
from scripts.train_demo.kokoro import Recording
from scripts.train_demo.prose import Text
from scripts.train_demo.recordings import Assignment, _write
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
    mel, wanted = waves.crops(random.Random(trainer.step))
    trainer.learn(mel, wanted, share=1.0, is_alone=is_alone)


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
    mel, wanted = crops(train_vocoder.held_out(folder / "recordings"), random.Random(0))
    assert mel.shape == (2, 100, train_vocoder.CROP_FRAMES)
    assert wanted.shape == (2, (train_vocoder.CROP_FRAMES - 1) * 256)


def test_the_rate_rises_stays_and_falls_to_zero():
    assert rate_at(0, 10_000) == 1 / 200
    assert rate_at(5_000, 10_000) == 1.0
    assert rate_at(9_999, 10_000) == pytest.approx(1 / 3_000)
