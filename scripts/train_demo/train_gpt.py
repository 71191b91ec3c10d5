"""Train GPT: trains the GPT from text to codes, and its mel decoder from hidden states to mel frames.

In:    the corpus's shards
Out:   work/gpt.pt (resumes from it), work/coder.pt, a log line per minute, work/gpt.png
Owns:  the losses, the schedule
Never: the checkpoint's layout; the batches (batches.py)

    python -m scripts.train_demo.train_gpt work --until 18:30            # ends at that time
    python -m scripts.train_demo.train_gpt work --tokens 200e6 --device cuda --batch-tokens 24000 --width 384 --layers 8

It learns from few examples because text tokens are phones; two heads are shown the current place in the text; the hidden
state must name the phone; and the codes it reads are distorted a little, as its own will be during synthesis.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from scripts.train_demo.batches import LANGUAGES, Batch, Item, batches, by_language, collate, items, open_coder
from scripts.train_demo.corpus import HELD_OUT
from scripts.train_demo.muon import Muon
from scripts.train_demo.network import Size, Speaking
from scripts.train_demo.plot import plot_log
from scripts.train_demo.warm_start import load_speaking

BOOK_WEIGHTS = (1.0, 0.2, 0.6, 0.2)
MEL_WEIGHT = 1.0
GUIDE_WEIGHT = 0.5
PHONE_WEIGHT = 0.3
# Of the logits' scale: at 0 the likeliest code's logit is near 0, and the repetition penalty, a factor, leaves it there.
SCALE_WEIGHT = 0.02
WARM_UP_STEPS = 100
DECAY = 0.35  # last part of the training in which the learning rate falls to zero
REPORT_S = 240.0
JUDGED_SENTENCES = 16  # of each language


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one run, from the flags of the command line."""

    seed: int = 1
    batch_tokens: int = 2400
    rate: float = 1.5e-3  # AdamW: embeddings, heads, mel decoder
    matrix_rate: float = 1.2e-2  # Muon: the layers' matrices
    noise: float = 0.4  # largest share of a sentence's steps that is distorted


def losses(model: Speaking, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the sum that is minimised, and its parts by name."""
    x = model.embed(batch.tokens, batch.codes, batch.is_code, batch.speakers)
    hidden, guided = model.trunk(x, batch.guide)
    voiced = hidden.flatten(0, 1)[batch.predicting]
    entropies, scales, hits = model.entropies(voiced, batch.targets)
    phone = F.cross_entropy(model.head_phone(voiced).float(), batch.phones)
    decoded, steps = batch.places.shape
    states = hidden[:decoded].gather(1, batch.places[..., None].expand(-1, -1, hidden.shape[-1]))
    generated = model.mel_decoder(states * batch.is_step[..., None]).float()
    wanted = batch.mel.view(decoded, 2 * steps, 100).transpose(1, 2)
    is_frame = batch.is_step.repeat_interleave(2, 1)[:, None]
    mel = ((generated - wanted).abs() * is_frame).sum() / (is_frame.sum() * 100)
    is_guided = batch.guide.amax(-1) > 0
    guide = torch.stack([-(right[is_guided] + 1e-5).log().mean() for right in guided]).mean()
    books = ((entropies + SCALE_WEIGHT * scales) * entropies.new_tensor(BOOK_WEIGHTS)).sum() / sum(BOOK_WEIGHTS)
    total = books + MEL_WEIGHT * mel + GUIDE_WEIGHT * guide + PHONE_WEIGHT * phone
    parts = {f"book {book}": entropy for book, entropy in enumerate(entropies)}
    parts |= {"accuracy": hits[0], "mel": mel, "guide": guide, "phone": phone}
    return total, {name: part.detach() for name, part in parts.items()}


class Clock:
    """The progress of a run, 0 .. 1: by tokens, or by the time of day at which it must end."""

    def __init__(self, tokens: float | None, until: str | None, trained_s: float) -> None:
        """`trained_s` is the duration of earlier runs, without the pauses between them [s]."""
        self._tokens = tokens
        self._began = time.time() - trained_s
        self._ends = _next(until) if until else None

    def progress(self, tokens: int) -> float:
        """Returns the progress now, after that many tokens."""
        by_tokens = tokens / self._tokens if self._tokens else 0.0
        by_time = (time.time() - self._began) / (self._ends - self._began) if self._ends else 0.0
        return min(1.0, max(by_tokens, by_time))


def _next(clock: str) -> float:
    now = datetime.now()
    then = datetime.combine(now.date(), datetime.strptime(clock, "%H:%M").time())
    return (then if then > now else then + timedelta(days=1)).timestamp()


def main() -> None:
    """Trains until the tokens or the time are used up."""
    parser = argparse.ArgumentParser(description="Train the GPT and its mel decoder.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--tokens", type=float, help="positions to learn from")
    parser.add_argument("--until", help="HH:MM, local time")
    parser.add_argument("--from", dest="source", type=Path, help="a checkpoint whose weights the run begins with")
    parser.add_argument("--languages", nargs="+", choices=LANGUAGES, default=LANGUAGES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="twice as fast after some minutes; needs a C++ compiler")
    for name, default in (asdict(Settings()) | asdict(Size())).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    args = parser.parse_args()
    if not args.tokens and not args.until:
        parser.error("give an end: --tokens, --until or both")
    settings = Settings(**{name: getattr(args, name) for name in asdict(Settings())})
    size = Size(**{name: getattr(args, name) for name in asdict(Size())})
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    training = Training(args.work, settings, size, args.device, args.source, args.languages)
    if args.compile:
        training.model.compile_parts()
    training.run(args.tokens, args.until)


class Training:
    """One run, resumed from its last saved state."""

    def __init__(
        self, work: Path, settings: Settings, size: Size, device: str, source: Path | None, languages: Sequence[str]
    ) -> None:
        self._work, self._settings, self._device, self._languages = work, settings, device, languages
        torch.manual_seed(settings.seed)
        self._coder, coef = open_coder(work, source)
        self._file = work / "gpt.pt"
        saved = torch.load(self._file, map_location="cpu") if self._file.exists() else None
        self._size = Size(**saved["size"]) if saved else size
        self.model = Speaking(self._size, coef).to(device)
        if source and not saved:
            load_speaking(self.model, source)
        matrices = [p for p in self.model.layers.parameters() if p.dim() == 2]
        known = {id(p) for p in matrices}
        others = [p for p in self.model.parameters() if id(p) not in known]
        self._optimisers: tuple[torch.optim.Optimizer, ...] = (
            Muon(
                matrices,
                settings.matrix_rate,
                weight_decay=0.02,
                dtype=torch.bfloat16 if self._has_bfloat16() else torch.float32,
            ),
            torch.optim.AdamW(others, lr=settings.rate, betas=(0.9, 0.97), weight_decay=0.01, fused=True),
        )
        self._rates = (settings.matrix_rate, settings.rate)
        self._tokens = self._steps = self._passes = self._in_pass = 0
        self._trained_s = 0.0
        if saved:
            self.model.load_state_dict(saved["model"])
            for optimiser, state in zip(self._optimisers, saved["optimisers"], strict=True):
                optimiser.load_state_dict(state)
            self._tokens, self._steps = saved["tokens"], saved["steps"]
            self._passes, self._in_pass = saved["passes"], saved["in_pass"]
            self._trained_s = saved["trained_s"]
        self._held_out = by_language(items(work / "corpus" / f"{HELD_OUT:03d}.pt", self._coder))
        self._data: dict[int, list[Item]] = {}

    def run(self, tokens: float | None, until: str | None) -> None:
        """Trains until the clock reaches 1."""
        clock = Clock(tokens, until, self._trained_s)
        last, count = time.time(), 0
        sums: dict[str, Tensor] = {}
        while True:
            self._load()
            order = random.Random(f"{self._settings.seed}/{self._passes}")
            groups = list(batches([one for shard in self._data.values() for one in shard], self._settings.batch_tokens, order))
            for group in groups[self._in_pass :]:
                # Seeded by the step, so an interrupted run learns the same.
                draw = random.Random(f"{self._settings.seed}/step {self._steps}")
                torch.manual_seed(draw.getrandbits(32))
                progress = clock.progress(self._tokens)
                self._set_rates(progress)
                self.model.train()
                with self._autocast():
                    total, parts = losses(
                        self.model, self._on_device(collate(group, self._size.width, self._settings.noise, draw))
                    )
                total.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                for optimiser in self._optimisers:
                    optimiser.step()
                    optimiser.zero_grad()
                self._steps += 1
                self._in_pass += 1
                self._tokens += sum(one.length for one in group)
                count += 1
                sums = {name: value + sums[name] if sums else value for name, value in parts.items()}
                if time.time() - last > REPORT_S or progress >= 1:
                    self._trained_s += time.time() - last
                    last = time.time()
                    self._report(progress, {name: value.item() / count for name, value in sums.items()})
                    sums, count = {}, 0
                    if progress >= 1:
                        return
            self._passes += 1
            self._in_pass = 0

    def _load(self) -> None:
        """Reads the shards that have been written since; every pass uses all there are."""
        for path in sorted((self._work / "corpus").glob("*.pt")):
            number = int(path.stem)
            if number != HELD_OUT and number not in self._data:
                read = by_language(items(path, self._coder))
                self._data[number] = [one for language in self._languages for one in read[language]]

    def _set_rates(self, progress: float) -> None:
        factor = min(1.0, (self._steps + 1) / WARM_UP_STEPS, max(0.0, (1 - progress) / DECAY))
        for optimiser, rate in zip(self._optimisers, self._rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.split(":")[0], torch.bfloat16, enabled=self._has_bfloat16())

    def _has_bfloat16(self) -> bool:
        """A CPU without instructions for bfloat16 computes it some fifty times slower than float32."""
        return self._device != "cpu" or torch.cpu._is_avx512_bf16_supported()

    def _on_device(self, batch: Batch) -> Batch:
        return replace(batch, **{name: getattr(batch, name).to(self._device) for name in Batch.__dataclass_fields__})

    def _report(self, progress: float, learned: dict[str, float]) -> None:
        """Measures the held-out losses, writes a log line and saves the state."""
        held_out = {
            language: self._measured(ones[:JUDGED_SENTENCES])
            for language, ones in self._held_out.items()
            if language in self._languages
        }
        line = {
            "minutes": round(self._trained_s / 60, 1),
            "tokens": self._tokens,
            "steps": self._steps,
            "passes": self._passes,
            "shards": len(self._data),
            "progress": round(progress, 3),
            "learned": {name: round(value, 3) for name, value in learned.items()},
            "held_out": held_out,
        }
        print(json.dumps(line), flush=True)
        with (self._work / "gpt.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        self._save()
        plot_log(self._work / "gpt.jsonl", self._work / "gpt.png")

    def _measured(self, ones: list[Item]) -> dict[str, float]:
        """Returns the losses of sentences, without noise."""
        self.model.eval()
        with torch.compiler.set_stance("force_eager"), torch.no_grad(), self._autocast():
            batch = collate(ones, self._size.width, 0.0, random.Random(0))
            parts = losses(self.model, self._on_device(batch))[1]
        return {name: round(value.item(), 3) for name, value in parts.items()}

    def _save(self) -> None:
        draft = self._file.with_suffix(".draft")
        torch.save(
            {
                "model": self.model.state_dict(),
                "size": asdict(self._size),
                "optimisers": [optimiser.state_dict() for optimiser in self._optimisers],
                "tokens": self._tokens,
                "steps": self._steps,
                "passes": self._passes,
                "in_pass": self._in_pass,
                "trained_s": self._trained_s,
            },
            draft,
        )
        draft.rename(self._file)


if __name__ == "__main__":
    main()
