"""Corpus: taught sentences in the teacher's voice, in shards that training can read while others are still being written.

In:    a seed, a number of shards
Out:   shards of mel frames, text tokens, and the token spoken at each step; some keep the waveform for the vocoder
Owns:  the shards' format
Never: training

    python -m scripts.train_demo.corpus work/corpus --shards 16

A shard follows from the seed and its number alone. Shard 0 is held out.
"""

import argparse
import random
import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
import torchaudio
from torch import Tensor

from pipeline.spec import SAMPLE_RATE
from scripts.train_demo.phones import STOPS, SYMBOLS, pronounce
from scripts.train_demo.pieces import RATE, Span, joined, trimmed
from scripts.train_demo.syllables import parts, syllables
from scripts.train_demo.texts import SPEEDS, Drawn, drawn

HELD_OUT = 0
SAMPLES_PER_STEP = 512
LEAD_S, TRAIL_S = 0.08, 0.14  # silence kept before the first phone and after the last
INNER_S = 0.03  # the same, between pieces of an utterance

PREFIX = ("[Stts]", "[spk_emb]", "[speed_5]")
SUFFIX = "[Ptts]"
EVENTS = ("[uv_break]", "[laugh]")
ENGLISH = (*PREFIX, SUFFIX, *STOPS, *SYMBOLS.values(), *(f"##{symbol}" for symbol in SYMBOLS.values()))
VOCABULARY = (*ENGLISH, *(speed for speed in SPEEDS if speed not in PREFIX), *EVENTS, *parts())
"""rows that are learned; a syllable's is the sum of its parts'"""
TOKEN_IDS = {token: index for index, token in enumerate((*VOCABULARY, *syllables()))}
SPEAKER_POSITION = PREFIX.index("[spk_emb]")


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One spoken sentence of T steps."""

    text: str
    speaker: int
    tokens: Tensor  # (L,) int16, of TOKEN_IDS
    mel: Tensor  # (T, 200) float16: two frames of log-mel per step
    spoken: Tensor  # (T,) float16: place in `tokens` of the sound at the step's middle, fractions inside a token
    sound: Tensor  # (T,) int16: row of VOCABULARY: the phone, or the part of a syllable
    samples: Tensor | None  # (512 T,) int16


def tokenize(text: str) -> list[str]:
    """Returns the tokens of a normalised text, as the exported tokenizer does."""
    pieces = []
    for word in re.findall(rf"[a-z]+|[{STOPS}]", text):
        symbols = word if word in STOPS else pronounce(word)
        pieces += [symbols[0], *(f"##{symbol}" for symbol in symbols[1:])]
    return [*PREFIX, *pieces, SUFFIX]


@cache
def _filters() -> torchaudio.transforms.MelSpectrogram:
    return torchaudio.transforms.MelSpectrogram(SAMPLE_RATE, 1024, hop_length=256, n_mels=100, center=True, power=1)


def log_mel(samples: Tensor) -> Tensor:
    """Maps samples (..., n) to frames (..., 100, n // 256): ChatTTS's features, without the last frame's odd half.

    Source: ChatTTS/model/dvae.py, class MelSpectrogramFeatures.
    """
    mel: Tensor = _filters()(samples)
    return mel.clip(1e-5).log()[..., :-1]


def example(wanted: Drawn, *, keep_samples: bool) -> Example | None:
    """Synthesises what was drawn; returns None if the sound does not match the text."""
    pieces = [
        piece for piece in (part.spoken(wanted.speaker, SPEEDS[wanted.speed]) for part in wanted.parts) if piece is not None
    ]
    if len(pieces) < len(wanted.parts):
        return None
    lead, trail = (LEAD_S, TRAIL_S) if len(pieces) == 1 else (INNER_S, INNER_S)
    whole = trimmed(joined([trimmed(piece, lead, trail) for piece in pieces]), LEAD_S, TRAIL_S)
    samples = torchaudio.functional.resample(torch.from_numpy(whole.samples), RATE, SAMPLE_RATE)
    steps = -(-len(samples) // SAMPLES_PER_STEP)
    samples = torch.nn.functional.pad(samples, (0, steps * SAMPLES_PER_STEP - len(samples)))
    mel = log_mel(samples).T.reshape(steps, 200)
    spoken, sound = _places(whole.spans, steps)
    tokens = (*PREFIX[:-1], wanted.speed, *whole.tokens, SUFFIX)
    return Example(
        text=" ".join(part.text for part in wanted.parts),
        speaker=wanted.speaker,
        tokens=torch.tensor([TOKEN_IDS[token] for token in tokens], dtype=torch.int16),
        mel=mel.half(),
        spoken=spoken.half(),
        sound=sound,
        samples=(samples * 32767).clamp(-32767, 32767).short() if keep_samples else None,
    )


def _places(spans: Sequence[Span], steps: int) -> tuple[Tensor, Tensor]:
    """Returns each step's place among the tokens, and its sound; a token's sounds fill it in proportion to their lengths."""
    middles = (torch.arange(steps) + 0.5) * (SAMPLES_PER_STEP / SAMPLE_RATE)
    ends = torch.tensor([one.end for one in spans], dtype=torch.float64)
    index = torch.searchsorted(ends, middles.double()).clamp(max=len(spans) - 1)
    begins: dict[int, float] = {}
    finishes: dict[int, float] = {}
    for one in spans:
        begins.setdefault(one.place, one.start)
        finishes[one.place] = one.end
    starts = torch.tensor([begins[one.place] for one in spans])[index]
    stops = torch.tensor([finishes[one.place] for one in spans])[index]
    places = torch.tensor([one.place + len(PREFIX) for one in spans])[index]
    sounds = torch.tensor([TOKEN_IDS[one.sound] for one in spans], dtype=torch.int16)[index]
    inside = ((middles - starts) / (stops - starts).clamp(min=1e-4)).clamp(0, 1).float()
    return places + inside - 0.5, sounds


def make_shard(number: int, *, seed: int, folder: Path, sentences: int, with_samples: int, mandarin: float) -> str:
    """Writes one shard, unless there is one."""
    path = folder / f"{number:03d}.pt"
    if path.exists():
        return f"{path}: there already"
    torch.set_num_threads(1)
    draw = random.Random(f"{seed}/{number}")
    examples: list[Example] = []
    dropped = 0
    while len(examples) < sentences:
        found = example(drawn(draw, mandarin), keep_samples=number < with_samples)
        if found is None:
            dropped += 1
        else:
            examples.append(found)
    draft = path.with_suffix(".draft")
    torch.save([{name: getattr(one, name) for name in Example.__slots__} for one in examples], draft)
    draft.rename(path)
    steps = sum(len(one.mel) for one in examples)
    return f"{path}: {steps * SAMPLES_PER_STEP / SAMPLE_RATE / 60:.1f} minutes, {steps} steps, {dropped} sentences dropped"


def load_shard(path: Path) -> list[Example]:
    """Returns the examples of a shard."""
    return [Example(**fields) for fields in torch.load(path)]


def main() -> None:
    """Writes the shards."""
    parser = argparse.ArgumentParser(description="Let flite speak the corpus.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shards", type=int, default=16, help="the first is held out")
    parser.add_argument("--sentences", type=int, default=1000, help="of a shard")
    parser.add_argument("--with-samples", type=int, default=3, help="shards that keep waveforms, for the vocoder")
    parser.add_argument("--mandarin", type=float, default=0.5, help="share of Mandarin")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    work = partial(
        make_shard,
        seed=args.seed,
        folder=args.folder,
        sentences=args.sentences,
        with_samples=args.with_samples,
        mandarin=args.mandarin,
    )
    with ProcessPoolExecutor(args.processes) as pool:
        for line in pool.map(work, range(args.shards)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
