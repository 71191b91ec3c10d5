"""Train GPT: trains the GPT from text to codes, and its mel decoder from hidden states to mel frames.

In:    a plan's tables, chunks of recordings
Out:   gpt.pt (resumes from it), coder.pt, gpt.jsonl
Owns:  the losses, the optimisers
Never: the checkpoint's layout; the batches (bank.py)

    python -m scripts.train_demo.train_gpt $CHATTTS_HOME/train --seconds 220 --device cuda

It learns from few examples because text tokens are phones; two heads are shown the current place in the text; the hidden
state must name the phone; and the codes it reads are distorted a little, as its own will be during synthesis.
"""

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scripts.train_demo.bank import HELD_OUT, Bank, Batch, tables_of
from scripts.train_demo.codes import Coder
from scripts.train_demo.muon import Muon
from scripts.train_demo.network import IGNORED, Size, Speaking
from scripts.train_demo.read_plan import PLAN
from scripts.train_demo.training import Schedule, allow_tf32, autocast, report, save

BOOK_WEIGHTS = (1.0, 0.2, 0.6, 0.2)
MEL_WEIGHT = 1.0
GUIDE_WEIGHT = 0.5
PHONE_WEIGHT = 0.3
# Of the logits' scale: at 0 the likeliest code's logit is near 0, and the repetition penalty, a factor, leaves it there.
SCALE_WEIGHT = 0.02
MEL_SHARE = 2  # one in this many recordings is decoded to mel frames
RATE, MATRIX_RATE = 2e-3, 1.2e-2  # AdamW: embeddings, heads, mel decoder; Muon: the layers' matrices
NOISE = 0.4  # largest share of a recording's codes that is distorted
REPORT_S = 10.0


def losses(model: Speaking, batch: Batch, bank: Bank, mel_share: int = MEL_SHARE) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the sum that is minimised, and its parts by name."""
    x = model.embed(batch.tokens, batch.codes, batch.is_code, batch.speakers)
    hidden, guided = model.trunk(x, batch.guide)
    entropies, scales, hits = model.entropies(hidden, batch.targets)
    phone = F.cross_entropy(model.head_phone(hidden).float().flatten(0, 1), batch.phones.flatten(), ignore_index=IGNORED)
    decoded = -(-len(hidden) // mel_share)
    mel = mel_loss(model, hidden[:decoded], batch, bank)
    is_guided = batch.is_step & (batch.guide.amax(-1) > 0)
    guide = torch.stack([-((right + 1e-5).log() * is_guided).sum() / is_guided.sum() for right in guided]).mean()
    books = ((entropies + SCALE_WEIGHT * scales) * entropies.new_tensor(BOOK_WEIGHTS)).sum() / sum(BOOK_WEIGHTS)
    total = books + MEL_WEIGHT * mel + GUIDE_WEIGHT * guide + PHONE_WEIGHT * phone
    parts = {f"book {book}": entropy for book, entropy in enumerate(entropies)}
    parts |= {"accuracy": hits[0], "mel": mel, "guide": guide, "phone": phone}
    return total, {name: part.detach() for name, part in parts.items()}


def mel_loss(model: Speaking, hidden: Tensor, batch: Batch, bank: Bank) -> Tensor:
    """Returns the distance between decoded and recorded frames, of the first rows of a batch (b, N, width)."""
    is_step, steps_at = batch.is_step[: len(hidden)], batch.steps_at[: len(hidden)]
    generated = model.mel_decoder(hidden * is_step[..., None]).float()
    is_frame = is_step.repeat_interleave(2, 1)[:, None]
    distance: Tensor = ((generated - bank.frames_at(steps_at)).abs() * is_frame).sum() / (is_frame.sum() * generated.shape[1])
    return distance


def open_coder(folder: Path, bank: Bank) -> tuple[Coder, Tensor]:
    """Returns the coder and each band's mean magnitude: of the file, else fitted to the bank."""
    path = folder / "coder.pt"
    if not path.exists():
        coder, coef = bank.fitted()
        save(path, {"weight": coder.weight, "bias": coder.bias, "coef": coef})
    saved = torch.load(path, map_location="cpu")
    return Coder(saved["weight"], saved["bias"]), saved["coef"]


class Training:
    """One run, resumed from its last saved state."""

    def __init__(self, folder: Path, size: Size, device: str, seconds: float, recordings: int | None) -> None:
        torch.manual_seed(1)
        self._folder, self._device = folder, device
        file = folder / "gpt.pt"
        saved = torch.load(file, map_location="cpu") if file.exists() else None
        self.size = Size(**saved["size"]) if saved else size
        self.bank = Bank(folder / "chunks", device, self.size.width, recordings)
        coder, coef = open_coder(folder, self.bank)
        self.bank.encode(coder)
        self.model = Speaking(self.size, coef, tables_of(folder / PLAN)).to(device)
        matrices = [p for p in self.model.layers.parameters() if p.dim() == 2]
        known = {id(p) for p in matrices}
        others = [p for p in self.model.parameters() if id(p) not in known]
        self._optimisers: tuple[torch.optim.Optimizer, ...] = (
            Muon(matrices, MATRIX_RATE, weight_decay=0.02, dtype=torch.bfloat16 if device != "cpu" else torch.float32),
            torch.optim.AdamW(others, lr=RATE, betas=(0.9, 0.97), weight_decay=0.01, fused=True),
        )
        self._steps = self._passes = self._positions = 0
        trained_s = 0.0
        if saved:
            self.model.load_state_dict(saved["model"])
            for optimiser, state in zip(self._optimisers, saved["optimisers"], strict=True):
                optimiser.load_state_dict(state)
            self._steps, self._passes, self._positions = saved["steps"], saved["passes"], saved["positions"]
            trained_s = saved["trained_s"]
        self._schedule = Schedule(seconds, trained_s)
        print(f"gpt: {len(self.bank.texts)} recordings, {self.bank.hours:.2f} hours", flush=True)

    def run(self, positions: int) -> None:
        """Trains until the time is over."""
        last = time.monotonic()
        for group in self._groups(positions):
            self._learn(group)
            if time.monotonic() - last > REPORT_S:
                last = time.monotonic()
                self._report()
            if self._schedule.progress >= 1:
                break
        self._report()
        self.save()

    def _groups(self, positions: int) -> Iterator[list[int]]:
        while True:
            yield from self.bank.groups(positions, random.Random(f"pass {self._passes}"))
            self._passes += 1

    def _learn(self, group: list[int]) -> None:
        share = self._schedule.share(self._steps)
        for optimiser, rate in zip(self._optimisers, (MATRIX_RATE, RATE), strict=True):
            for settings in optimiser.param_groups:
                settings["lr"] = rate * share
        self.model.train()
        with autocast(self._device):
            batch = self.bank.batch(group, NOISE)
            total, self._parts = losses(self.model, batch, self.bank)
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        for optimiser in self._optimisers:
            optimiser.step()
            optimiser.zero_grad()
        self._steps += 1
        self._positions += batch.tokens.numel()

    @torch.no_grad()
    def _report(self) -> None:
        """Measures the held-out losses, without noise, and writes a line."""
        self.model.eval()
        with autocast(self._device):
            batch = self.bank.batch(list(range(min(HELD_OUT, len(self.bank.texts)))), 0.0)
            judged = losses(self.model, batch, self.bank, 1)[1]
        line: dict[str, Any] = {
            "seconds": round(self._schedule.trained_s, 1),
            "positions": self._positions,
            "steps": self._steps,
            "passes": self._passes,
            "learned": {name: round(value.item(), 3) for name, value in self._parts.items()},
            "held_out": {name: round(value.item(), 3) for name, value in judged.items()},
        }
        report(self._folder, "gpt", line)

    def save(self) -> None:
        """Writes the state."""
        state = {
            "model": self.model.state_dict(),
            "size": asdict(self.size),
            "optimisers": [optimiser.state_dict() for optimiser in self._optimisers],
            "steps": self._steps,
            "passes": self._passes,
            "positions": self._positions,
            "trained_s": self._schedule.trained_s,
        }
        save(self._folder / "gpt.pt", state)


def main() -> None:
    """Trains until the time is over."""
    parser = argparse.ArgumentParser(description="Train the GPT and its mel decoder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--positions", type=int, default=16_000, help="of a batch")
    parser.add_argument("--recordings", type=int, help="to read; default: all")
    for name, default in asdict(Size()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    args = parser.parse_args()
    allow_tf32()
    size = Size(**{name: getattr(args, name) for name in asdict(Size())})
    Training(args.folder, size, args.device, args.seconds, args.recordings).run(args.positions)


if __name__ == "__main__":
    main()
