"""Text: a request's text on its way to the acoustic model: segments, prompts, and where every written character went.

In:    Prosody and SchedulingParams of the request
Out:   SpeechText, SpeechPlan, Prompt, Refined
Owns:  nothing
Never: rules of any language, the tokenizer
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.types.request import Prosody, SchedulingParams

SpanKind = Literal["text", "control", "dropped"]
Op = Literal["equal", "insert", "delete", "replace"]


class Head(StrEnum):
    """Which output head a sequence draws from."""

    CODE = "code"
    """four audio codes a step"""
    TEXT = "text"
    """one text token a step: the refine pass"""


@dataclass(frozen=True, slots=True)
class Span:
    """Characters [source_start, source_stop) are heard as characters [spoken_start, spoken_stop)."""

    source_start: int
    source_stop: int
    spoken_start: int
    spoken_stop: int
    kind: SpanKind
    """text: said; control: a control token, itself; dropped: not heard, and counted in a warning"""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the text that is synthesised as one sequence."""

    text: str
    """speakable text, control tags included"""
    index: int
    is_last: bool
    language: str = "en"
    """zh or en: what most of it is in"""
    source: tuple[int, int] = (0, 0)
    """the characters of the request's text it came from: [start, stop)"""
    prosody: Prosody = field(default_factory=Prosody)
    silence_ms: int = 0
    """exact silence before it"""


@dataclass(frozen=True, slots=True)
class SpeechText:
    """What is going to be said."""

    segments: tuple[Segment, ...]
    spans: tuple[tuple[Span, ...], ...]
    """one tuple a segment: the request's characters, and the segment's they are heard as"""
    closing_silence_ms: int
    warnings: tuple[tuple[str, int], ...]
    """code and how many characters"""
    dropped: tuple[tuple[int, int], ...]
    """the request's characters that are not heard"""


@dataclass(frozen=True, slots=True)
class Change:
    """Words that follow each other and share a fate."""

    op: Op
    source: str
    refined: str


@dataclass(frozen=True, slots=True)
class Refined:
    """One segment and what the refine pass made of it."""

    source: str
    refined: str
    diff: tuple[Change, ...]
    accepted: bool


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """What the GPT is prefilled with, and how long it may go on."""

    ids: NDArray[np.int64]  # (S, 4): text positions repeat their id in all four columns
    text_mask: NDArray[np.bool_]  # (S,): True where `ids` is text, False where it is audio codes
    head: Head
    segment: Segment
    max_steps: int
    """the step cap, derived from the segment's text"""
    speaker: NDArray[np.float16] | None = None  # (width,), not normalised
    speaker_position: int | None = None
    """where the embedding replaces the text embedding: the place of [spk_emb]"""
    scheduling: SchedulingParams = field(default_factory=SchedulingParams)
    """how it stands in line; changes no step"""
    eos_token: int | None = None
    """the text token that ends a TEXT sequence; CODE sequences end at the codebook's last entry"""


@dataclass(frozen=True, slots=True, eq=False)
class SpeechPlan:
    """Everything the text has to say about a request: what the model is given, and what was noticed on the way."""

    prompts: tuple[Prompt, ...]
    """one a segment, in order; TEXT prompts before a refine pass, else CODE prompts"""
    closing_silence_ms: int = 0
    """exact silence after the last segment"""
    warnings: tuple[tuple[str, int], ...] = ()
    """(code, how often) of everything in the text that could not be spoken as written"""
