"""Train vocoder: mel frames to the waveform, first by spectra alone, then beside a discriminator.

In:    the neural teacher's recordings
Out:   $CHATTTS_HOME/train/vocoder.pt (resumes from it), vocoder.jsonl
Owns:  the discriminator, the losses, the schedule
Never: the checkpoint's layout

    nice -n 19 python -m scripts.train_demo.train_vocoder --steps 40000 --alone 12000

A loss of spectra alone leaves a buzz: it has no notion of a phase that sounds natural. The discriminator looks at complex
spectra of two resolutions, as narrow as a CPU affords. Recordings that are made meanwhile are read as they come.
Source of the losses: Vocos, https://arxiv.org/abs/2306.00814; UnivNet, https://arxiv.org/abs/2106.07889.
"""

import argparse
import json
import math
import random
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from pipeline.paths import cache_home
from scripts.train_demo.corpus import log_mel
from scripts.train_demo.recordings import HELD_OUT, load
from scripts.train_demo.train_vocos import HOP, Vocos, loss

WIDTH, LAYERS = 352, 6
CROP_FRAMES, ROWS = 64, 12
WARM_UP_STEPS, LAST_PART, REPORT_STEPS = 200, 0.3, 250  # of all steps, the part in which the rate falls to zero
RATE, DISCRIMINATOR_RATE = 1e-3, 4e-4
MATCHING_WEIGHT, ADVERSARIAL_WEIGHT = 1.0, 0.5
RESOLUTIONS = ((512, 128), (1280, 320))  # window, hop
CHANNELS = 16
KEPT_SHARDS = 12  # in memory at once; another one comes in every REFRESH_STEPS
REFRESH_STEPS = 100


class SpectrumCritic(nn.Module):
    """Judges the complex spectrum of one resolution."""

    def __init__(self, window: int, hop: int) -> None:
        super().__init__()
        self.hop = hop
        self.register_buffer("window", torch.hann_window(window), persistent=False)
        strides = (1, 2, 2, 2, 1)
        inputs = (2, *[CHANNELS] * (len(strides) - 1))
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(width, CHANNELS, (7, 5) if at == 0 else (5, 3), (stride, 1), (3, 2) if at == 0 else (2, 1)))
            for at, (width, stride) in enumerate(zip(inputs, strides, strict=True))
        )
        self.last = weight_norm(nn.Conv2d(CHANNELS, 1, 3, padding=1))

    def forward(self, samples: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Maps samples (B, n) to scores and the features of each layer."""
        window = self.window
        assert isinstance(window, Tensor)
        spectrum = torch.stft(samples, len(window), self.hop, window=window, return_complex=True, normalized=True)
        x, features = torch.view_as_real(spectrum).permute(0, 3, 1, 2), []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
            features.append(x)
        return self.last(x), features


class Critic(nn.Module):
    """One judge for each resolution."""

    def __init__(self) -> None:
        super().__init__()
        self.judges = nn.ModuleList(SpectrumCritic(*resolution) for resolution in RESOLUTIONS)

    def forward(self, samples: Tensor) -> list[tuple[Tensor, list[Tensor]]]:
        """Maps samples (B, n) to the verdicts of all judges."""
        return [judge(samples) for judge in self.judges]


def critic_loss(critic: Critic, ours: Tensor, wanted: Tensor) -> Tensor:
    """Returns the hinge loss of a critic that tells originals from copies."""
    verdicts = zip(critic(wanted), critic(ours.detach()), strict=True)
    return torch.stack([F.relu(1 - true).mean() + F.relu(1 + false).mean() for (true, _), (false, _) in verdicts]).mean()


def persuasion_loss(critic: Critic, ours: Tensor, wanted: Tensor) -> Tensor:
    """Returns how far copies are from passing for originals, in scores and in features."""
    total = torch.zeros(())
    for (score, features), (_, expected) in zip(critic(ours), critic(wanted), strict=True):
        matching = torch.stack([F.l1_loss(x, y.detach()) for x, y in zip(features, expected, strict=True)]).mean()
        total = total + ADVERSARIAL_WEIGHT * F.relu(1 - score).mean() + MATCHING_WEIGHT * matching
    return total / len(RESOLUTIONS)


class Waves:
    """The recordings' samples, a few shards at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waves: dict[Path, list[Tensor]] = {}

    def refresh(self, draw: random.Random) -> None:
        """Takes one more shard in, and the oldest one out where there are too many.

        Raises:
            FileNotFoundError: there is no shard to learn from yet.
        """
        paths = [path for path in sorted(self._folder.glob("[0-9]*.npz")) if path.stem.isdigit() and int(path.stem) != HELD_OUT]
        if not paths:
            raise FileNotFoundError(f"{self._folder} has no shard besides the held-out one: run scripts.train_demo.recordings")
        fresh = [path for path in paths if path not in self._waves]
        if fresh:
            chosen = draw.choice(fresh)
            self._waves[chosen] = _samples(chosen)
        if len(self._waves) > KEPT_SHARDS:
            del self._waves[next(iter(self._waves))]

    def crops(self, draw: random.Random) -> tuple[Tensor, Tensor]:
        """Returns a batch of random crops, as `crops` does."""
        return crops([wave for waves in self._waves.values() for wave in waves], draw)


def _samples(path: Path) -> list[Tensor]:
    return [torch.from_numpy(np.array(one.samples)) for one in load(path)]


@cache
def held_out(folder: Path) -> list[Tensor]:
    """Returns the samples of the held-out shard."""
    return _samples(folder / f"{HELD_OUT:04d}.npz")


def crops(waves: list[Tensor], draw: random.Random) -> tuple[Tensor, Tensor]:
    """Returns mel frames (ROWS, 100, CROP_FRAMES), and the samples between the middles of the first and the last frame.

    Each crop has a loudness of its own, so that no level is special.
    """
    chosen: list[Tensor] = []
    while len(chosen) < ROWS:
        wave = draw.choice(waves)
        if len(wave) > (CROP_FRAMES + 1) * HOP:
            begin = draw.randrange(len(wave) - CROP_FRAMES * HOP)
            chosen.append(wave[begin : begin + CROP_FRAMES * HOP].float() / 32767 * draw.uniform(0.5, 1.2))
    samples = torch.stack(chosen).clamp(-1, 1)
    return log_mel(samples), samples[:, : (CROP_FRAMES - 1) * HOP]


def rate_at(step: int, steps: int) -> float:
    """Returns the share of the highest rate: a warm-up, a plateau, and a fall to zero in the last part."""
    return min(1.0, (step + 1) / WARM_UP_STEPS, (steps - step) / (LAST_PART * steps))


class Trainer:
    """The generator, the critic and their optimisers, which one file holds."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.model, self.critic = Vocos(WIDTH, LAYERS), Critic()
        self._optimisers = {
            "model": torch.optim.AdamW(self.model.parameters(), RATE, betas=(0.8, 0.99)),
            "critic": torch.optim.AdamW(self.critic.parameters(), DISCRIMINATOR_RATE, betas=(0.8, 0.99)),
        }
        self.step = 0
        if file.exists():
            saved = torch.load(file)
            self.step = saved["steps"]
            for name, part in (("model", self.model), ("critic", self.critic)):
                part.load_state_dict(saved[name])
                self._optimisers[name].load_state_dict(saved[f"{name}_optimiser"])

    def learn(self, mel: Tensor, wanted: Tensor, *, share: float, is_alone: bool) -> None:
        """Makes one step of the generator, and one of the critic unless the generator still learns alone."""
        ours = self.model(mel)
        total, _ = loss(ours, wanted)
        if not is_alone:
            total = total + persuasion_loss(self.critic, ours, wanted)
        self._descend("model", self.model, total, RATE * share)
        if not is_alone:
            self._descend("critic", self.critic, critic_loss(self.critic, ours, wanted), DISCRIMINATOR_RATE * share)
        self.step += 1

    def _descend(self, name: str, part: nn.Module, total: Tensor, rate: float) -> None:
        optimiser = self._optimisers[name]
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(part.parameters(), 5.0)
        optimiser.step()

    def save(self) -> None:
        """Writes the state whole or not at all."""
        state = {"model": self.model.state_dict(), "critic": self.critic.state_dict(), "steps": self.step}
        state |= {f"{name}_optimiser": one.state_dict() for name, one in self._optimisers.items()}
        draft = self.file.with_suffix(".draft")
        torch.save(state, draft)
        draft.rename(self.file)


def main() -> None:
    """Trains until the number of steps is reached; goes on where it was stopped."""
    parser = argparse.ArgumentParser(description="Train the vocoder on the neural teacher's recordings.")
    parser.add_argument("--folder", type=Path, default=cache_home() / "train")
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--alone", type=int, default=12_000, help="steps before the discriminator")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    trainer, waves = Trainer(args.folder / "vocoder.pt"), Waves(args.folder / "recordings")
    draw = random.Random(f"{args.seed}/{trainer.step}")
    for _ in range(KEPT_SHARDS):
        waves.refresh(draw)
    began, first = time.monotonic(), trainer.step
    while trainer.step < args.steps:
        mel, wanted = waves.crops(draw)
        trainer.learn(mel, wanted, share=rate_at(trainer.step, args.steps), is_alone=trainer.step < args.alone)
        if trainer.step % REFRESH_STEPS == 0:
            waves.refresh(draw)
        if trainer.step % REPORT_STEPS == 0 or trainer.step == args.steps:
            report(trainer, args.folder, args.steps, (time.monotonic() - began) / (trainer.step - first))


def report(trainer: Trainer, folder: Path, steps: int, pace_s: float) -> None:
    """Saves the state, and prints the loss of held-out crops and the hours that are left."""
    with torch.no_grad():
        mel, wanted = crops(held_out(folder / "recordings"), random.Random(0))
        parts = {name: round(value, 4) for name, value in loss(trainer.model(mel), wanted)[1].items()}
    assert all(map(math.isfinite, parts.values())), "the losses are no numbers any more: lower the rate"
    trainer.save()
    line = json.dumps(
        {"steps": trainer.step, "held_out": parts, "hours_left": round((steps - trainer.step) * pace_s / 3600, 1)}
    )
    print(line, flush=True)
    with trainer.file.with_suffix(".jsonl").open("a") as log:
        log.write(line + "\n")


if __name__ == "__main__":
    main()
