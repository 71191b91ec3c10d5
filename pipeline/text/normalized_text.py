"""NormalizedText: what became of a text: the words that are said, and where every written character went.

In:    str pieces and their places
Out:   NormalizedText
Owns:  nothing
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
    """A text as it is said.

    The spans tile both sides: each begins where the one before it ends, in the source and in `text`, and the last
    ends where the source and `text` end. Only a dropped span has no spoken side. The warnings' counts add up to
    the characters of the dropped spans.
    """

    text: str = ""
    spans: tuple[Span, ...] = ()
    warnings: tuple[TextWarning, ...] = ()

    @property
    def source_length(self) -> int:
        return self.spans[-1].source_stop if self.spans else 0
