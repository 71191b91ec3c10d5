"""Batches: the corpus's shards as padded batches for training the GPT.

In:    the corpus's shards
Out:   Batch; work/coder.pt, fitted to the first shards
Owns:  the noise on codes and on speakers
Never: the model, the losses
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from scripts.train_demo.codes import BOOKS, CODES, END, PARTS, Coder, fit
from scripts.train_demo.corpus import VOCABULARY, Example, load_shard
from scripts.train_demo.network import speaker_vectors
from scripts.train_demo.teacher import SPEAKERS
from scripts.train_demo.warm_start import coder_of

GUIDE_WIDTH = 0.7  # tokens
SPEAKER_NOISE = 0.02
MEL_SHARE = 3  # one in this many sentences is decoded to mel frames
FIT_SHARDS = 2
LANGUAGES = ("english", "mandarin")


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """An example prepared for training."""

    tokens: Tensor
    codes: Tensor
    mel: Tensor
    spoken: Tensor
    sound: Tensor  # row of the vocabulary at every step
    speaker: int

    @property
    def length(self) -> int:
        """Returns the number of positions."""
        return len(self.tokens) + len(self.codes)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B sentences of N positions; M of them, counted over all sentences, predict a step or the end."""

    tokens: Tensor  # (B, N)
    codes: Tensor  # (B, N, 4), distorted
    is_code: Tensor  # (B, N)
    speakers: Tensor  # (B, width)
    predicting: Tensor  # (M,): index into all B x N positions
    targets: Tensor  # (M, 4)
    phones: Tensor  # (M,); -100 at an end
    guide: Tensor  # (B, N, N): how well each token fits; zero where no step is predicted
    places: Tensor  # (B / MEL_SHARE, T): of the positions, those that predict a step
    mel: Tensor  # (B / MEL_SHARE, T, 200)
    is_step: Tensor  # (B / MEL_SHARE, T)


def classes(example: Example) -> Tensor:
    """Returns the class of every step: which part of which phone it is."""
    inside = (example.spoken.float() + 0.5) % 1
    return example.sound.long() * PARTS + (inside * PARTS).long().clamp(max=PARTS - 1)


def open_coder(work: Path, source: Path | None = None) -> tuple[Coder, Tensor]:
    """Returns the coder and each band's mean magnitude: of the file, else of a checkpoint, else fitted to the first shards."""
    path = work / "coder.pt"
    if not path.exists():
        examples = [one for number in range(1, 1 + FIT_SHARDS) for one in load_shard(work / "corpus" / f"{number:03d}.pt")]
        coder, coef = coder_of(source, examples) if source else _fitted(examples)
        torch.save({"weight": coder.weight, "bias": coder.bias, "coef": coef}, path)
    saved = torch.load(path)
    return Coder(saved["weight"], saved["bias"]), saved["coef"]


def _fitted(examples: list[Example]) -> tuple[Coder, Tensor]:
    frames = torch.cat([one.mel.view(-1, 100) for one in examples]).float()
    coder = fit([one.mel for one in examples], [classes(one) for one in examples])
    return coder, frames.mean(0).abs().clamp(min=1.0)


def items(path: Path, coder: Coder) -> list[Item]:
    """Returns the examples of a shard."""
    return [
        Item(
            tokens=one.tokens.long(),
            codes=coder.codes(one.mel).short(),
            mel=one.mel,
            spoken=one.spoken.float(),
            sound=one.sound.long(),
            speaker=one.speaker,
        )
        for one in load_shard(path)
    ]


def by_language(data: list[Item]) -> dict[str, list[Item]]:
    """Returns the sentences without Mandarin, and those with some."""
    found: dict[str, list[Item]] = {language: [] for language in LANGUAGES}
    for one in data:
        found["mandarin" if bool((one.tokens >= len(VOCABULARY)).any()) else "english"].append(one)
    return found


def batches(data: list[Item], batch_tokens: int, draw: random.Random) -> Iterator[list[Item]]:
    """Yields the batches of one pass: sentences of similar length together, batches in random order, all of them full."""
    by_length: dict[int, list[Item]] = {}
    for one in data:
        by_length.setdefault(padded(one.length), []).append(one)
    groups: list[list[Item]] = []
    for length, alike in sorted(by_length.items()):
        rows = max(1, round(batch_tokens / length))
        draw.shuffle(alike)
        filled = list(islice(cycle(alike), -(-len(alike) // rows) * rows))
        groups += [filled[begin : begin + rows] for begin in range(0, len(filled), rows)]
    draw.shuffle(groups)
    yield from groups


def padded(length: int) -> int:
    """Returns the padded length, one of few: each shape is compiled once."""
    grain = 32 if length <= 256 else 64
    return -(-length // grain) * grain


def distort(codes: Tensor, other: Tensor, level: float) -> Tensor:
    """Returns codes (T, 4) as an unsure model might draw them: steps shifted in time or of another sentence, random codes."""
    steps = len(codes)
    fate = torch.rand(steps, 1)
    shifted = codes[(torch.arange(steps) + torch.randint(-2, 3, (steps,))).clamp(0, steps - 1)]
    foreign = other[torch.randint(len(other), (steps,))]
    codes = torch.where(fate < level * 0.5, shifted, codes)
    codes = torch.where((fate >= level * 0.5) & (fate < level * 0.8), foreign, codes)
    single = torch.rand(steps, BOOKS) < level * torch.tensor([0.2, 0.5, 0.3, 0.5])
    return torch.where(single, torch.randint(CODES, (steps, BOOKS)), codes)


def collate(group: list[Item], width: int, noise: float, draw: random.Random) -> Batch:
    """Pads a group to one batch."""
    rows = len(group)
    positions = padded(max(one.length for one in group))
    tokens = torch.zeros(rows, positions, dtype=torch.long)
    codes = torch.zeros(rows, positions, BOOKS, dtype=torch.long)
    is_code = torch.zeros(rows, positions, dtype=torch.bool)
    guide = torch.zeros(rows, positions, positions)
    predicting, targets, phones = [], [], []
    for row, one in enumerate(group):
        text, steps = len(one.tokens), len(one.codes)
        own = one.codes.long()
        tokens[row, :text] = one.tokens
        codes[row, text : text + steps] = distort(own, draw.choice(group).codes.long(), draw.random() * noise) if noise else own
        is_code[row, text : text + steps] = True
        predicting.append(torch.arange(text - 1, text + steps) + row * positions)
        targets.append(F.pad(own, (0, 0, 0, 1), value=END))
        phones.append(F.pad(one.sound, (0, 1), value=-100))
        distance = torch.arange(text)[None] - one.spoken[:, None]
        guide[row, text - 1 : text - 1 + steps, :text] = (-(distance**2) / (2 * GUIDE_WIDTH**2)).exp()
    decoded = group[: -(-rows // MEL_SHARE)]
    longest = max(len(one.codes) for one in decoded)
    places = torch.zeros(len(decoded), longest, dtype=torch.long)
    mel = torch.zeros(len(decoded), longest, 200)
    is_step = torch.zeros(len(decoded), longest)
    for row, one in enumerate(decoded):
        steps = len(one.codes)
        places[row, :steps] = torch.arange(steps) + len(one.tokens) - 1
        mel[row, :steps] = one.mel.float()
        is_step[row, :steps] = 1
    speakers = speaker_vectors(torch.tensor([SPEAKERS[one.speaker].place for one in group]), width)
    if noise:
        speakers += SPEAKER_NOISE * torch.randn_like(speakers)
    indices = (torch.cat(predicting), torch.cat(targets), torch.cat(phones))
    return Batch(tokens, codes, is_code, F.normalize(speakers), *indices, guide, places, mel, is_step)
