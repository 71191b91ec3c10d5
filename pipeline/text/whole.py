"""Whole: finds what a segment never ends inside: words, numbers with what they count, names, and the numbers of list items.

In:    a text as it is written and as it is spoken; passages
Out:   ranges of the spoken text, in order, without overlap; passages that divide no word
Never: where a text is cut, which is in segment.py
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeline.text.normalize.chinese import words_of
from pipeline.text.normalized_text import NormalizedText
from pipeline.text.segment import Range, letter_weight
from pipeline.types import Passage, Span

LONGEST = 60
"""most letters that are kept together beyond a word; a Chinese character counts as three"""

_STOPS = " ,.，。、"
_LETTERS = r"(?P<chinese>[\u4e00-\u9fff]{1,8})|(?P<latin>(?:[A-Za-z0-9À-ɏ$€£¥%°'’-]|(?<=\d)[.,](?=\d)){1,60})"
_WORD_BEGIN, _WORD_END = re.compile(_LETTERS), re.compile(rf"(?:{_LETTERS})\Z")
_LATIN_NAME = r"(?:[A-Z][A-Za-z'’-]*|[a-z]{1,2}[A-Z][A-Za-z]*)"
_TITLE = r"(?:Mr|Mrs|Ms|Dr|Prof|St|Capt|Lt|Sgt|Gen|Gov|Sen|Rep)\.? "
_ATOMS = (
    # a list's number and the beginning of its item
    re.compile(
        r"(?:(?<=\n)|(?<![\s\S]))[ \t]{0,12}(?:[-*+•>][ \t]{1,4})?"
        r"(?:\(?\d{1,3}[.)、．](?!\d)|（\d{1,3}）|[①-⑳]|[一二三四五六七八九十]{1,3}[、．.])[ \t]{0,4}(?:[*_`]{0,3}\w)"
    ),
    # names of several words, with their numbers: New York, J. K. Rowling, iPhone 16 Pro Max
    re.compile(
        rf"(?<![A-Za-z])(?:{_TITLE})?{_LATIN_NAME}\.?"
        rf"(?: (?:(?:de|van|von|of|the|di|da|bin|al) )?(?:{_LATIN_NAME}\.?|\d{{1,4}}(?![\d.,]))){{1,4}}"
    ),
    re.compile(r"[\u4e00-\u9fff]{1,5}(?:[·•‧][\u4e00-\u9fff]{1,6}){1,3}"),
    re.compile("(?:欧阳|司马|上官|诸葛|夏侯|皇甫|尉迟|公孙|慕容|令狐|司徒|东方|独孤|南宫|端木|轩辕)[\u4e00-\u9fff]{1,2}"),
    # a number and what it counts
    re.compile("[零一二三四五六七八九十百千万亿两点分之]{2,20}[\u4e00-\u9fff]?"),
    re.compile(r"\d[\d.,]{0,20}[%+]?[ \t]?[\u4e00-\u9fff]"),
    re.compile(r"(?<![A-Za-z\d])\d[\d.,]{0,20}%? [a-z]{2,14}(?![A-Za-z])"),
)


def whole_ranges(written: str, spoken: NormalizedText) -> list[Range]:
    """Returns the ranges of a spoken text that stay in one segment."""
    spans = [span for span in spoken.spans if span.kind == "text"]
    ranges = sorted({*_words(written, spoken), *_atoms(written, spoken.text, spans)})
    joined: list[Range] = []
    for start, stop in ranges:
        if not joined or start >= joined[-1][1]:
            joined.append((start, stop))
        elif stop > joined[-1][1] and letter_weight(spoken.text[joined[-1][0] : stop]) <= LONGEST:
            joined[-1] = (joined[-1][0], stop)
    return joined


def whole_words(passages: Sequence[Passage]) -> list[Passage]:
    """Returns passages with the same text; a word that is divided between passages of one voice is in that with most of it."""
    whole: list[Passage] = []
    for passage in passages:
        if whole and not passage.silence_ms and whole[-1].prosody.voice == passage.prosody.voice:
            first, second = whole[-1], passage
            tail, head = _divided(first.text, second.text)
            moved = -tail if tail < head else head
            is_free = all(word.stop <= len(first.text) - tail for word in first.pronunciations)
            if is_free and all(word.start >= head for word in second.pronunciations):
                edge, text = len(first.text) + moved, first.text + second.text
                own = tuple(replace(word, start=word.start - moved, stop=word.stop - moved) for word in second.pronunciations)
                whole[-1], passage = replace(first, text=text[:edge]), replace(second, text=text[edge:], pronunciations=own)
        whole += [passage] if passage.text or passage.silence_ms else []
    return whole


def _divided(first: str, second: str) -> tuple[int, int]:
    """Returns how many characters of the word that goes on from one text in the other stand in either; 0, 0: none does."""
    end, begin = _WORD_END.search(first, max(0, len(first) - LONGEST)), _WORD_BEGIN.match(second)
    if end is None or begin is None or end.lastgroup != begin.lastgroup:
        return 0, 0
    place, tail = 0, len(end[0])
    for word in words_of(end[0] + begin[0]) if end["chinese"] else [end[0] + begin[0]]:
        if place < tail < place + len(word):
            return tail - place, place + len(word) - tail
        place += len(word)
    return 0, 0


def _words(written: str, spoken: NormalizedText) -> Iterator[Range]:
    """Yields the ranges of expanded numbers, addresses and abbreviations, and of Chinese words."""
    for span in spoken.spans:
        reading = spoken.text[span.spoken_start : span.spoken_stop]
        is_word = not reading.isascii() or reading != written[span.source_start : span.source_stop]
        if span.kind == "text" and is_word:
            start, stop = _without_stops(spoken.text, span.spoken_start, span.spoken_stop)
            if stop - start > 1:
                yield start, stop


def _atoms(written: str, spoken: str, spans: list[Span]) -> Iterator[Range]:
    """Yields the ranges of names, counts and list numbers, from the first to the last word they touch."""
    starts = [span.source_start for span in spans]
    stops = [span.source_stop for span in spans]
    for pattern in _ATOMS:
        for match in pattern.finditer(written):
            first, last = bisect_right(stops, match.start()), bisect_left(starts, match.end()) - 1
            if first <= last:
                start, stop = _without_stops(spoken, spans[first].spoken_start, spans[last].spoken_stop)
                if stop - start > 1 and letter_weight(spoken[start:stop]) <= LONGEST:
                    yield start, stop


def _without_stops(spoken: str, start: int, stop: int) -> Range:
    """Returns the range without the stops at its ends: a segment may end at its own stop."""
    reading = spoken[start:stop]
    return start + len(reading) - len(reading.lstrip(_STOPS)), start + len(reading.rstrip(_STOPS))
