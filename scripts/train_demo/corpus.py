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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
import torchaudio
from torch import Tensor

from pipeline.spec import SAMPLE_RATE
from scripts.train_demo.phones import SILENCE, STOPS, SYMBOLS, pronounce
from scripts.train_demo.sentences import sentence
from scripts.train_demo.teacher import SPEAKERS, Utterance, speak

HELD_OUT = 0
SPEAKER_SHARES = (0.38, 0.38, 0.12, 0.12)
SAMPLES_PER_STEP = 512
LEAD_S, TRAIL_S = 0.08, 0.14  # silence kept before the first phone and after the last

PREFIX = ("[Stts]", "[spk_emb]", "[speed_5]")
SUFFIX = "[Ptts]"
VOCABULARY = (*PREFIX, SUFFIX, *STOPS, *SYMBOLS.values(), *(f"##{symbol}" for symbol in SYMBOLS.values()))
TOKEN_IDS = {token: index for index, token in enumerate(VOCABULARY)}
SPEAKER_POSITION = PREFIX.index("[spk_emb]")


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One spoken sentence of T steps."""

    text: str
    speaker: int
    tokens: Tensor  # (L,) int16, rows of VOCABULARY
    mel: Tensor  # (T, 200) float16: two frames of log-mel per step
    spoken: Tensor  # (T,) float16: place in `tokens` of the sound at the step's middle, fractions inside a token
    phone: Tensor  # (T,) int16: index of that token
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


def align(tokens: list[str], utterance: Utterance) -> list[tuple[float, float, int]] | None:
    """Returns (start, end, token) of every phone and of the silences at stops; None if the phones are not those of the tokens.

    Within a sentence flite pronounces some words differently; if only sounds differ, the phones still match one to one.
    """
    spans: list[tuple[float, float, int]] = []
    start, place = 0.0, len(PREFIX)
    for name, end in utterance.phones:
        if name == SILENCE:
            silent_at = place if tokens[place] in STOPS else max(place - 1, len(PREFIX))
            spans.append((start, end, silent_at))
        else:
            while tokens[place] in STOPS:
                place += 1
            if tokens[place] == SUFFIX:
                return None
            spans.append((start, end, place))
            place += 1
        start = end
    return spans if all(token in (*STOPS, SUFFIX) for token in tokens[place:]) else None


def example(text: str, speaker: int, *, keep_samples: bool) -> Example | None:
    """Synthesises a text in a speaker's voice; returns None if the sound does not match the text."""
    utterance = speak(text, SPEAKERS[speaker])
    tokens = tokenize(text)
    spans = align(tokens, utterance)
    if spans is None:
        return None
    voiced = [index for index, (name, _) in enumerate(utterance.phones) if name != SILENCE]
    begin = max(0.0, spans[voiced[0]][0] - LEAD_S)
    end = min(spans[voiced[-1]][1] + TRAIL_S, len(utterance.samples) / utterance.rate)
    heard = torch.from_numpy(utterance.samples[int(begin * utterance.rate) : int(end * utterance.rate)])
    samples = torchaudio.functional.resample(heard, utterance.rate, SAMPLE_RATE)
    steps = -(-len(samples) // SAMPLES_PER_STEP)
    samples = torch.nn.functional.pad(samples, (0, steps * SAMPLES_PER_STEP - len(samples)))
    mel = log_mel(samples).T.reshape(steps, 200)
    spoken, phone = _places(spans, begin, steps)
    return Example(
        text=text,
        speaker=speaker,
        tokens=torch.tensor([TOKEN_IDS[token] for token in tokens], dtype=torch.int16),
        mel=mel.half(),
        spoken=spoken.half(),
        phone=phone,
        samples=(samples * 32767).clamp(-32767, 32767).short() if keep_samples else None,
    )


def _places(spans: list[tuple[float, float, int]], begin: float, steps: int) -> tuple[Tensor, Tensor]:
    middles = (torch.arange(steps) + 0.5) * (SAMPLES_PER_STEP / SAMPLE_RATE) + begin
    ends = torch.tensor([end for _, end, _ in spans], dtype=torch.float64)
    index = torch.searchsorted(ends, middles.double()).clamp(max=len(spans) - 1)
    starts = torch.tensor([start for start, _, _ in spans])[index]
    places = torch.tensor([place for _, _, place in spans])[index]
    inside = ((middles - starts) / (ends[index] - starts)).clamp(0, 1).float()
    return places + inside - 0.5, places.short()


def make_shard(number: int, *, seed: int, folder: Path, sentences: int, with_samples: int) -> str:
    """Writes one shard, unless there is one."""
    path = folder / f"{number:03d}.pt"
    if path.exists():
        return f"{path}: there already"
    torch.set_num_threads(1)
    draw = random.Random(f"{seed}/{number}")
    examples: list[Example] = []
    dropped = 0
    while len(examples) < sentences:
        text = sentence(draw)
        speaker = draw.choices(range(len(SPEAKERS)), SPEAKER_SHARES)[0]
        found = example(text, speaker, keep_samples=number < with_samples)
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
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    work = partial(make_shard, seed=args.seed, folder=args.folder, sentences=args.sentences, with_samples=args.with_samples)
    with ProcessPoolExecutor(args.processes) as pool:
        for line in pool.map(work, range(args.shards)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
