"""Text: a request's text on its way to the acoustic model: segments, prompts, and where every written character went.

In:    Prosody and SchedulingParams of the request
Out:   SpeechText, SpeechPlan, Prompt, Refined
Never: rules of any language, the tokenizer
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.types.request import Prosody, SchedulingParams
from pipeline.types.timing import SpokenWord

SpanKind = Literal["text", "control", "dropped"]
Op = Literal["equal", "insert", "delete", "replace"]


class Head(StrEnum):
    """Which output head a sequence draws from."""

    CODE = "code"
    """four audio codes per step"""
    TEXT = "text"
    """one text token per step: the refine pass"""


@dataclass(frozen=True, slots=True)
class Span:
    """Source characters [source_start, source_stop) are spoken as characters [spoken_start, spoken_stop)."""

    source_start: int
    source_stop: int
    spoken_start: int
    spoken_stop: int
    kind: SpanKind
    """text: spoken; control: a control tag, kept as it is; dropped: not spoken, and counted in a warning"""


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
    """A request's text as it will be spoken."""

    segments: tuple[Segment, ...]
    spans: tuple[tuple[Span, ...], ...]
    """one tuple per segment: characters of the request and the characters of the segment they became"""
    closing_silence_ms: int
    warnings: tuple[tuple[str, int], ...]
    """code and number of characters"""
    dropped: tuple[tuple[int, int], ...]
    """ranges [start, stop) of the request's characters that are not spoken"""


@dataclass(frozen=True, slots=True)
class Change:
    """Consecutive words with the same difference."""

    op: Op
    source: str
    refined: str


@dataclass(frozen=True, slots=True)
class Refined:
    """One segment before and after the refine pass."""

    source: str
    refined: str
    diff: tuple[Change, ...]
    accepted: bool


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """What the model computes before the first step of a segment (the prefill), and the cap on its steps."""

    ids: NDArray[np.int64]  # (S, 4): text positions repeat their id in all four columns
    text_mask: NDArray[np.bool_]  # (S,): True where `ids` is text, False where it is audio codes
    head: Head
    segment: Segment
    max_steps: int
    """the step cap, derived from the segment's text"""
    least_steps: int = 0
    """fewest steps in which the text can be spoken; 0: any number may be right"""
    speaker: NDArray[np.float16] | None = None  # (width,), not normalised
    speaker_position: int | None = None
    """where the embedding replaces the text embedding: the place of [spk_emb]"""
    scheduling: SchedulingParams = field(default_factory=SchedulingParams)
    """does not affect the steps"""
    eos_token: int | None = None
    """the text token that ends a TEXT sequence; CODE sequences end at the codebook's last entry"""


@dataclass(frozen=True, slots=True, eq=False)
class SpeechPlan:
    """What the text stage returns for a request: the model's prompts and the warnings."""

    prompts: tuple[Prompt, ...]
    """one per segment, in order; TEXT prompts before a refine pass, else CODE prompts"""
    closing_silence_ms: int = 0
    """exact silence after the last segment"""
    warnings: tuple[tuple[str, int], ...] = ()
    """(code, count) of everything in the text that could not be spoken as written"""
    words: tuple[tuple[SpokenWord, ...], ...] = ()
    """of each segment, in order, if the request asks for their times and the text is spoken as it is written"""
