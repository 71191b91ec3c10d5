"""Listening: compares recordings of sentences with what should be heard, and lets the teachers say the same sentences.

In:    a sentence of a kind; a recording of it
Out:   Heard; the teacher's recording
Owns:  which recogniser and which teacher belong to a kind
Never: the recognisers themselves, limits
"""

import re
import shutil
import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.capabilities import Language
from scripts.train_demo import mandarin_teacher
from scripts.train_demo import teacher as english_teacher
from scripts.train_demo.held_out import Kind
from scripts.train_demo.mandarin_teacher import MANDARIN_VOICES
from scripts.train_demo.recogniser import Recogniser, mistakes
from scripts.train_demo.sentences import words_of
from scripts.train_demo.syllable_recogniser import SyllableRecogniser, as_heard
from scripts.train_demo.syllables import CHARACTER, readings
from scripts.train_demo.word_errors import edits

KINDS: dict[Language, tuple[Kind, ...]] = {"en": ("words", "digits", "everyday", "balanced", "names"), "zh": ("mandarin",)}
TEACHERS: dict[Language, str] = {"en": "flite", "zh": "espeak-ng"}
"""Debian packages"""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A sentence as samples (n,) at `rate`, and the seconds its synthesis took."""

    samples: NDArray[np.float32]
    rate: int
    took_s: float


@dataclass(frozen=True, slots=True)
class Heard:
    """What should be heard, what was recognised: English words, or Mandarin syllables with tones; the number of mistakes."""

    expected: list[str]
    recognised: list[str]
    mistakes: int


def language_of(kind: Kind) -> Language:
    """Returns the language of a kind's sentences."""
    return next(language for language, kinds in KINDS.items() if kind in kinds)


class Listener:
    """Recognises sentences of every kind. Use it from one thread at a time."""

    @cached_property
    def _english(self) -> Recogniser:
        return Recogniser()

    @cached_property
    def _mandarin(self) -> SyllableRecogniser:
        return SyllableRecogniser()

    def compare(self, kind: Kind, sentence: str, recording: Recording) -> Heard:
        """Returns what is recognised in the recording of a sentence, and its mistakes."""
        if language_of(kind) == "zh":
            syllables = as_heard(syllables_of(sentence))
            recognised_syllables = self._mandarin.transcribe(recording.samples, recording.rate)
            return Heard(syllables, recognised_syllables, edits(syllables, recognised_syllables))
        expected = words_of(sentence.replace("'", ""))
        recognised = self._english.transcribe(recording.samples, recording.rate, kind)
        return Heard(expected, recognised, mistakes(expected, recognised))


def syllables_of(sentence: str) -> list[str]:
    """Returns the syllables of a Chinese sentence, read in its words' context."""
    return [syllable for run in re.findall(f"{CHARACTER.pattern}+", sentence) for syllable in readings(run)]


def has_teacher(language: Language) -> bool:
    """Returns whether the teacher of a language is installed."""
    return shutil.which(TEACHERS[language]) is not None


def teacher(kind: Kind, sentence: str) -> Recording:
    """Synthesises a sentence with the teacher's own voice."""
    started = time.perf_counter()
    if language_of(kind) == "zh":
        spoken = mandarin_teacher.speak(pinyin(sentence), MANDARIN_VOICES[0])
        if spoken is None:
            raise ValueError(f"espeak-ng does not say the syllables of {sentence!r}")
        return Recording(spoken.samples, mandarin_teacher.RATE, time.perf_counter() - started)
    samples = english_teacher.speak(sentence)
    return Recording(samples, english_teacher.RATE, time.perf_counter() - started)


def pinyin(sentence: str) -> str:
    """Returns a Chinese sentence for espeak-ng: syllables, commas and full stops."""
    runs = re.findall(rf"{CHARACTER.pattern}+|[，。？！]", sentence)
    signs = {"，": ",", "。": ".", "？": ".", "！": "."}
    return re.sub(r" (?=[,.])", "", " ".join(signs.get(run) or " ".join(readings(run)) for run in runs))
