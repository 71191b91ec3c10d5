"""Cutting: a paragraph as parts, each of them whole sentences.

In:    a paragraph
Out:   texts, in order
Never: a part that is longer than MOST characters; a part without a letter or digit

A part is what is spoken, listened to, and spoken again, at once: a sentence or two.
"""

import re
from collections.abc import Iterator

from pipeline.text.incremental import GrowingText
from pipeline.text.lines import breath
from pipeline.text.normalize.edits import whole_lines
from pipeline.text.segment import letter_weight

ENOUGH = 120
"""a part ends with the sentence that makes it so long [letters; a Chinese character counts as three]"""
MOST = 600
"""longest part; one sentence that is longer is cut at a comma or a space [characters]"""

_CUTS = (
    re.compile(r".*\n", re.DOTALL),
    re.compile(r".*[;；:：](?=\s|[\u3000-\u9fff])", re.DOTALL),
    re.compile(r".*(?:[，、]|,(?=\s+\D|$))", re.DOTALL),
)
_BORDER = re.compile(r"(?<=\S)(?=\s)|(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])")


def cut_paragraph(paragraph: str) -> Iterator[str]:
    """Yields the parts of a paragraph."""
    part = ""
    for sentence in _sentences(paragraph):
        if part and len(part) + len(sentence) > MOST:
            yield part.strip()
            part = ""
        part += sentence
        if letter_weight(part) >= ENOUGH:
            yield part.strip()
            part = ""
    if is_speakable(part):
        yield part.strip()


def is_speakable(text: str) -> bool:
    """True if a text has a letter or a digit."""
    return any(map(str.isalnum, text))


def _sentences(paragraph: str) -> Iterator[str]:
    growing = GrowingText(sentences=True)
    parts = growing.add(whole_lines(paragraph))
    rest = growing.flush()
    for part in (*parts, *(() if rest is None else (rest,))):
        yield from filter(is_speakable, _short_enough(part.text))


def _short_enough(sentence: str) -> Iterator[str]:
    place = 0
    while len(sentence) - place > MOST:
        window = sentence[place : place + MOST]
        cut = next((match.end() for pattern in _CUTS if (match := pattern.match(window))), 0) or _breath(window)
        yield window[:cut]
        place += cut
    yield sentence[place:]


def _breath(window: str) -> int:
    """Returns the best place to breathe in a stretch without a sign, a late one; its end if there is none."""
    borders = [match.start() for match in _BORDER.finditer(window, 1)]
    late = [place for place in borders if place * 3 > len(window) * 2] or borders[-1:]
    return max(
        late, key=lambda place: (breath(window[max(0, place - 30) : place], window[place : place + 30]), place), default=MOST
    )
