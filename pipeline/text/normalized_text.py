"""NormalizedText: what became of a text: the words that are said, and where every written character went.

In:    str pieces and their places
Out:   NormalizedText
Owns:  nothing
Never: rules, languages, tokens
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

SpanKind = Literal["text", "control", "dropped"]


@dataclass(frozen=True, slots=True)
class Span:
    """Characters [source_start, source_stop) are heard as characters [spoken_start, spoken_stop)."""

    source_start: int
    source_stop: int
    spoken_start: int
    spoken_stop: int
    kind: SpanKind
    """text: said; control: a control token, itself; dropped: not heard, and counted in a warning"""

    def shift(self, source: int, spoken: int) -> "Span":
        return Span(
            self.source_start + source,
            self.source_stop + source,
            self.spoken_start + spoken,
            self.spoken_stop + spoken,
            self.kind,
        )


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

    def shift(self, source: int, spoken: int) -> tuple[Span, ...]:
        """The spans of this text as a part of a longer one."""
        return tuple(span.shift(source, spoken) for span in self.spans)


def whole(source_length: int, text: str) -> NormalizedText:
    """`source_length` characters that are heard, all of them together, as `text`: an alias, a name, a number read out."""
    assert source_length > 0, "an empty source has no span"
    assert text, "what is not heard is `dropped`"
    return NormalizedText(text, (Span(0, source_length, 0, len(text), "text"),))


def dropped(source_length: int, code: str) -> NormalizedText:
    """`source_length` characters that are not heard, and why."""
    assert source_length > 0, "an empty source has no span"
    return NormalizedText("", (Span(0, source_length, 0, 0, "dropped"),), (TextWarning(code, source_length),))


def concat(parts: Iterable[NormalizedText], *, joint: str = "") -> NormalizedText:
    """Parts whose sources follow each other, as one.

    Args:
        joint: said between two parts that both say something; it belongs to the later one's first audible span.
    """
    pieces: list[str] = []
    spans: list[Span] = []
    counts: dict[str, int] = {}
    source = spoken = 0
    for part in parts:
        moved = part.shift(source, spoken)
        if joint and spoken and part.text:
            first = next(index for index, span in enumerate(moved) if span.kind != "dropped")
            moved = (
                *moved[:first],
                replace(moved[first], spoken_stop=moved[first].spoken_stop + len(joint)),
                *(span.shift(0, len(joint)) for span in moved[first + 1 :]),
            )
            pieces.append(joint)
            spoken += len(joint)
        pieces.append(part.text)
        spans += moved
        source += part.source_length
        spoken += len(part.text)
        for warning in part.warnings:
            counts[warning.code] = counts.get(warning.code, 0) + warning.count
    return NormalizedText("".join(pieces), tuple(spans), tuple(TextWarning(code, count) for code, count in counts.items()))
