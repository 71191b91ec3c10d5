"""Normalised text: the words that are spoken, and where every written character went.

In:    Span
Out:   NormalizedText
Never: rules, languages, tokens
"""

from dataclasses import dataclass

from pipeline.types import Span


@dataclass(frozen=True, slots=True)
class TextWarning:
    """Why characters were dropped, and how many of them."""

    code: str
    count: int
    """source characters"""


@dataclass(frozen=True, slots=True)
class NormalizedText:
    """A text as it is spoken.

    The spans tile both sides: each begins where the one before it ends, in the source and in `text`, and the last
    ends where the source and `text` end. Only a dropped span has no spoken side. The warnings' counts add up to
    the characters of the dropped spans.
    """

    text: str = ""
    spans: tuple[Span, ...] = ()
    warnings: tuple[TextWarning, ...] = ()
