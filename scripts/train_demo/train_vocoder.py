"""Train vocoder: mel frames to the waveform, first by spectra alone, then beside judges.

In:    chunks of the neural teacher's recordings
Out:   vocoder.pt (resumes from it), vocoder.jsonl
Owns:  the schedule
Never: the losses (adversarial.py), the checkpoint's layout

    python -m scripts.train_demo.train_vocoder $CHATTTS_HOME/train --seconds 230 --device cuda
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scripts.train_demo.adversarial import Contest, spectral_loss
from scripts.train_demo.bank import HELD_OUT, Bank
from scripts.train_demo.training import Schedule, allow_tf32, report, save
from scripts.train_demo.vocoder import Critic, Vocos

ROWS, FRAMES = 24, 64
ALONE = 0.12  # part of the training without judges
REPORT_S = 10.0


def main() -> None:
    """Trains until the time is over; goes on where it was stopped."""
    parser = argparse.ArgumentParser(description="Train the vocoder on the neural teacher's recordings.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--recordings", type=int, help="to read; default: all")
    args = parser.parse_args()
    torch.manual_seed(1)
    allow_tf32()
    file = args.folder / "vocoder.pt"
    saved = torch.load(file, map_location=args.device) if file.exists() else None
    model, critic = Vocos().to(args.device), Critic().to(args.device)
    if saved:
        model.load_state_dict(saved["model"])
        critic.load_state_dict(saved["critic"])
    bank = Bank(args.folder / "chunks", args.device, 8, args.recordings)
    contest = Contest(model.parameters(), critic, lambda mel: (model(mel), mel.new_zeros(())), args.device)
    step = saved["steps"] if saved else 0
    schedule, last = Schedule(args.seconds, saved["trained_s"] if saved else 0.0), time.monotonic()
    print(f"vocoder: {len(bank.texts)} recordings, {bank.hours:.2f} hours", flush=True)
    while (progress := schedule.progress) < 1:
        mel, samples = bank.crops(args.rows, FRAMES)
        parts = contest.learn((samples, mel), share=schedule.share(step), is_alone=progress < ALONE)
        step += 1
        if time.monotonic() - last > REPORT_S:
            last = time.monotonic()
            report(args.folder, "vocoder", figures(step, progress, parts, held_out(model, bank)))
    save(file, {"model": model.state_dict(), "steps": step, "trained_s": schedule.trained_s, **contest.state()})
    report(args.folder, "vocoder", figures(step, 1.0, parts, held_out(model, bank)))


@torch.no_grad()
def held_out(model: Vocos, bank: Bank) -> dict[str, float]:
    """Returns the losses of a crop of each held-out recording."""
    numbers = torch.tensor([n for n in range(min(HELD_OUT, len(bank.texts))) if bank.step_counts[n] > FRAMES // 2])
    first = bank.first_steps[numbers.to(bank.device)][:, None]
    mel, samples = bank.crops_at(first, FRAMES, is_louder=False)
    return _rounded(spectral_loss(model(mel), samples)[1])


def figures(step: int, progress: float, learned: dict[str, Tensor], judged: dict[str, float]) -> dict[str, Any]:
    """Returns a line of the log."""
    line: dict[str, Any] = {"steps": step, "progress": round(progress, 3), "learned": _rounded(learned), "held_out": judged}
    assert all(map(math.isfinite, line["learned"].values())), f"the losses are no numbers any more: {line}"
    return line


def _rounded(parts: dict[str, Tensor]) -> dict[str, float]:
    return {name: round(value.item(), 4) for name, value in parts.items()}


if __name__ == "__main__":
    main()
