"""Text replies: the bodies of replies of the text routes.

Out:   models of the replies' JSON
Never: the code that fills them (routes/text.py)
"""

from typing import Literal

from pydantic import BaseModel, Field


class SpanReply(BaseModel):
    """Characters of the input, and the characters of the segment that stand for them."""

    source: tuple[int, int]
    spoken: tuple[int, int]
    kind: Literal["text", "control"]
    pinyin: str | None = Field(None, description="as the request or a lexicon has it")


class WarningReply(BaseModel):
    """A kind of thing in the text that cannot be synthesised as written."""

    code: str
    count: int = Field(description="characters, or elements of SSML")


class SegmentReply(BaseModel):
    """A piece of the text that is synthesised as one."""

    text: str
    language: Literal["zh", "en"]
    source: tuple[int, int] = Field(description="the characters of the input it came from")
    spans: list[SpanReply]


class NormalizeReply(BaseModel):
    """POST /v1/text/normalize."""

    text: str
    segments: list[SegmentReply]
    warnings: list[WarningReply]
    dropped: list[tuple[int, int]] = Field(description="the characters of the input that are not synthesised")
    ignored_fields: list[str]


class PlannedSegment(BaseModel):
    """A segment, and its predicted length."""

    index: int
    text: str
    language: Literal["zh", "en"]
    source: tuple[int, int]
    voice: str
    rate: float
    gain_db: float
    silence_ms: int = Field(description="exact silence before it")
    steps: int = Field(description="predicted; 46.875 steps are one second before any time-stretch")
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
    """Consecutive words with the same kind of change."""

    op: Literal["equal", "insert", "delete", "replace"]
    source: str
    refined: str


class RefinedReply(BaseModel):
    """One segment before and after the refine pass."""

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
    ignored_fields: list[str] = Field(description="includes refine if the checkpoint has no refine pass: the text is unchanged")


class HintReply(BaseModel):
    """The pronunciation of a word in a passage."""

    start: int
    stop: int
    kind: Literal["alias", "pinyin", "say-as"]
    value: str


class PassageReply(BaseModel):
    """Text with one prosody."""

    text: str
    language: Literal["auto", "zh", "en", "dialect"] = Field(description="dialect: Chinese, but not Mandarin; read as Mandarin")
    voice: str | None
    rate: float
    gain_db: float
    silence_ms: int
    hints: list[HintReply]


class MarkReply(BaseModel):
    """The position of a mark."""

    name: str
    position: int = Field(description="characters of the text content before it")


class SsmlReply(BaseModel):
    """POST /v1/text/ssml."""

    text: str
    passages: list[PassageReply]
    marks: list[MarkReply]
    warnings: list[WarningReply]
    ignored_fields: list[str] = Field(description="includes what has no effect on markup, such as lexicon")


class SoundReply(BaseModel):
    """The pronunciation of a word: one of the two fields."""

    alias: str | None = None
    pinyin: str | None = None


class LexiconReply(BaseModel):
    """A stored lexicon."""

    id: str
    entries: dict[str, SoundReply]


class KeptReply(BaseModel):
    """A lexicon that was stored."""

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
