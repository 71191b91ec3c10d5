"""Train DVAE: trains the DVAE, from recordings to the coder's codes, and from codes to mel frames.

In:    chunks of recordings, coder.pt
Out:   dvae.pt (resumes from it), dvae.jsonl
Owns:  the losses
Never: the checkpoint's layout

    python -m scripts.train_demo.train_dvae $CHATTTS_HOME/train --seconds 900

The encoder learns the eight numbers that are rounded to codes, so a recording gets the codes that the GPT was taught.
`use_decoder: false` uses the decoder.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scripts.train_demo.bank import Bank
from scripts.train_demo.codes import Coder, quantise
from scripts.train_demo.dvae import Dvae
from scripts.train_demo.train_gpt import open_coder
from scripts.train_demo.training import Schedule, save

FRAMES, ROWS = 128, 12
RATE = 2e-3
REPORT_S = 60.0


def losses(model: Dvae, coder: Coder, mel: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Returns the loss of mel frames (B, 100, 2 T) and its parts by name."""
    numbers = torch.stack([coder.numbers(frames.T.reshape(-1, 200)) for frames in mel])
    codes = model.encode(mel)
    inner = slice(2, -2)  # the ends of a crop are not the ends of an utterance
    encoding = F.smooth_l1_loss(codes[:, inner], numbers[:, inner])
    decoding = (model.decode(quantise(numbers)) - mel).abs().mean()
    is_right = quantise(codes[:, inner].detach()) == quantise(numbers[:, inner])
    parts = {"encoding": encoding.item(), "decoding": decoding.item()}
    parts |= {f"right {book}": share for book, share in enumerate(is_right.float().mean((0, 1)).tolist())}
    return encoding + decoding, parts


def main() -> None:
    """Trains until the time is over; goes on where it was stopped."""
    parser = argparse.ArgumentParser(description="Train the DVAE.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--recordings", type=int, default=2000, help="to read: enough for networks this small")
    args = parser.parse_args()
    torch.manual_seed(3)
    bank = Bank(args.folder / "chunks", "cpu", 8, args.recordings)
    coder, coef = open_coder(args.folder, bank)
    file, model = args.folder / "dvae.pt", Dvae(coef)
    saved: dict[str, Any] = torch.load(file) if file.exists() else {"steps": 0, "trained_s": 0.0}
    if "model" in saved:
        model.load_state_dict(saved["model"])
    optimiser = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.98))
    step, schedule, last = saved["steps"], Schedule(args.seconds, saved["trained_s"]), time.monotonic()
    while schedule.progress < 1:
        optimiser.param_groups[0]["lr"] = RATE * schedule.share(step)
        total, parts = losses(model, coder, bank.crops(ROWS, FRAMES)[0])
        optimiser.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step += 1
        if time.monotonic() - last > REPORT_S or schedule.progress >= 1:
            last = time.monotonic()
            print("dvae", json.dumps({"steps": step} | {name: round(value, 3) for name, value in parts.items()}), flush=True)
            save(file, {"model": model.state_dict(), "steps": step, "trained_s": schedule.trained_s})


if __name__ == "__main__":
    main()
