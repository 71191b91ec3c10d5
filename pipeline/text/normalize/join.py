"""Join: puts pieces together to one text, and records where every source character went.

In:    Written, pieces
Out:   NormalizedText
Owns:  nothing
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
"""a text may end in one of these: more is to come"""


@dataclass(slots=True)
class _Entry:
    """Source characters [start, stop) and what is spoken for them. Entries tile the source."""

    start: int
    stop: int
    language: Language = "en"
    said: str = ""
    gap: Gap | None = None
    code: str = ""
    """reason why they are dropped; empty: they are not"""
    is_control: bool = False


def join(written: Written, pieces: list[Piece], source: str) -> NormalizedText:
    """Returns one text with a single stop where several met, none at its beginning, signs of the language's own width."""
    entries = _in_order(written, pieces)
    _separate(entries, source)
    return _spoken(_absorb(entries))


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
            entry.said = piece.outcome
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
        if not entry.said:
            waiting.append(entry)
            continue
        if last:
            strongest = _strongest(waiting)
            language = strongest.language if strongest else entry.language
            separator = _separator(strongest.gap if strongest else None, language, last.said[-1], entry.said[0])
            _carry(separator, strongest, waiting, last, entry)
        last = entry
        waiting = []
    strongest = _strongest(waiting)
    if last and strongest and strongest.gap:
        is_open = strongest.gap in (Gap.COMMA, Gap.LIST) and source[strongest.start : strongest.stop] in _OPEN_END
        if strongest.gap == Gap.STOP or is_open:
            _carry(_MARKS[strongest.language][strongest.gap].rstrip(), strongest, waiting, last, None)


def _strongest(waiting: list[_Entry]) -> _Entry | None:
    gaps = [entry for entry in waiting if entry.gap is not None]
    return max(gaps, key=lambda entry: (entry.gap or 0, not entry.code)) if gaps else None


def _separator(gap: Gap | None, language: Language, left: str, right: str) -> str:
    if gap and gap in _MARKS[language]:
        return _MARKS[language][gap]
    between_letters = _is_letter(left) and _is_letter(right)
    return " " if between_letters or (gap == Gap.SPACE and language == "en") else ""


def _is_letter(sign: str) -> bool:
    return sign.isascii() and sign.isalpha()


def _carry(separator: str, strongest: _Entry | None, waiting: list[_Entry], last: _Entry, following: _Entry | None) -> None:
    """Gives a separator to the gap it comes from, else to the word behind it, else to the word before it."""
    if not separator:
        return
    carriers = [entry for entry in waiting if not entry.code and entry.stop > entry.start]
    if strongest in carriers:
        carriers = [entry for entry in carriers if entry is strongest]
    if carriers:
        carriers[0].said = separator
    elif following and not following.is_control and following.stop > following.start:
        following.said = separator + following.said
    elif not last.is_control:
        last.said += separator


def _absorb(entries: list[_Entry]) -> list[_Entry]:
    """Merges silent signs into the word beside them, and further words of one character into the first."""
    kept: list[_Entry] = []
    start: int | None = None  # where silent signs began that have no word before them
    for entry in entries:
        before = kept[-1] if kept and start is None else None
        if entry.stop == entry.start:
            if entry.said and kept:
                kept[-1].said += entry.said
                kept[-1].code = ""
            continue
        if entry.said or entry.code:
            if start is not None and entry.said and not entry.is_control:
                entry.start = start
            elif start is not None:
                kept.append(_Entry(start, entry.start, code="punctuation"))
            start = None
            kept.append(entry)
        elif before and before.said and not before.is_control:
            before.stop = entry.stop
        elif start is None:
            start = entry.start
    if start is not None:
        kept.append(_Entry(start, entries[-1].stop, code="punctuation"))
    return kept


def _spoken(entries: list[_Entry]) -> NormalizedText:
    spans: list[Span] = []
    counts: dict[str, int] = {}
    heard = 0
    for entry in entries:
        if entry.code and not entry.said:
            counts[entry.code] = counts.get(entry.code, 0) + entry.stop - entry.start
            spans.append(Span(entry.start, entry.stop, heard, heard, "dropped"))
            continue
        stop = heard + len(entry.said)
        spans.append(Span(entry.start, entry.stop, heard, stop, "control" if entry.is_control else "text"))
        heard = stop
    warnings = tuple(TextWarning(code, count) for code, count in sorted(counts.items()))
    return NormalizedText("".join(entry.said for entry in entries), tuple(spans), warnings)
