"""Recordings: the teacher reads the prose, shard by shard, for hours, and goes on where it was stopped.

In:    a seed, hours
Out:   shards: texts, units, durations and samples; a line of progress after each
Owns:  the shards' format, who reads what
Never: features, training

    nice -n 19 python -m scripts.train_demo.recordings --hours 20

A shard follows from the seed and its number alone, and is written whole or not at all. Shard 0 is held out. The folder is
$CHATTTS_HOME/train/recordings.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.paths import cache_home
from scripts.train_demo.kokoro import MOST_PHONES, RATE, Kokoro, Recording
from scripts.train_demo.prose import Text, text
from scripts.train_demo.sounds import Unit, sounds

HELD_OUT = 0
SHARD_SIZE = 100  # recordings
SPEAKERS = (("am_michael", "zm_yunxi"), ("af_heart", "zf_xiaoxiao"), ("bf_isabella", "zf_xiaoni"))
"""voices of English and of Mandarin that are one speaker"""
SPEAKER_SHARES = (0.24, 0.34, 0.18)  # of recordings by one speaker; the others are blends
PACES = ((1.0, 0.9), (0.75, 0.05), (1.3, 0.05))  # pace, share
CHINESE_SHARE, MIXED_SHARE = 0.42, 0.08


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is read, and by whom: the speakers' shares of the voice, which sum to 1."""

    text: Text
    units: tuple[Unit, ...]
    shares: tuple[float, ...]
    pace: float

    @property
    def phones(self) -> str:
        """All phones, units one after another."""
        return "".join(unit.phones for unit in self.units)

    @property
    def voices(self) -> list[tuple[str, float]]:
        """The voices of the text's language and their shares."""
        column = 1 if self.text.language == "zh" or "\u4e00" <= self.text.written[0] <= "\u9fff" else 0
        return [(names[column], share) for names, share in zip(SPEAKERS, self.shares, strict=True) if share]


def assignment(draw: random.Random, teacher: Kokoro) -> Assignment:
    """Draws a text that the teacher can read, and who reads it."""
    while True:
        drawn = text(draw, CHINESE_SHARE, MIXED_SHARE)
        units = sounds(drawn.written)
        if not units or not all(teacher.knows(phone) for unit in units for phone in unit.phones):
            continue
        paces, weights = zip(*PACES, strict=True)
        found = Assignment(drawn, units, _shares(draw), draw.choices(paces, weights)[0])
        if len(found.phones) <= MOST_PHONES:
            return found


def _shares(draw: random.Random) -> tuple[float, ...]:
    pure = draw.random()
    for place, until in enumerate(np.cumsum(SPEAKER_SHARES)):
        if pure < until:
            return tuple(float(place == other) for other in range(len(SPEAKERS)))
    parts = [draw.expovariate(1) for _ in SPEAKERS]
    return tuple(round(part / sum(parts), 3) for part in parts)


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """A recording with its text of n units; ticks (n + 2,): the lengths of the silence before, of each unit, of that after."""

    written: str
    language: str
    units: tuple[str, ...]
    shares: tuple[float, ...]
    pace: float
    ticks: NDArray[np.int16]
    samples: NDArray[np.int16]


class Shards:
    """The shards of a folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed

    @cached_property
    def _teacher(self) -> Kokoro:
        return Kokoro(self._folder.parent / "kokoro")

    def path(self, number: int) -> Path:
        """Returns where a shard is or will be."""
        return self._folder / f"{number:04d}.npz"

    def make(self, number: int) -> float:
        """Writes a shard unless it is there; returns the seconds of speech in it."""
        path = self.path(number)
        if path.exists():
            with np.load(path) as shard:
                return float(shard["lengths"].sum()) / RATE
        draw = random.Random(f"{self._seed}/{number}")
        assignments = [assignment(draw, self._teacher) for _ in range(SHARD_SIZE)]
        spoken = [self._teacher.speak(one.phones, one.voices, one.pace) for one in assignments]
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft.npz")
        _write(draft, assignments, spoken)
        draft.rename(path)
        return sum(len(one.samples) for one in spoken) / RATE


def _write(path: Path, assignments: Sequence[Assignment], spoken: Sequence[Recording]) -> None:
    cards = [
        {"text": one.text.written, "language": one.text.language, "units": [[u.token, u.phones] for u in one.units]}
        | {"shares": one.shares, "pace": one.pace}
        for one in assignments
    ]
    np.savez(
        path,
        cards=np.frombuffer(json.dumps(cards, ensure_ascii=False).encode(), np.uint8),
        lengths=np.array([len(one.samples) for one in spoken]),
        samples=np.concatenate([one.samples for one in spoken]),
        ticks=np.concatenate([one.ticks for one in spoken]),
    )


def load(path: Path) -> list[Spoken]:
    """Returns the recordings of a shard."""
    with np.load(path) as shard:
        cards = json.loads(shard["cards"].tobytes())
        samples = np.split(shard["samples"], np.cumsum(shard["lengths"])[:-1])
        ticks = np.split(shard["ticks"], np.cumsum([2 + sum(len(phones) for _, phones in one["units"]) for one in cards])[:-1])
    return [_spoken(*one) for one in zip(cards, ticks, samples, strict=True)]


def _spoken(card: dict[str, object], ticks: NDArray[np.int16], samples: NDArray[np.int16]) -> Spoken:
    units = [(str(token), len(phones)) for token, phones in card["units"]]  # type: ignore[attr-defined]
    starts = np.cumsum([0, 1, *(length for _, length in units)])
    return Spoken(
        written=str(card["text"]),
        language=str(card["language"]),
        units=tuple(token for token, _ in units),
        shares=tuple(card["shares"]),  # type: ignore[arg-type]
        pace=float(card["pace"]),  # type: ignore[arg-type]
        ticks=np.add.reduceat(ticks, starts).astype(np.int16),
        samples=samples,
    )


def main() -> None:
    """Writes shards until there are enough hours."""
    parser = argparse.ArgumentParser(description="Let the neural teacher read the corpus; goes on where it was stopped.")
    parser.add_argument("--folder", type=Path, default=cache_home() / "train" / "recordings")
    parser.add_argument("--hours", type=float, default=20.0, help="of speech")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    shards = Shards(args.folder, args.seed)
    seconds, number, made, began = 0.0, 0, 0.0, time.monotonic()
    while seconds < args.hours * 3600:
        is_new = not shards.path(number).exists()
        length = shards.make(number)
        seconds, number = seconds + length, number + 1
        if is_new:
            made += length
            pace = (time.monotonic() - began) / made
            left = (args.hours * 3600 - seconds) * pace / 3600
            print(f"{number} shards, {seconds / 3600:.2f} of {args.hours:g} hours; {left:.1f} hours to go", flush=True)


if __name__ == "__main__":
    main()
