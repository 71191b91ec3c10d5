"""Incremental text: cuts a text that arrives in pieces into parts, each of which is read and spoken by itself.

In:    pieces of a text, cut anywhere, even inside a character; flushes
Out:   Parts: what the one-shot path receives, and where each begins in the whole text
Owns:  the characters that belong to no part yet
Never: time; tokens; a part that depends on how the text was cut into pieces; a character that is scanned more than three times

A part ends at a flush. With `sentences`, it also ends behind a sentence as soon as nothing that may follow could change how
the sentence is read. That is where all of this holds:

    end      . ! ? with white space behind, 。 or ！？ behind a Chinese character, or the end of a line; closing quotes and
             brackets may stand between, but not behind a dot within a line
    before   at least LEAST_WEIGHT letters; before a single dot no letter alone, no abbreviation, no one to three digits; a word
             before several dots, which are a prompt where they begin a line; no line that may be of a list or begin a table
    after    a letter, behind opening quotes and brackets but [: a small one only after 。！？, no capital before another one,
             after several dots only a capital, after the end of a line without a sign no capital alone
    around   no tag, link or code that may still be open, no element of which nothing is spoken, no row of a table, no line that
             goes on in the next

So a sentence waits for two characters of the next one, and everything that is in doubt waits for the next end or the flush: a
number, an abbreviation, markup, half an emoji. What stands before a part is known where it is read: the length of its line, an
open quote. What comes behind it is not: a number or a word in capitals at its end is read without the words of the next part,
and in a text of two languages the numbers and signs of a line that has neither Chinese nor English prose have that of the part.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from string import ascii_letters

from pipeline.text.lines import goes_on, is_short
from pipeline.text.markup.elements import SOUNDS, Sound
from pipeline.text.normalize.tables import word_list
from pipeline.text.segment import letter_weight

LEAST_WEIGHT = 20
"""shortest part that ends without a flush [letters; a Chinese character counts as three]"""
BESIDE = 48
"""characters before a part that the reading of its words may depend on"""
HEAVIEST = 3
"""letters that a character counts as, at most"""

_SIGNS = frozenset(".!?。！？")
_CLOSING = frozenset("\"'”’」』)）]】》")
_OPENING = frozenset("\"'“‘「『(（【《")
_UNHEARD_CHANNELS = ("analysis", "commentary")
_CHINESE_ENDS = frozenset("。！？")
_SPACES = frozenset(filter(str.isspace, map(chr, range(0x3001))))
_TELLING = _SIGNS | _SPACES | frozenset("<>()")
"""characters that say something about where a text ends"""
_LONGEST_TAG = 60
_LONGEST_LINE = 400
_LONGEST_MARKUP = 6000  # characters; the normaliser reads none that is longer
_LONGEST_TARGET = 400  # in a tag or a link
_LONGEST_CODE = 60  # in a line
_LONGEST_FENCE = 1000
_ABBREVIATIONS = frozenset(word_list("abbreviated"))
"""words whose dot the normaliser does not read as the end of a sentence"""
_LONGEST_ABBREVIATION = max(map(len, _ABBREVIATIONS))


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the text that is spoken as one request would be."""

    text: str
    start: int
    """place of its first character in the whole text"""
    behind: str = ""
    """what stands before it: its line so far, and whole lines of BESIDE characters and more; its reading depends on that"""


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
        self._scan = _Scan()  # of _text
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
        part = Part(rest, self._start, self._scan.line) if rest.strip() else None
        self._start += len(rest)
        self._text, self._half, self._scan = "", "", _Scan()
        return part

    def _cut(self) -> Iterator[Part]:
        scan = self._scan
        while scan.reaches_an_end(self._text):
            if scan.ends_a_part(self._text):
                part = Part(self._text[scan.begin : scan.stop], self._start + scan.begin, scan.line)
                scan.begin, scan.line = scan.stop, _last_lines(part.behind + part.text)
                yield part
            scan.go_on(self._text)
        begin = scan.begin
        self._text = self._text[begin:]
        self._start += begin
        scan.move(begin)


class _Phase(Enum):
    """What a scan is looking at."""

    TEXT = auto()
    SIGNS = auto()
    CLOSING = auto()
    GAP = auto()
    OPENING = auto()
    FOLLOWING = auto()


@dataclass(slots=True)
class _Scan:
    """Where a text may end: one pass over it, which goes on when more of it has come. Places count from its beginning."""

    at: int = 0
    """the next character"""
    begin: int = 0
    """of the present part"""
    line: str = ""
    """what stands behind it"""
    phase: _Phase = _Phase.TEXT
    start: int = 0
    """of the end that is being looked at: its signs, then closing quotes and brackets, then white space"""
    signs: int = 0
    """behind its signs; `start` if it has none, and is the end of a line"""
    gap: int = 0
    """where its white space begins"""
    stop: int = 0
    """behind it"""
    has_line_end: bool = False
    letter: int = -1
    """the last letter before `known`, as far as it is; -1: there is none"""
    known: int = -1
    """the last character that was looked at for that"""
    less: int = -1
    """the last <"""
    greater: int = -1
    """the last >"""
    link: int = -1
    """the last ]("""
    bracket: int = -1
    """the last )"""
    fence: int = 0
    """behind the line of the last fence of code"""
    is_fenced: bool = False
    """that fence begins a block"""
    row: int = 0
    """the first line that was not looked at for that"""
    silent: str = ""
    """the element that is open and of which nothing is spoken"""

    def reaches_an_end(self, text: str) -> bool:
        """Scans on; returns True at a possible end whose following characters are known, False where the text ends."""
        size = len(text)
        while self.at < size:
            phase = self.phase
            if phase is _Phase.TEXT:
                self._read_text(text, size)
                continue
            character = text[self.at]
            if phase is _Phase.SIGNS:
                if character not in _SIGNS:
                    self.phase, self.signs = _Phase.CLOSING, self.at
                    continue
            elif phase is _Phase.CLOSING:
                if character not in _CLOSING:
                    self.phase, self.gap = _Phase.GAP, self.at
                    continue
            elif phase is _Phase.GAP:
                if not character.isspace():
                    is_end = self.signs != self.start or self.has_line_end
                    self.phase, self.stop = (_Phase.OPENING, self.at) if is_end else (_Phase.TEXT, self.stop)
                    continue
                self.has_line_end = self.has_line_end or character == "\n"
            elif phase is _Phase.OPENING:
                if character not in _OPENING:
                    self.phase = _Phase.FOLLOWING
                    continue
            else:
                return self.at + 1 < size or not character.isupper()
            self.at += 1
        return False

    def _read_text(self, text: str, size: int) -> None:
        """Reads up to the first sign or white space of a possible end."""
        for place in range(self.at, size):
            character = text[place]
            if character not in _TELLING:
                continue
            if character in _SIGNS:
                self.phase, self.start, self.has_line_end = _Phase.SIGNS, place, False
            elif character in _SPACES:
                if character == " " and place + 1 < size and text[place + 1] not in _TELLING:
                    continue  # between two words
                self.start = self.signs = self.gap = place
                self.phase, self.has_line_end = _Phase.GAP, character == "\n"
            else:
                self._note(text, place)
                continue
            self.at = place + 1
            return
        self.at = size

    def ends_a_part(self, text: str) -> bool:
        """Returns whether the present part may end at the end that was reached."""
        if HEAVIEST * (self.start - self.begin) < LEAST_WEIGHT:
            return False
        signs, following = text[self.start : self.signs], text[self.at : self.at + 2]
        word = text[self.start - 2 : self.start].rstrip(" ")[-1:].isalnum()  # not so before the dots of a prompt
        return (
            following[0].isalpha()
            and (not following[0].islower() or not _CHINESE_ENDS.isdisjoint(signs))
            and not (following[0].isupper() and following[1].isupper())
            and (".." not in signs or (following[0].isupper() and word))
            and (signs != "" or (text[self.stop - 1] == "\n" and (not following[0].isupper() or following[1].isalpha())))
            and self._is_end(text, signs)
            and self._is_whole(text, signs)
            and letter_weight(text[self.begin : min(self.start, self.begin + LEAST_WEIGHT)]) >= LEAST_WEIGHT
        )

    def go_on(self, text: str) -> None:
        """Leaves the end that was reached behind."""
        for place in range(self.signs, self.gap):
            self._note(text, place)
        self.at, self.phase = self.stop, _Phase.TEXT

    def move(self, places: int) -> None:
        """Has the text begin so many characters later."""
        for name in (
            "at",
            "begin",
            "start",
            "signs",
            "gap",
            "stop",
            "letter",
            "known",
            "less",
            "greater",
            "link",
            "bracket",
            "fence",
            "row",
        ):
            setattr(self, name, getattr(self, name) - places)

    def _note(self, text: str, place: int) -> None:
        """Notes what a character of a sentence says about it."""
        character = text[place]
        is_comment = self.less > self.greater and text.startswith("<!--", self.less)
        if character == "<":
            self.less = self.less if is_comment else place
        elif character == ">" and (not is_comment or text.endswith("--", self.less + 4, place)):
            self.greater = place
            first = max(self.less, place - _LONGEST_TAG, 0)
            self._note_tag(text[first:place], text[max(0, first - _LONGEST_TAG) : first])
        elif character == ")":
            self.bracket = place
        elif character == "(" and place > 0 and text[place - 1] == "]":
            self.link = place - 1

    def _note_tag(self, tag: str, before: str) -> None:
        if tag.startswith("<|"):  # of a model, whose channel but the last is not heard
            is_unheard = tag == "<|message|" and before.rpartition("<|channel|>")[2].startswith(_UNHEARD_CHANNELS)
            self.silent = "|" if is_unheard else "" if self.silent == "|" else self.silent
            return
        name = tag[1:].lstrip("/").split()[0].lower() if tag[:1] == "<" and tag[1:].lstrip("/").strip() else ""
        if self.silent:
            self.silent = "" if tag.startswith("</") and name == self.silent else self.silent
        elif SOUNDS.get(name) is Sound.SILENT and tag[1] != "/" and tag[-1] != "/":
            self.silent = name

    def _is_end(self, text: str, signs: str) -> bool:
        """True for an end of a line, or for signs that end a sentence whatever follows."""
        if not signs or self.has_line_end or "。" in signs:
            return True
        if self.gap == self.stop:  # ！？ may be part of a web address, which has no Chinese
            return not _CHINESE_ENDS.isdisjoint(signs) and text[max(0, self.start - 1)] >= "\u2e80"
        return signs[-1] != "." or self.signs == self.gap

    def _goes_on(self, text: str) -> bool:
        """True if the end is inside a row, or one of a single line, in a sentence that goes on behind it."""
        first = max(self.begin, self.start - _LONGEST_LINE)
        lines = ((self.line if first == self.begin else "") + text[first : self.gap]).replace("<|", "").replace("|>", "")
        before, _, line = lines.rpartition("\n")
        is_row = "|" in before.rpartition("\n")[2]
        if not self.has_line_end:
            return (is_row or "|" in line) and self.start - self.begin < _LONGEST_MARKUP
        is_single = text.count("\n", self.gap, self.stop) == 1 and not (is_row and "|" in line)
        return is_single and (is_short(line) or "|" in line or goes_on(line, text[self.at : self.at + 2]))

    def _is_open(self, text: str, opening: int, closing: int, mark: str) -> bool:
        """True if a tag, a comment or a link's target that begins at `opening` may go on; one with blanks has `mark`."""
        if opening <= closing or opening < self.begin:
            return False
        inner, length = text[opening : min(self.start, opening + _LONGEST_TARGET)], self.start - opening
        if inner.startswith("<!--"):
            return length < _LONGEST_MARKUP
        is_near = length < _LONGEST_TARGET and (inner[1:2].isalpha() or inner[1:2] in ("(", "/", "|", "!", "?"))
        return is_near and (mark in inner or not any(map(str.isspace, inner)))

    def _is_code(self, text: str) -> bool:
        """True in code that may go on behind the end: between fences, or between ticks of its line."""
        while (stop := text.find("\n", max(self.row, self.known), self.stop)) >= 0:
            if self.row >= self.begin and _is_fence(text[self.row : stop]):
                self.fence, self.is_fenced = stop, not self.is_fenced
            self.row = stop + 1
        if self.is_fenced and self.start - self.fence < _LONGEST_FENCE:
            return True
        first = max(self.begin, self.start - _LONGEST_LINE)
        line = text[max(first, text.rfind("\n", first, self.start)) : self.start]
        _, tick, inner = line[-_LONGEST_CODE:].rpartition("`")
        return tick != "" and line.count("`") % 2 == 1 and not inner[:1].isspace()

    def _is_whole(self, text: str, signs: str) -> bool:
        """True if the text before the end has words, nothing in it is open, and it does not need what follows."""
        first = max(self.begin, self.start - _LONGEST_MARKUP)
        place = self.start - 1
        while place > self.known and not text[place].isalpha():
            place -= 1
        is_code = self._is_code(text)
        self.letter, self.known = max(place, self.letter) if place > self.known else self.letter, self.start - 1
        if self.silent or is_code or self.letter < first or self._goes_on(text):
            return False
        if self._is_open(text, self.less, self.greater, "=") or self._is_open(text, self.link, self.bracket, '"'):
            return False
        if not signs:
            return text[self.start - 1].isalpha()
        return signs != "." or not _needs_more(text[max(first, self.start - _LONGEST_ABBREVIATION - 2) : self.start])


def _is_fence(line: str) -> bool:
    """True for a line that is a fence of code, with a word behind it or none."""
    line = line.strip()
    return (
        line.startswith("```")
        and line.isascii()
        and len(line) < _LONGEST_TAG
        and not set(line.lstrip("`").strip()) & {" ", "`"}
    )


def _needs_more(ending: str) -> bool:
    """True for the last characters before a dot if they are a letter alone, an abbreviation, or digits that number a list."""
    ending = ending.removesuffix("\n")
    before = ending.rstrip(ascii_letters)
    if before != ending:
        word = ending[len(before) :]
        return len(word) == 1 or word in _ABBREVIATIONS
    digits = 0
    while digits < min(4, len(ending)) and ending[-1 - digits].isdecimal():
        digits += 1
    return 0 < digits < 4


def _last_lines(text: str) -> str:
    """Returns the last lines of a text."""
    place = text.rfind("\n", 0, min(len(text.rstrip()), max(0, len(text) - BESIDE))) + 1
    return text[place:][-_LONGEST_LINE:]


def _paired(text: str) -> str:
    """Returns the text with the two halves of a character joined that arrived in different pieces."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _without_halves(text: str) -> str:
    """Returns the text with U+FFFD in place of halves without their other half; the normaliser drops and counts it."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
