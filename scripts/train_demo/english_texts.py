"""English texts: running text of thousands of different words for the teacher.

In:    a random generator; the Debian package wordnet
Out:   lower-case sentences of words, commas and full stops
Owns:  the mixture
Never: audio, phones

WordNet's examples are short sentences of every kind; its lemmas are words and names. Digits and everyday templates come from
sentences.py.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path

from scripts.train_demo.held_out import held_out_texts
from scripts.train_demo.sentences import sentence

WORDNET = Path("/usr/share/wordnet")
PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")
MAX_CHARACTERS = 110
_NUMBERS = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
    "thirty",
    "forty",
    "fifty",
    "sixty",
    "seventy",
    "eighty",
    "ninety",
    "hundred",
    "thousand",
    "million",
    "first",
    "second",
    "third",
    "fifth",
    "percent",
    "dollars",
    "half",
]


def english(draw: random.Random) -> str:
    """Returns a text, never a judged one."""
    kind = draw.choices((_running, _words, _names, sentence), (60, 14, 12, 14))[0]
    while words_in(text := kind(draw)) in held_out_texts():
        pass
    return text


def words_in(text: str) -> tuple[str, ...]:
    """Returns the words of a text in lower case."""
    return tuple(re.findall("[a-z']+", text.lower()))


def _running(draw: random.Random) -> str:
    """Returns one sentence, or several short ones."""
    text = draw.choice(examples())
    while (
        draw.random() < 0.35
        and len(longer := f"{text}{draw.choice(('.', '.', ','))} {draw.choice(examples())}") < MAX_CHARACTERS
    ):
        text = longer
    return f"{text}." if draw.random() < 0.5 else text


def _words(draw: random.Random) -> str:
    """Returns words in any order, rare ones more often than in sentences."""
    words, totals = _vocabulary()
    return _with_commas(draw.choices(words, cum_weights=totals, k=draw.randint(1, 8)), draw)


def _names(draw: random.Random) -> str:
    """Returns names and numbers."""
    words: list[str] = []
    while len(" ".join(words)) < draw.randint(12, 60):
        words += draw.choice(((draw.choice(names()),), draw.choices(_NUMBERS, k=draw.randint(1, 4)), _some(draw)))
    return _with_commas(words, draw)


def _some(draw: random.Random) -> list[str]:
    words, totals = _vocabulary()
    return draw.choices(words, cum_weights=totals, k=2)


def _with_commas(words: list[str], draw: random.Random) -> str:
    return " ".join(f"{word}," if draw.random() < 0.08 else word for word in words[:-1]) + f" {words[-1]}"


@cache
def examples() -> tuple[str, ...]:
    """Returns WordNet's examples as sentences of words and stops."""
    texts = map(_plain, quoted())
    return tuple(sorted({text for text in texts if text and 8 <= len(text) <= MAX_CHARACTERS}))


@cache
def names() -> tuple[str, ...]:
    """Returns WordNet's names of persons and places."""
    groups = (re.findall(r" ([A-Z][a-z]{2,}(?:_[A-Z][a-z]{2,})?) 0 ", file) for file in _files())
    return tuple(sorted({name.replace("_", " ").lower() for names_ in groups for name in names_}))


@cache
def _vocabulary() -> tuple[list[str], list[float]]:
    counts = Counter(word for text in examples() for word in words_in(text))
    words = sorted(word for word in counts if re.fullmatch("[a-z]+", word))
    return words, list(accumulate(counts[word] ** 0.4 for word in words))


def quoted() -> Iterator[str]:
    """Yields WordNet's examples as they stand."""
    for file in _files():
        yield from re.findall(r'"([^"]+)"', file)


def _files() -> Iterator[str]:
    for part in PARTS_OF_SPEECH:
        yield (WORDNET / f"data.{part}").read_text(encoding="utf-8", errors="ignore")


def _plain(text: str) -> str | None:
    """Returns a text in the alphabet of the corpus; None if it has digits or signs that are read."""
    text = re.sub(r"[;:!?]|\.{2,}| -+ |--+|\(|\)", ", ", text.lower()).replace("-", " ").replace("`", "'")
    text = re.sub(r"(?:\s*,)+\s*", ", ", text).strip(" ,")
    text = re.sub(r"(?<![a-z])'|'(?![a-z])", "", text)
    return re.sub(r" +", " ", text) if re.fullmatch(r"[a-z][a-z', ]*(?:\.(?= )[a-z', ]*)*\.?", text) else None
