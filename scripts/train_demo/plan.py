"""Plan: what the teacher is to read, written down so that a machine without the lexicons can let it read.

In:    a seed, a number of recordings
Out:   a file of JSON lines, compressed: the tables of the tokens, then a line for each recording
Owns:  the lines' format; which token each phone belongs to
Never: audio

    python -m scripts.train_demo.plan plan.jsonl.gz --recordings 20000 --processes 2

The first line has the tables. A recording's line has the teacher's phones, voices and pace, and what the demo voice is
taught from it: the tokens, and for runs of phones their token's place and the row of their sound.
"""

import argparse
import gzip
import json
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from scripts.train_demo.assignments import Assignment, assignment
from scripts.train_demo.kokoro import alphabet
from scripts.train_demo.phones import STOPS
from scripts.train_demo.sounds import SPACE, Unit
from scripts.train_demo.syllables import parts_of, syllables
from scripts.train_demo.teacher_phones import symbols_of
from scripts.train_demo.tokens import BREATH, EVENTS, PREFIX, SPEEDS, SUFFIX, TABLES, TOKEN_IDS

CHUNK = 250
ASPIRATION = "ʰ"


def tables() -> dict[str, Any]:
    """Returns the first line: what is to be known of the tokens."""
    return {
        "vocabulary": TABLES.vocabulary,
        "syllable_parts": TABLES.syllable_parts.tolist(),
        "speaker_position": TABLES.speaker_position,
        "pauses": [TOKEN_IDS[token] for token in (*STOPS, BREATH)],
        "breath": TOKEN_IDS[BREATH],
    }


def lines(seed: int, number: int) -> list[dict[str, Any]]:
    """Returns the lines of one chunk."""
    draw = random.Random(f"{seed}/{number}")
    return [line(assignment(draw)) for _ in range(CHUNK)]


def line(reading: Assignment) -> dict[str, Any]:
    """Returns the line of one recording."""
    tokens, spans = [*PREFIX[:-1], reading.speed], list[list[int]]()
    for word in _words(reading.units):
        for token, sound, count in word:
            if token is not None:
                tokens.append(token)
            spans.append([len(tokens) - 1, TOKEN_IDS[sound], count])
    phones = "".join(unit.phones for unit in reading.units)
    assert sum(count for *_, count in spans) == len(phones), reading
    return {
        "text": reading.text.written,
        "ids": [alphabet()[phone] for phone in phones],
        "voices": reading.voices,
        "shares": reading.shares,
        "pace": SPEEDS[reading.speed],
        "tokens": [TOKEN_IDS[token] for token in (*tokens, SUFFIX)],
        "spans": spans,
    }


def _words(units: tuple[Unit, ...]) -> Iterator[list[tuple[str | None, str, int]]]:
    """Yields words as (token, or None where the one before goes on; sound; number of phones)."""
    last, word = "", list[Unit]()
    for unit in (*units, Unit(SPACE, "")):
        if word and not unit.token.startswith("##"):
            symbols = symbols_of("".join(reading.phones for reading in word))
            yield [(symbol if at == 0 else f"##{symbol}",) * 2 + (count,) for at, (symbol, count) in enumerate(symbols)]
            last, word = f"{'##' if len(symbols) > 1 else ''}{symbols[-1][0]}", []
        if unit.token == SPACE:
            if unit.phones:
                yield [(None, last, len(unit.phones))]
        elif unit.token in syllables():
            initial, final, _ = parts_of(unit.token)
            head = 0 if initial == "initial:" else 2 if unit.phones[1:2] == ASPIRATION else 1
            first = [(unit.token, initial, head), (None, final, len(unit.phones) - head)]
            yield first if head else [(unit.token, final, len(unit.phones))]
            last = final
        elif unit.token in (*STOPS, *EVENTS):
            yield [(unit.token, unit.token, len(unit.phones))]
            last = unit.token
        else:
            word.append(unit)


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description="Write down what the neural teacher is to read.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--recordings", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    with gzip.open(args.file, "wt", encoding="utf-8") as file, ProcessPoolExecutor(args.processes) as pool:
        file.write(json.dumps(tables()) + "\n")
        for number, rows in enumerate(pool.map(partial(lines, args.seed), range(-(-args.recordings // CHUNK)))):
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            print(f"{(number + 1) * CHUNK} of {args.recordings}", flush=True)


if __name__ == "__main__":
    main()
