"""Bank: all recordings in the memory of one device, and batches cut from them there.

In:    chunks of recordings
Out:   Bank: batches for the GPT, crops for the vocoder
Owns:  the coder fitted to the recordings; the noise on codes and on speakers
Never: losses

Everything is a tensor on the device: a batch costs it some gathering and the CPU nothing.
"""

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.spec import HOP, MEL_BANDS, MEL_FRAMES_PER_STEP, SAMPLE_RATE, SAMPLES_PER_STEP
from scripts.train_demo.codes import BOOKS, CODES, END, PARTS, Coder, fit
from scripts.train_demo.features import FLOOR, log_mel
from scripts.train_demo.network import IGNORED, Tables, speaker_vectors

GUIDE_WIDTH = 0.7  # tokens
SPEAKER_NOISE = 0.02
FITTED, HELD_OUT = 400, 8  # recordings
GRAIN = 64  # of the lengths of batches
LONGEST = 1024  # positions of a recording


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B recordings of N positions."""

    tokens: Tensor  # (B, N)
    codes: Tensor  # (B, N, 4), distorted
    is_code: Tensor  # (B, N)
    speakers: Tensor  # (B, width)
    targets: Tensor  # (B, N, 4): what a position predicts; IGNORED where it predicts nothing
    phones: Tensor  # (B, N): the sound of the step that a position predicts, or IGNORED
    guide: Tensor  # (B, N, N): how well each token fits; zero where no step is predicted
    steps_at: Tensor  # (B, N): of the bank's steps, the one that a position predicts
    is_step: Tensor  # (B, N): a position predicts a step


class Bank:
    """The recordings of a folder; the first HELD_OUT of the first chunk are not learned from."""

    def __init__(self, folder: Path, device: str, width: int, most: int | None = None) -> None:
        """
        Args:
            most: recordings to read; all of them if it is None.

        Raises:
            FileNotFoundError: the folder has no chunk.
        """
        paths = sorted(folder.glob("*.pt"))
        if not paths:
            raise FileNotFoundError(f"{folder} has no chunk of recordings: run scripts.train_demo.read_plan")
        chunks = []
        for path in paths:
            chunks.append(torch.load(path, map_location=device))
            if most and sum(len(chunk["step_counts"]) for chunk in chunks) >= most:
                break
        self.device, self._width = device, width
        self.texts = [text for chunk in chunks for text in chunk["texts"]]
        self.samples, self.spoken, self.sound, tokens, self._shares, self.token_counts, self.step_counts = (
            torch.cat([chunk[name] for chunk in chunks])
            for name in ("samples", "spoken", "sound", "tokens", "shares", "token_counts", "step_counts")
        )
        self.first_steps = self.step_counts.cumsum(0) - self.step_counts
        longest = int(self.token_counts.max())
        starts = self.token_counts.cumsum(0) - self.token_counts
        places = torch.arange(longest, device=device)[None]
        index = (starts[:, None] + places).clamp(max=len(tokens) - 1)
        self.tokens = torch.where(places < self.token_counts[:, None], tokens[index].long(), 0)
        self.lengths = self.token_counts + self.step_counts
        self._lengths = self.lengths.tolist()
        self._edges = [0, *self.step_counts.cumsum(0).tolist()]
        self.mel = torch.cat([self._mel(number) for number in range(len(self.texts))])
        self.codes = torch.empty(0)

    @property
    def hours(self) -> float:
        """How long the recordings are."""
        return len(self.samples) / SAMPLE_RATE / 3600

    def _mel(self, number: int) -> Tensor:
        """Returns the frames of a recording (2 steps, 100), in halves of bits."""
        steps = self.steps_of(number)
        samples = self.samples[steps.start * SAMPLES_PER_STEP : steps.stop * SAMPLES_PER_STEP]
        return log_mel(samples.float() / 32767).T.half()

    def steps_of(self, number: int) -> slice:
        """Returns which of the bank's steps are a recording's."""
        return slice(self._edges[number], self._edges[number + 1])

    def mel_of(self, number: int) -> Tensor:
        """Returns a recording's frames, two in a row (steps, 200)."""
        steps = self.steps_of(number)
        return self.mel[2 * steps.start : 2 * steps.stop].float().reshape(-1, 2 * MEL_BANDS)

    def encode(self, coder: Coder) -> None:
        """Gives every step its codes."""
        placed = Coder(coder.weight.to(self.device), coder.bias.to(self.device))
        self.codes = torch.cat([placed.codes(self.mel_of(number)) for number in range(len(self.texts))])

    def fitted(self) -> tuple[Coder, Tensor]:
        """Returns a coder fitted to the first recordings, and each band's mean magnitude."""
        mels = [self.mel_of(number).cpu() for number in range(min(FITTED, len(self.texts)))]
        classes = []
        for number in range(len(mels)):
            steps = self.steps_of(number)
            inside = (self.spoken[steps].float() + 0.5) % 1
            classes.append(self.sound[steps].long() * PARTS + (inside * PARTS).long().clamp(max=PARTS - 1))
        frames = torch.cat(mels).reshape(-1, MEL_BANDS)
        return fit(mels, [group.cpu() for group in classes]), frames.mean(0).abs().clamp(min=1.0)

    def groups(self, positions: int, draw: random.Random, least: int = 0) -> Iterator[list[int]]:
        """Yields the recordings of each batch of one pass: similar lengths together, in random order, all of them full.

        Args:
            positions: of a batch, about.
            least: steps of a recording.
        """
        lengths = self._lengths
        alike: dict[int, list[int]] = {}
        for number in range(HELD_OUT, len(lengths)):
            if lengths[number] <= LONGEST and self._edges[number + 1] - self._edges[number] >= least:
                alike.setdefault(_padded(lengths[number]), []).append(number)
        groups = []
        for length, numbers in sorted(alike.items()):
            rows = max(2, round(positions / length))
            draw.shuffle(numbers)
            numbers += draw.choices(numbers, k=-len(numbers) % rows)
            groups += [numbers[begin : begin + rows] for begin in range(0, len(numbers), rows)]
        draw.shuffle(groups)
        yield from groups

    def batch(self, numbers: list[int], noise: float) -> Batch:
        """Returns recordings as a batch; noise is the largest share of a recording's codes that are distorted."""
        rows = torch.tensor(numbers, device=self.device)
        texts, steps, firsts = self.token_counts[rows, None], self.step_counts[rows, None], self.first_steps[rows, None]
        size = _padded(max(self._lengths[number] for number in numbers))
        places = torch.arange(size, device=self.device)[None]
        is_code = (places >= texts) & (places < texts + steps)
        read = firsts + (places - texts).clamp(min=0).minimum(steps - 1)
        codes = self._distorted(read, firsts, steps, noise) if noise else self.codes[read]
        ahead = places - (texts - 1)
        is_step, is_end = (ahead >= 0) & (ahead < steps), ahead == steps
        predicted = firsts + ahead.clamp(min=0).minimum(steps - 1)
        targets = torch.where(is_step[..., None], self.codes[predicted], torch.where(is_end, END, IGNORED)[..., None])
        distance = places[:, None] - self.spoken[predicted].float()[..., None]
        guide = (-(distance**2) / (2 * GUIDE_WIDTH**2)).exp() * is_step[..., None] * (places < texts)[:, None]
        speakers = speaker_vectors(self._shares[rows], self._width)
        if noise:
            speakers = F.normalize(speakers + SPEAKER_NOISE * torch.randn_like(speakers))
        tokens = F.pad(self.tokens[rows], (0, max(0, size - self.tokens.shape[1])))[:, :size]
        phones = torch.where(is_step, self.sound[predicted].long(), IGNORED)
        return Batch(tokens, codes, is_code, speakers, targets, phones, guide, predicted, is_step)

    def _distorted(self, read: Tensor, firsts: Tensor, steps: Tensor, noise: float) -> Tensor:
        """Returns codes as an unsure model draws them: steps shifted in time or of another recording, random codes."""
        level = torch.rand(len(read), 1, device=self.device) * noise
        fate = torch.rand(read.shape, device=self.device)
        shift = torch.randint(-2, 3, read.shape, device=self.device)
        near = (read + shift).maximum(firsts).minimum(firsts + steps - 1)
        other = torch.randint(len(self.codes), read.shape, device=self.device)
        read = torch.where(fate < level * 0.5, near, read)
        read = torch.where((fate >= level * 0.5) & (fate < level * 0.8), other, read)
        chances = level[..., None] * torch.tensor([0.2, 0.5, 0.3, 0.5], device=self.device)
        single = torch.rand(*read.shape, BOOKS, device=self.device) < chances
        return torch.where(single, torch.randint(CODES, (*read.shape, BOOKS), device=self.device), self.codes[read])

    def frames_at(self, steps: Tensor) -> Tensor:
        """Returns the frames of steps (B, T): (B, 100, 2 T)."""
        frames = (MEL_FRAMES_PER_STEP * steps[..., None] + torch.arange(MEL_FRAMES_PER_STEP, device=self.device)).flatten(1)
        return self.mel[frames].float().transpose(1, 2)

    def crops(self, rows: int, frames: int) -> tuple[Tensor, Tensor]:
        """Returns mel frames (rows, 100, frames), and the samples between the middles of the first and the last one.

        Each crop has a loudness of its own, so that no level is special.
        """
        steps = frames // MEL_FRAMES_PER_STEP
        chances = (self.step_counts - steps).clamp(min=0).float()
        chances[:HELD_OUT] = 0
        numbers = torch.multinomial(chances, rows, replacement=True)
        offset = torch.rand(rows, device=self.device) * chances[numbers]
        return self.crops_at((self.first_steps[numbers] + offset.long())[:, None], frames, is_louder=True)

    def crops_at(self, first: Tensor, frames: int, *, is_louder: bool) -> tuple[Tensor, Tensor]:
        """Returns crops, as `crops` does, that begin at the steps `first` (rows, 1)."""
        mel = self.frames_at(first + torch.arange(frames // MEL_FRAMES_PER_STEP, device=self.device))
        samples = self.samples_at(first, frames)
        if is_louder:
            louder = torch.empty(len(first), 1, device=self.device).uniform_(0.5, 1.1)
            mel, samples = (mel + louder.log()[..., None]).clamp(min=FLOOR), samples * louder
        return mel, samples

    def samples_at(self, first: Tensor, frames: int) -> Tensor:
        """Returns samples (rows, 256 (frames - 1)) from the steps `first` (rows, 1) on."""
        index = first * SAMPLES_PER_STEP + torch.arange((frames - 1) * HOP, device=self.device)
        return self.samples[index].float() / 32767


def _padded(length: int) -> int:
    return -(-length // GRAIN) * GRAIN


def tables_of(plan: Path) -> Tables:
    """Returns the tables in the first line of a plan."""
    with gzip.open(plan, "rt", encoding="utf-8") as file:
        head = json.loads(next(file))
    return Tables(head["vocabulary"], torch.tensor(head["syllable_parts"]), head["speaker_position"])
