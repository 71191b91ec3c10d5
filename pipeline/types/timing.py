"""Timing: what is said when in the audio of a reply.

Out:   TimedItem, and what it is found from: SpokenWord, Followed
Never: seconds: times are samples of the reply, counted where they are made
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class TimeDetail(StrEnum):
    """How finely a request asks for times."""

    OFF = "off"
    SEGMENT = "segment"
    WORD = "word"
    LIVE = "live"
    """words; audio waits for them only while the listener is ahead"""


TIMES_OF_WORDS = (TimeDetail.WORD, TimeDetail.LIVE)


class TimeKind(StrEnum):
    """What a time is the time of."""

    SEGMENT = "segment"
    BREAK = "break"
    """silence that the text asks for"""
    MARK = "mark"
    """a mark of SSML: a moment"""
    WORD = "word"


class TimeQuality(StrEnum):
    """How a time was found."""

    EXACT = "exact"
    """counted in samples"""
    ATTENTION = "attention"
    """where the model looked in the text while it spoke"""
    ESTIMATED = "estimated"
    """by the lengths of the words, between times that are exact"""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the text whose time is wanted."""

    name: str
    position: int
    """characters of the text before it"""
    silence_ms: int = 0
    """of the silence between these characters and the next ones, how much comes before it"""


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word of a segment, or characters that are read as several words: $5."""

    source: tuple[int, int]
    """characters of the request's text: [start, stop)"""
    spoken: tuple[int, int]
    """characters of the segment's text"""
    tokens: tuple[int, int] = (0, 0)
    """positions of the prompt; empty: not known"""


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """Where the model looked in the prompt, step by step."""

    path: NDArray[np.int64]  # (m,) the position that each step says, which never goes back; as far as it is decided
    looked: NDArray[np.int64]  # (n,) the position that each step looks at most


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the text was spoken, as far as the model's attention tells."""

    words: int = 0
    swallowed: int = 0
    """words that no step looks at"""
    repeated: int = 0
    """words that the speech goes back to"""

    @property
    def share(self) -> float:
        """Share of the words that were spoken once."""
        return 1.0 - min(self.words, self.swallowed + self.repeated) / self.words if self.words else 1.0

    def __add__(self, other: "Coverage") -> "Coverage":
        return Coverage(self.words + other.words, self.swallowed + other.swallowed, self.repeated + other.repeated)


@dataclass(frozen=True, slots=True)
class TimedItem:
    """Something in the audio: samples [start, stop) of the reply. Items of one kind never overlap and never go back."""

    kind: TimeKind
    start: int
    stop: int
    quality: TimeQuality
    segment: int
    """index of the segment; of a break: the one after it"""
    source: tuple[int, int] = (0, 0)
    """characters of the request's text: [start, stop); empty for a break"""
    reading: str = ""
    """as it is spoken; of a mark: its name"""
    before: str = ""
    """of a word: spoken characters between it and the word before, or the beginning of its segment"""
    voice: str | None = None
    """of a segment: name of its voice; None: the request's"""
