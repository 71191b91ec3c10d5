"""Train recogniser: trains the recogniser of Mandarin syllables on the teacher's recordings.

In:    chunks of recordings; syllable_recogniser.safetensors, from which it goes on
Out:   syllable_recogniser.safetensors, a log line per fifty steps
Owns:  the distortions
Never: the network (syllable_recogniser.py)

    python -m scripts.train_demo.train_recogniser $CHATTTS_HOME/train --steps 1200

The speech is distorted and played faster or slower, so that the recogniser needs neither what a vocoder smooths away nor the
teacher's pitch. A second head, which must name the sound of every frame, makes it learn ten times faster.
"""

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soxr
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from pipeline.spec import SAMPLE_RATE, SAMPLES_PER_STEP
from scripts.evaluate.listening import readable, syllables_of, teacher
from scripts.train_demo.held_out import held_out
from scripts.train_demo.syllable_recogniser import (
    BANDS,
    BLANK,
    FILE,
    RATE,
    SyllableNetwork,
    SyllableRecogniser,
    as_heard,
    features,
    labels,
)
from scripts.train_demo.syllables import syllables
from scripts.train_demo.tokens import TOKEN_IDS
from scripts.train_demo.word_errors import edits

ROWS = 16
OUTPUT_RATE = 50  # frames of the network's output a second
WARM_UP_STEPS = 100
REPORT_STEPS = 50
JUDGED = 20  # sentences
INITIAL_SHARE = 0.4  # of a syllable's time
STRETCHES = (0.87, 1.15)


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A recording (n,) at SAMPLE_RATE, its syllables, and the place in them that sounds in each of its steps (n / 512,).

    A place is a syllable's number, from 0, and the share of it that is over; negative: no syllable sounds.
    """

    samples: NDArray[np.float32]
    syllables: list[str]
    places: NDArray[np.float32]


def readings(folder: Path) -> Iterator[Reading]:
    """Yields the recordings in which every word is a Mandarin syllable."""
    names = {TOKEN_IDS[syllable]: syllable for syllable in syllables()}
    for path in sorted((folder / "chunks").glob("*.pt")):
        chunk = torch.load(path, map_location="cpu")
        counts, steps = chunk["token_counts"].tolist(), chunk["step_counts"].tolist()
        recordings = zip(
            chunk["texts"],
            chunk["tokens"].split(counts),
            chunk["samples"].split([SAMPLES_PER_STEP * count for count in steps]),
            chunk["spoken"].split(steps),
            strict=True,
        )
        for text, tokens, samples, spoken in recordings:
            spelled = [names.get(token) for token in tokens.tolist()]
            if not any("a" <= letter <= "z" for letter in text.lower()) and any(spelled):
                is_syllable = np.array([name is not None for name in spelled])
                numbers = np.cumsum(is_syllable) - 1
                at = spoken.float().numpy() + 0.5
                token = np.clip(at.astype(int), 0, len(spelled) - 1)
                places = np.where(is_syllable[token], numbers[token] + np.clip(at - token, 0, 0.999), -1.0).astype(np.float32)
                yield Reading(samples.numpy().astype(np.float32) / 32768, [name for name in spelled if name], places)


def utterance(reading: Reading, draw: random.Random) -> tuple[NDArray[np.float32], float]:
    """Returns the samples of a recording at RATE, distorted, and how many times longer it is now."""
    stretch = draw.uniform(*STRETCHES)
    return distorted(soxr.resample(reading.samples, SAMPLE_RATE, RATE * stretch).astype(np.float32), draw), stretch


def distorted(samples: NDArray[np.float32], draw: random.Random) -> NDArray[np.float32]:
    """Returns the samples at a level, with noise and with a tilted spectrum."""
    noise = np.random.default_rng(draw.getrandbits(32)).standard_normal(len(samples)).astype(np.float32)
    loudness = float(np.sqrt(np.mean(samples**2))) or 1.0
    tilt = draw.uniform(-0.5, 0.7)
    sound = samples * np.float32(0.1 / loudness)
    sound = sound - np.float32(tilt) * np.concatenate([[0], sound[:-1]]).astype(np.float32)
    return (sound + noise * np.float32(0.1 * 10 ** draw.uniform(-2.5, -0.9))).astype(np.float32)


def blurred(mel: Tensor, draw: random.Random) -> Tensor:
    """Returns frames (BANDS, T) smoothed along time or bands, with some of each left out."""
    if draw.random() < 0.5:
        mel = F.avg_pool1d(mel[None], 3, 1, 1, count_include_pad=False)[0]
    if draw.random() < 0.3:
        mel = F.avg_pool1d(mel.T[None], 3, 1, 1, count_include_pad=False)[0].T
    mel = mel + draw.uniform(0.05, 0.3) * torch.randn(mel.shape)
    mel = mel + draw.uniform(0, 0.8) * F.interpolate(torch.randn(1, 1, 6), BANDS, mode="linear")[0, 0][:, None]
    band, start = draw.randrange(BANDS - 8), draw.randrange(max(1, mel.shape[1] - 6))
    mel[band : band + draw.randint(0, 8)] = 0
    mel[:, start : start + draw.randint(0, 6)] = 0
    return mel


def sounds(reading: Reading, stretch: float, frames: int) -> Tensor:
    """Returns the class that sounds in each output frame (frames,); BLANK in silences."""
    sounding = torch.full((frames,), BLANK)
    times = np.arange(frames) / OUTPUT_RATE / stretch
    steps = (times * SAMPLE_RATE / SAMPLES_PER_STEP).astype(int)
    for frame, step in enumerate(steps[steps < len(reading.places)]):
        place = float(reading.places[step])
        if place >= 0:
            *initial, final = labels([reading.syllables[int(place)]])
            sounding[frame] = initial[0] if initial and place % 1 < INITIAL_SHARE else final
    return sounding


def batch(known: list[Reading], draw: random.Random) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns frames (ROWS, BANDS, T), classes (all,), lengths of the outputs, numbers of classes, sounds (ROWS, T / 2)."""
    drawn = draw.sample(known, ROWS)
    spoken = [utterance(reading, draw) for reading in drawn]
    frames = [blurred(features(samples), draw) for samples, _ in spoken]
    longest = max(part.shape[1] for part in frames)
    padded = torch.stack([F.pad(part, (0, longest - part.shape[1])) for part in frames])
    lengths = torch.tensor([(part.shape[1] + 1) // 2 for part in frames])
    targets = [labels(reading.syllables) for reading in drawn]
    counts = torch.tensor([len(row) for row in targets])
    sounding = torch.stack(
        [sounds(reading, stretch, (longest + 1) // 2) for reading, (_, stretch) in zip(drawn, spoken, strict=True)]
    )
    return padded, torch.tensor([target for row in targets for target in row]), lengths, counts, sounding


def main() -> None:
    """Trains and writes the weights."""
    parser = argparse.ArgumentParser(description="Train the recogniser of Mandarin syllables.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--rate", type=float, default=2e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    draw, network, known = random.Random("recogniser"), SyllableRecogniser().network, list(readings(args.folder))
    print(
        f"{len(known)} recordings, {sum(len(reading.samples) for reading in known) / SAMPLE_RATE / 60:.0f} minutes", flush=True
    )
    optimiser = torch.optim.AdamW(network.parameters(), args.rate, betas=(0.9, 0.98), weight_decay=0.01)
    began, total = time.time(), 0.0
    for step in range(1, args.steps + 1):
        network.train()
        factor = min(step / WARM_UP_STEPS, 2 * (1 - step / (args.steps + 1)), 1.0)
        optimiser.param_groups[0]["lr"] = args.rate * factor
        mel, targets, lengths, counts, sounding = batch(known, draw)
        with torch.autocast("cpu", torch.bfloat16, enabled=torch.cpu._is_avx512_bf16_supported()):
            recognised, named = network(mel)
        scores = recognised.float().log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(scores, targets, lengths, counts, BLANK, zero_infinity=True)
        loss = loss + F.cross_entropy(named.float().flatten(0, 1), sounding.flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimiser.step()
        total += loss.item()
        if step % REPORT_STEPS == 0 or step == args.steps:
            wrong = measured(network)
            print(f"{step} steps, {time.time() - began:.0f} s, loss {total / REPORT_STEPS:.3f}, errors {wrong:.3f}", flush=True)
            total = 0.0
            save_file({name: value.half() for name, value in network.state_dict().items()}, FILE)


def measured(network: SyllableNetwork) -> float:
    """Returns the share of wrong syllables in judged sentences, as the teacher reads them."""
    recogniser, wrong, total = SyllableRecogniser(network), 0, 0
    for sentence in readable(held_out("mandarin"))[:JUDGED]:
        expected = as_heard(syllables_of(sentence.text))
        wrong += edits(expected, recogniser.transcribe(teacher(sentence), SAMPLE_RATE))
        total += len(expected)
    return wrong / total


if __name__ == "__main__":
    main()
