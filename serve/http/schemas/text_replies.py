"""Text replies: what the routes that look at a text answer.

In:    nothing
Out:   models of the replies' JSON
Owns:  nothing
Never: what fills them (routes/text.py)
"""

from typing import Literal

from pydantic import BaseModel, Field


class SpanReply(BaseModel):
    """Characters of the input, and the characters of the segment they are heard as."""

    source: tuple[int, int]
    spoken: tuple[int, int]
    kind: Literal["text", "control"]


class WarningReply(BaseModel):
    """Something in the text that could not be spoken as written."""

    code: str
    count: int = Field(description="characters, or elements of SSML")


class SegmentReply(BaseModel):
    """A piece of the text that is spoken as one."""

    text: str
    language: Literal["zh", "en"]
    source: tuple[int, int] = Field(description="the characters of the input it came from")
    spans: list[SpanReply]


class NormalizeReply(BaseModel):
    """POST /v1/text/normalize."""

    text: str
    segments: list[SegmentReply]
    warnings: list[WarningReply]
    dropped: list[tuple[int, int]] = Field(description="the characters of the input that are not heard")


class PlannedSegment(BaseModel):
    """A segment, and how long it will take to say."""

    index: int
    text: str
    language: Literal["zh", "en"]
    source: tuple[int, int]
    voice: str
    rate: float
    gain_db: float
    silence_ms: int = Field(description="exact silence before it")
    steps: int = Field(description="predicted; 46.875 are a second before any time-stretch")
    seconds: float = Field(description="predicted, without the silence")


class PlanReply(BaseModel):
    """POST /v1/audio/speech/plan."""

    voice: str
    characters: int
    segments: list[PlannedSegment]
    closing_silence_ms: int
    predicted_steps: int
    predicted_seconds: float
    warnings: list[WarningReply]
    dropped: list[tuple[int, int]]
    ignored_fields: list[str]


class ChangeReply(BaseModel):
    """Words that follow each other and share a fate."""

    op: Literal["equal", "insert", "delete", "replace"]
    source: str
    refined: str


class RefinedReply(BaseModel):
    """One segment before and after."""

    source: str
    refined: str
    accepted: bool
    diff: list[ChangeReply]


class RefineReply(BaseModel):
    """POST /v1/text/refine."""

    refined: str
    accepted: bool = Field(description="it was refined, and nothing but control tags and fillers was added, in every segment")
    diff: list[ChangeReply]
    segments: list[RefinedReply]
    seed: int
    ignored_fields: list[str] = Field(description="refine among them: the checkpoint has no refine pass, the text is as it was")


class HintReply(BaseModel):
    """How a word of a passage is to sound."""

    start: int
    stop: int
    kind: Literal["alias", "pinyin", "say-as"]
    value: str


class PassageReply(BaseModel):
    """Text of one prosody."""

    text: str
    language: Literal["auto", "zh", "en"]
    voice: str | None
    rate: float
    gain_db: float
    silence_ms: int
    hints: list[HintReply]


class MarkReply(BaseModel):
    """Where a mark stands."""

    name: str
    position: int = Field(description="characters of the text content before it")


class SsmlReply(BaseModel):
    """POST /v1/text/ssml."""

    text: str
    passages: list[PassageReply]
    marks: list[MarkReply]
    warnings: list[WarningReply]


class SoundReply(BaseModel):
    """How a word sounds; one of the two."""

    alias: str | None = None
    pinyin: str | None = None


class LexiconReply(BaseModel):
    """A stored lexicon."""

    id: str
    entries: dict[str, SoundReply]


class KeptReply(BaseModel):
    """What was kept."""

    id: str
    version: int
    entries: int


class StyleReply(BaseModel):
    """A style of mstts:express-as."""

    id: str
    rate: float
    gain_db: float


class StylesReply(BaseModel):
    """GET /v1/styles."""

    styles: list[StyleReply]
