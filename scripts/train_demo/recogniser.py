"""Recogniser: pocketsphinx transcribes speech, and the mistakes are counted.

In:    samples, and what they may consist of: digits, taught words, or any English
Out:   words; numbers of mistakes
Owns:  three recognisers: a loop of digits, the taught words in any order, as likely as in the corpus, and pocketsphinx's own
       dictionary and language model
Never: the network: the wheel of pocketsphinx contains its English model

Words that sound alike (two, to, too) count as one word.
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

from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.text.pronunciation import Pronunciation, read_pronunciation
from scripts.train_demo.held_out import Kind
from scripts.train_demo.phones import taught_words
from scripts.train_demo.sentences import DIGITS, sentence
from scripts.train_demo.word_errors import edits

RATE = 16_000
PEAK = 0.8
COUNTED_SENTENCES = 5000
# Probability of one more word. It is low, because breath and closures would otherwise become short words.
WORD_INSERTION = 0.2
DIGIT_INSERTION = 1e-3


class Recogniser:
    """Transcribes taught words. Use it from one thread at a time."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            model, grammar = Path(folder) / "words.arpa", Path(folder) / "digits.gram"
            model.write_text(_unigrams())
            grammar.write_text(f"#JSGF V1.0;\ngrammar digits;\npublic <digits> = ( {' | '.join(DIGITS)} )+;\n")
            self._words = Decoder(lm=str(model), samprate=RATE, loglevel="FATAL", wip=WORD_INSERTION)
            self._digits = Decoder(jsgf=str(grammar), samprate=RATE, loglevel="FATAL", wip=DIGIT_INSERTION)
        self._any = Decoder(samprate=RATE, loglevel="FATAL")

    def transcribe(self, samples: NDArray[np.float32], rate: int, kind: Kind = "words") -> list[str]:
        """Returns the words in samples (n,), recognised as sentences of a kind."""
        resampled = soxr.resample(samples, rate, RATE)
        loudest = float(np.abs(resampled).max(initial=1e-4))
        decoder = {"digits": self._digits, "words": self._words}.get(kind, self._any)
        decoder.start_utt()
        decoder.process_raw((resampled / loudest * PEAK * 32767).astype("<i2").tobytes(), full_utt=True)
        decoder.end_utt()
        hypothesis = decoder.hyp()
        text = "" if hypothesis is None else str(hypothesis.hypstr)
        return [re.sub(r"\(\d+\)|'", "", word) for word in text.split()]


def _unigrams() -> str:
    """Returns an ARPA model of unigrams: each taught word is as likely as in the sentences of the corpus."""
    draw = random.Random(0)
    counts = Counter(taught_words())
    for _ in range(COUNTED_SENTENCES):
        counts.update(re.findall("[a-z]+", sentence(draw)))
    counts["</s>"] = COUNTED_SENTENCES
    total = counts.total()
    entries = ["-99 <s> 0", *(f"{math.log10(count / total):.4f} {word}" for word, count in sorted(counts.items()))]
    return "\n".join(["\\data\\", f"ngram 1={len(entries)}", "", "\\1-grams:", *entries, "", "\\end\\", ""])


def mistakes(expected: Sequence[str], recognised: Sequence[str]) -> int:
    """Returns the number of words missing, added or replaced: over sounds, not spellings."""
    return edits([_sound(word) for word in expected], [_sound(word) for word in recognised])


@cache
def _sound(word: str) -> str:
    return _pronunciation().of(word)


@cache
def _pronunciation() -> Pronunciation:
    pronunciation = read_pronunciation(DEMO_FOLDER)
    assert pronunciation is not None
    return pronunciation
