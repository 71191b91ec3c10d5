"""Incremental text: cuts a text that arrives in pieces into parts, each of which is read and spoken by itself.

In:    pieces of a text, cut anywhere, even inside a character; flushes
Out:   Parts: what the one-shot path receives, and where each begins in the whole text
Owns:  the characters that belong to no part yet
Never: time; tokens; a part that depends on how the text was cut into pieces

A part ends at a flush. With `sentences`, it also ends behind a sentence as soon as nothing that may follow could change how
the sentence is read. That is where all of this holds:

    end      . ! ? with white space behind, 。 or ！？ behind a Chinese character, or the end of a line; closing quotes and
             brackets may stand between, but not behind a dot within a line
    before   at least LEAST_WEIGHT letters; before a single dot no letter alone, no abbreviation, no one or two digits
    after    a letter, behind opening quotes and brackets but [: a small one only after 。！？, no capital before another one,
             after several dots only a capital, after the end of a line without a sign no capital alone
    around   no HTML tag and no link that is still open

So a sentence waits for two characters of the next one, and everything that is in doubt waits for the next end or the flush: a
number, an abbreviation, markup, half an emoji. A number or a word in capitals whose reading depends on words up to 40
characters away is read by the words of its own part, as are in a text of two languages the numbers and signs of a line that has
neither Chinese nor English prose.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from pipeline.text.normalize import normalize
from pipeline.text.segment import letter_weight

LEAST_WEIGHT = 20
"""shortest part that ends without a flush [letters; a Chinese character counts as three]"""

_CLOSING = "\"'”’」』)）\\]】》"
_OPENING = re.compile("[\"'“‘「『(（【《]*")
_END = re.compile(rf"(?P<signs>[.!?。！？]+)[{_CLOSING}]*(?P<gap>\s*)|[^\S\n]*\n\s*")
_CHINESE_ENDS = frozenset("。！？")
_SHORT_NUMBER = re.compile(r"(?<!\d)\d{1,2}$")  # of a list: "2." before the item
_LAST_WORD = re.compile(r"[A-Za-z]+$")
_LONGEST_ABBREVIATION = 12  # letters
_LONGEST_MARKUP = 6000  # characters; the normaliser reads none that is longer


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the text that is spoken as one request would be."""

    text: str
    start: int
    """place of its first character in the whole text"""


class GrowingText:
    """A text that is still being written."""

    def __init__(self, *, sentences: bool) -> None:
        """
        Args:
            sentences: True: a part also ends behind every sentence whose reading is certain.
        """
        self._sentences = sentences
        self._text = ""  # from the first character that belongs to no part
        self._start = 0  # its place in the whole text
        self._scanned = 0  # characters of _text in which every end is decided
        self._half = ""  # a surrogate whose other half has not arrived

    @property
    def waiting(self) -> int:
        """How many characters belong to no part yet."""
        return len(self._text) + len(self._half)

    def add(self, piece: str) -> list[Part]:
        """Appends a piece; returns the parts that are now certain."""
        piece = _paired(self._half + piece)
        self._half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        self._text += _without_halves(piece.removesuffix(self._half))
        return list(self._cut()) if self._sentences else []

    def flush(self) -> Part | None:
        """Returns the rest of the text as a part; None if there is nothing but white space, which is dropped."""
        rest = self._text + _without_halves(self._half)
        part = Part(rest, self._start) if rest.strip() else None
        self._start += len(rest)
        self._text, self._half, self._scanned = "", "", 0
        return part

    def _cut(self) -> Iterator[Part]:
        begin = 0
        for end in _END.finditer(self._text, self._scanned):
            certain = _ends_sentence(self._text, begin, end)
            if certain is None:
                self._scanned = end.start()
                break
            self._scanned = end.end()
            if certain:
                yield Part(self._text[begin : end.end()], self._start + begin)
                begin = end.end()
        self._text = self._text[begin:]
        self._start += begin
        self._scanned -= begin


def _ends_sentence(text: str, begin: int, end: re.Match[str]) -> bool | None:
    """Returns whether a part that begins at `begin` may end here; None as long as it depends on what follows."""
    signs = end["signs"] or ""
    opening = _OPENING.match(text, end.end())
    following = text[opening.end() if opening else end.end() :][:2]
    if not following or (len(following) == 1 and following.isupper()):
        return None
    return (
        following[0].isalpha()
        and (not following[0].islower() or not _CHINESE_ENDS.isdisjoint(signs))
        and not (following[0].isupper() and following[1].isupper())
        and (".." not in signs or following[0].isupper())
        and (signs != "" or not following[0].isupper() or following[1].isalpha())
        and _is_end(text, end)
        and _is_whole(text[max(begin, end.start() - _LONGEST_MARKUP) : end.start()], signs)
        and letter_weight(text[begin : min(end.start(), begin + LEAST_WEIGHT)]) >= LEAST_WEIGHT
    )


def _is_end(text: str, end: re.Match[str]) -> bool:
    """True for an end of a line, or for signs that end a sentence whatever follows."""
    signs, gap = end["signs"], end["gap"]
    if not signs or "\n" in gap or "。" in signs:
        return True
    if not gap:  # ！？ may be part of a web address, which has no Chinese
        return not _CHINESE_ENDS.isdisjoint(signs) and text[max(0, end.start() - 1)] >= "\u2e80"
    return signs[-1] != "." or end.end("signs") == end.start("gap")


def _is_whole(sentence: str, signs: str) -> bool:
    """True if a text before an end has words, nothing in it is open, and it does not need what follows."""
    if not any(map(str.isalpha, sentence)) or sentence.rfind("<") > sentence.rfind(">"):
        return False
    if sentence.rfind("](") > sentence.rfind(")"):
        return False
    if not signs:
        return sentence[-1].isalpha()
    if signs != ".":
        return True
    word = _LAST_WORD.search(sentence)
    return not (_is_abbreviation(word[0]) if word else _SHORT_NUMBER.search(sentence))


@lru_cache(maxsize=4096)
def _is_abbreviation(word: str) -> bool:
    """True for a letter alone, and for a word whose dot the normaliser does not read as the end of a sentence."""
    if len(word) == 1:
        return True
    return len(word) <= _LONGEST_ABBREVIATION and normalize(f"{word}. Smith").text != f"{normalize(word).text}. Smith"


def _paired(text: str) -> str:
    """Returns the text with the two halves of a character joined that arrived in different pieces."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _without_halves(text: str) -> str:
    """Returns the text with U+FFFD in place of halves without their other half; the normaliser drops and counts it."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
