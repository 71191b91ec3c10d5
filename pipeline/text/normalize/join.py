"""Join: joins pieces to one text, and records where every source character went.

In:    Written, pieces
Out:   NormalizedText
Never: rules, words
"""

from dataclasses import dataclass

from pipeline.text.normalize.options import Language
from pipeline.text.normalize.rule import Drop, Gap
from pipeline.text.normalize.scan import Piece
from pipeline.text.normalize.written import Written
from pipeline.text.normalized_text import NormalizedText, TextWarning
from pipeline.types import Span

_MARKS: dict[Language, dict[Gap, str]] = {
    "zh": {Gap.LIST: "、", Gap.COMMA: "，", Gap.STOP: "。"},
    "en": {Gap.LIST: ", ", Gap.COMMA: ", ", Gap.STOP: ". "},
}
_OPEN_END = frozenset("，,、")
"""a text may end in one of these, since more follows"""


@dataclass(slots=True)
class _Entry:
    """Source characters [start, stop) and their spoken text. Entries tile the source."""

    start: int
    stop: int
    language: Language = "en"
    spoken: str = ""
    gap: Gap | None = None
    code: str = ""
    """the reason why they are dropped; empty if they are not"""
    is_control: bool = False


def join(written: Written, pieces: list[Piece], source: str, edge: int = 0) -> NormalizedText:
    """Returns one text: a single stop in place of several, none at its beginning, signs of the language's own width.

    Args:
        edge: characters of the source before the text itself, which the spans do not count.
    """
    entries = _in_order(written, pieces)
    _separate(entries, source)
    return _normalized(_absorb(entries), edge)


def _in_order(written: Written, pieces: list[Piece]) -> list[_Entry]:
    """Returns pieces and dropped characters in the order of the source. Drops inside a piece are part of it."""
    entries: list[_Entry] = []
    drops = iter(written.drops)
    drop = next(drops, None)
    for piece in pieces:
        start, stop = written.starts[piece.start], written.stops[piece.stop - 1]
        while drop and drop[0] < stop:
            if drop[1] <= start:
                entries.append(_Entry(drop[0], drop[1], code=drop[2]))
            drop = next(drops, None)
        entry = _Entry(start, stop, piece.language, is_control=piece.is_control)
        if isinstance(piece.outcome, Gap):
            entry.gap = piece.outcome
        elif isinstance(piece.outcome, Drop):
            entry.gap, entry.code = piece.outcome.gap, piece.outcome.code
        else:
            entry.spoken = piece.outcome
        entries.append(entry)
    while drop:
        entries.append(_Entry(drop[0], drop[1], code=drop[2]))
        drop = next(drops, None)
    return entries


def _separate(entries: list[_Entry], source: str) -> None:
    """Writes the separator of two words into one of the gaps between them."""
    last: _Entry | None = None
    waiting: list[_Entry] = []
    for entry in entries:
        if not entry.spoken:
            waiting.append(entry)
            continue
        if last:
            strongest = _strongest(waiting)
            language = strongest.language if strongest else entry.language
            separator = _separator(strongest.gap if strongest else None, language, last.spoken[-1], entry.spoken[0])
            _place(separator, strongest, waiting, last, entry)
        last = entry
        waiting = []
    strongest = _strongest(waiting)
    if last and strongest and strongest.gap:
        is_open = strongest.gap in (Gap.COMMA, Gap.LIST) and source[strongest.start : strongest.stop] in _OPEN_END
        if strongest.gap == Gap.STOP or is_open:
            _place(_MARKS[strongest.language][strongest.gap].rstrip(), strongest, waiting, last, None)


def _strongest(waiting: list[_Entry]) -> _Entry | None:
    gaps = [entry for entry in waiting if entry.gap is not None]
    return max(gaps, key=lambda entry: (entry.gap or 0, not entry.code)) if gaps else None


def _separator(gap: Gap | None, language: Language, previous: str, following: str) -> str:
    if gap and gap in _MARKS[language]:
        return _MARKS[language][gap]
    between_letters = _is_letter(previous) and _is_letter(following)
    return " " if between_letters or (gap == Gap.SPACE and language == "en") else ""


def _is_letter(sign: str) -> bool:
    return sign.isascii() and sign.isalpha()


def _place(separator: str, strongest: _Entry | None, waiting: list[_Entry], last: _Entry, following: _Entry | None) -> None:
    """Adds a separator to the gap it comes from, else to the word after it, else to the word before it."""
    if not separator:
        return
    targets = [entry for entry in waiting if not entry.code and entry.stop > entry.start]
    if strongest in targets:
        targets = [entry for entry in targets if entry is strongest]
    if targets:
        targets[0].spoken = separator
    elif following and not following.is_control and following.stop > following.start:
        following.spoken = separator + following.spoken
    elif not last.is_control:
        last.spoken += separator


def _absorb(entries: list[_Entry]) -> list[_Entry]:
    """Merges silent signs into the word beside them, and further words of one character into the first."""
    output: list[_Entry] = []
    start: int | None = None  # of silent signs without a word before them
    for entry in entries:
        before = output[-1] if output and start is None else None
        if entry.stop == entry.start:
            if entry.spoken and output:
                output[-1].spoken += entry.spoken
                output[-1].code = ""
            continue
        if entry.spoken or entry.code:
            if start is not None and entry.spoken and not entry.is_control:
                entry.start = start
            elif start is not None:
                output.append(_Entry(start, entry.start, code="punctuation"))
            start = None
            output.append(entry)
        elif before and before.spoken and not before.is_control:
            before.stop = entry.stop
        elif start is None:
            start = entry.start
    if start is not None:
        output.append(_Entry(start, entries[-1].stop, code="punctuation"))
    return output


def _normalized(entries: list[_Entry], edge: int) -> NormalizedText:
    spans: list[Span] = []
    counts: dict[str, int] = {}
    position = 0
    for entry in entries:
        place, end = entry.start - edge, entry.stop - edge
        if entry.code and not entry.spoken:
            counts[entry.code] = counts.get(entry.code, 0) + end - place
            spans.append(Span(place, end, position, position, "dropped"))
            continue
        stop = position + len(entry.spoken)
        spans.append(Span(place, end, position, stop, "control" if entry.is_control else "text"))
        position = stop
    warnings = tuple(TextWarning(code, count) for code, count in sorted(counts.items()))
    return NormalizedText("".join(entry.spoken for entry in entries), tuple(spans), warnings)
