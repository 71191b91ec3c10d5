"""Words: the words of a segment whose times can be told, and their places in the prompt.

In:    a segment, its spans, the request's text, where each position of the prompt comes from
Out:   SpokenWords
Never: audio, the model
"""

from collections.abc import Sequence

from pipeline.text.markup.control_tags import neutralise
from pipeline.types import Segment, Span, SpokenWord

Range = tuple[int, int]

_AROUND = ' \t\r\n\u3000"\u201c\u201d\u2018\u2019\u300c\u300d\u300e\u300f()\uff08\uff09[]\u3010\u3011\u300a\u300b<>*_`'
"""what stands around a word and is no part of it"""


def spoken_words(
    segment: Segment, spans: Sequence[Span], written: str, places: Sequence[Range | None]
) -> tuple[SpokenWord, ...]:
    """Returns the words of a segment. Characters that are read together, such as $5, are one word.

    Args:
        written: the request's text.
        places: for each position of the prompt the characters of the segment's text that it stands for; None: for none.
    """
    words = []
    for span in spans:
        reading = segment.text[span.spoken_start : span.spoken_stop]
        if span.kind != "text" or not any(map(str.isalnum, reading)):
            continue
        start, stop = _trimmed(written, span.source_start, span.source_stop)
        spoken = _trimmed(segment.text, span.spoken_start, span.spoken_stop)
        words.append(SpokenWord((start, stop), spoken, _tokens(spoken, places)))
    return tuple(words)


def is_as_spoken(segment: Segment) -> bool:
    """True if the prompt has the text of the segment unchanged, so that its characters can be found there."""
    return neutralise(segment.text).strip() == segment.text


def _trimmed(text: str, start: int, stop: int) -> Range:
    inside = text[start:stop]
    left = len(inside) - len(inside.lstrip(_AROUND))
    kept = inside.strip(_AROUND)
    return (start + left, start + left + len(kept)) if kept else (start, stop)


def _tokens(spoken: Range, places: Sequence[Range | None]) -> Range:
    """Returns the positions that stand for characters of a range, from the first to the last."""
    found = [at for at, place in enumerate(places) if place is not None and place[0] < spoken[1] and place[1] > spoken[0]]
    return (found[0], found[-1] + 1) if found else (0, 0)
