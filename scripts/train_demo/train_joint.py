"""Train joint: trains the mel decoder and the vocoder together, on the hidden states of the GPT.

In:    gpt.pt, vocoder.pt, coder.pt, chunks of recordings
Out:   gpt.pt and vocoder.pt with decoder and vocoder in their new state, joint.jsonl
Owns:  the schedule
Never: the GPT, which stays as it is

    python -m scripts.train_demo.train_joint $CHATTTS_HOME/train --seconds 110 --device cuda

A decoder that is trained for the mean error of its frames blurs them, and a vocoder that has seen recorded frames alone says
blurred ones with a buzz. Trained as one towards the samples, with the judges, both lose that. A third of a batch are recorded
frames, so that the vocoder still copies recordings.
"""

import argparse
import random
import time
from pathlib import Path

import torch
from torch import Tensor

from pipeline.spec import MEL_FRAMES_PER_STEP
from scripts.train_demo.adversarial import Contest
from scripts.train_demo.bank import Bank, tables_of
from scripts.train_demo.network import Size, Speaking
from scripts.train_demo.read_plan import PLAN
from scripts.train_demo.train_gpt import open_coder
from scripts.train_demo.train_vocoder import FRAMES, REPORT_S, figures, held_out
from scripts.train_demo.training import Schedule, allow_tf32, autocast, report, save
from scripts.train_demo.vocoder import Critic, Vocos

ROWS = 20
COPIED_SHARE = 0.4  # recorded frames for each decoded crop
AROUND = 6  # steps of context on both sides of what is decoded
POSITIONS = 12_000
NOISE = 0.25
MEL_WEIGHT = 12.0  # of the decoder's own frames
CROPPED = FRAMES // MEL_FRAMES_PER_STEP
LEAST = CROPPED + 2 * AROUND


class Joint:
    """The decoder and the vocoder, behind a GPT."""

    def __init__(self, folder: Path, device: str, recordings: int | None, rows: int = ROWS) -> None:
        self._rows, self._copied = rows, max(1, round(COPIED_SHARE * rows))
        self.gpt_state, self.vocoder_state = (
            torch.load(folder / name, map_location=device) for name in ("gpt.pt", "vocoder.pt")
        )
        size = Size(**self.gpt_state["size"])
        self.bank = Bank(folder / "chunks", device, size.width, recordings)
        coder, coef = open_coder(folder, self.bank)
        self.bank.encode(coder)
        self.speaking = Speaking(size, coef, tables_of(folder / PLAN)).to(device)
        self.speaking.load_state_dict(self.gpt_state["model"])
        self.vocoder, critic = Vocos().to(device), Critic().to(device)
        self.vocoder.load_state_dict(self.vocoder_state["model"])
        critic.load_state_dict(self.vocoder_state["critic"])
        learned = [*self.speaking.mel_decoder.parameters(), *self.vocoder.parameters()]
        self.contest = Contest(learned, critic, self._generate, device)
        self._device = device

    def _generate(self, states: Tensor, mel: Tensor, copied: Tensor) -> tuple[Tensor, Tensor]:
        """Maps states (rows, steps, width) and recorded frames to samples, and to the distance of the decoded frames."""
        decoded = self.speaking.mel_decoder(states)[:, :, MEL_FRAMES_PER_STEP * AROUND : -MEL_FRAMES_PER_STEP * AROUND]
        return self.vocoder(torch.cat([decoded, copied])), MEL_WEIGHT * (decoded - mel).abs().mean()

    @torch.no_grad()
    def inputs(self, numbers: list[int]) -> tuple[Tensor, ...]:
        """Returns original samples, states, their frames and recorded frames of a batch of recordings."""
        with autocast(self._device):
            batch = self.bank.batch(numbers, NOISE)
            hidden, _ = self.speaking.trunk(self.speaking.embed(batch.tokens, batch.codes, batch.is_code, batch.speakers))
        group = torch.tensor(numbers, device=self._device)
        more = (self.bank.step_counts[group] - LEAST).float()
        rows = torch.multinomial(more + 1, self._rows, replacement=True)
        offset = (torch.rand(self._rows, device=self._device) * more[rows]).long()
        places = (self.bank.token_counts[group][rows] - 1 + offset)[:, None] + torch.arange(LEAST, device=self._device)
        states = hidden[rows[:, None], places].float()
        first = (self.bank.first_steps[group][rows] + offset + AROUND)[:, None]
        mel, samples = self.bank.crops_at(first, FRAMES, is_louder=False)
        copied, originals = self.bank.crops(self._copied, FRAMES)
        return torch.cat([samples, originals]), states, mel, copied

    def save(self, folder: Path) -> None:
        """Writes both states."""
        save(folder / "gpt.pt", self.gpt_state | {"model": self.speaking.state_dict()})
        save(folder / "vocoder.pt", self.vocoder_state | {"model": self.vocoder.state_dict(), **self.contest.state()})


def main() -> None:
    """Trains until the time is over."""
    parser = argparse.ArgumentParser(description="Train the mel decoder and the vocoder as one.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--positions", type=int, default=POSITIONS, help="of a batch")
    parser.add_argument("--rows", type=int, default=ROWS, help="crops of a step")
    parser.add_argument("--recordings", type=int, help="to read; default: all")
    args = parser.parse_args()
    torch.manual_seed(2)
    allow_tf32()
    joint = Joint(args.folder, args.device, args.recordings, args.rows)
    schedule, last, step, passes = Schedule(args.seconds, last_part=0.6), time.monotonic(), 0, 0
    while schedule.progress < 1:
        for group in joint.bank.groups(args.positions, random.Random(f"joint {passes}"), LEAST):
            parts = joint.contest.learn(joint.inputs(group), share=0.5 * schedule.share(step), is_alone=False)
            step += 1
            if time.monotonic() - last > REPORT_S:
                last = time.monotonic()
                report(args.folder, "joint", figures(step, schedule.progress, parts, held_out(joint.vocoder, joint.bank)))
            if schedule.progress >= 1:
                break
        passes += 1
    joint.save(args.folder)
    report(args.folder, "joint", figures(step, 1.0, parts, held_out(joint.vocoder, joint.bank)))


if __name__ == "__main__":
    main()
