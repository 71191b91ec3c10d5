"""Hearing: pocketsphinx writes down what was said, and the mistakes are counted.

In:    samples, and whether they are digits alone
Out:   words; numbers of mistakes
Owns:  two recognisers: the taught words in any order, as likely as in the corpus, and a loop of digits
Never: the network; pocketsphinx carries its English model in its wheel

Words that sound alike (two, to, too) are one word here.
"""

import math
import random
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray
from pocketsphinx import Decoder

from scripts.train_demo.phones import lexicon, taught_words
from scripts.train_demo.sentences import DIGITS, sentence

RATE = 16_000
PEAK = 0.8
COUNTED_SENTENCES = 5000
# Chance of one more word: low, or breath and closures become short words.
WORD_INSERTION = 0.2
DIGIT_INSERTION = 1e-3


class Recogniser:
    """Hears taught words. Not for several threads at once."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            model, grammar = Path(folder) / "words.arpa", Path(folder) / "digits.gram"
            model.write_text(_unigrams())
            grammar.write_text(f"#JSGF V1.0;\ngrammar digits;\npublic <digits> = ( {' | '.join(DIGITS)} )+;\n")
            self._words = Decoder(lm=str(model), samprate=RATE, loglevel="FATAL", wip=WORD_INSERTION)
            self._digits = Decoder(jsgf=str(grammar), samprate=RATE, loglevel="FATAL", wip=DIGIT_INSERTION)

    def hear(self, samples: NDArray[np.float32], rate: int, *, digits: bool = False) -> list[str]:
        """Samples (n,) to words."""
        heard = soxr.resample(samples, rate, RATE)
        loudest = float(np.abs(heard).max(initial=1e-4))
        decoder = self._digits if digits else self._words
        decoder.start_utt()
        decoder.process_raw((heard / loudest * PEAK * 32767).astype("<i2").tobytes(), full_utt=True)
        decoder.end_utt()
        hypothesis = decoder.hyp()
        return [] if hypothesis is None else str(hypothesis.hypstr).split()


def _unigrams() -> str:
    """An ARPA model without a memory: each taught word as likely as the corpus's sentences make it."""
    draw = random.Random(0)
    counts = Counter(taught_words())
    for _ in range(COUNTED_SENTENCES):
        counts.update(re.findall("[a-z]+", sentence(draw)))
    counts["</s>"] = COUNTED_SENTENCES
    total = counts.total()
    entries = ["-99 <s> 0", *(f"{math.log10(count / total):.4f} {word}" for word, count in sorted(counts.items()))]
    return "\n".join(["\\data\\", f"ngram 1={len(entries)}", "", "\\1-grams:", *entries, "", "\\end\\", ""])


def mistakes(said: Sequence[str], heard: Sequence[str]) -> int:
    """Words missing, added or replaced: the edit distance, blind to how a word is written."""
    said, heard = [_sound(word) for word in said], [_sound(word) for word in heard]
    row = list(range(len(heard) + 1))
    for index, wanted in enumerate(said, start=1):
        diagonal, row[0] = row[0], index
        for place, found in enumerate(heard, start=1):
            diagonal, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, diagonal + (wanted != found))
    return row[-1]


@cache
def _sound(word: str) -> str:
    return lexicon().get(word, word)
