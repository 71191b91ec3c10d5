"""Book: a document as chapters of paragraphs, and its script.

In:    plain text, subtitles in SRT or WebVTT, or chapters that others have read
Out:   Book; Script
Owns:  how long the silences of a book are
Never: how a paragraph is read: pipeline/text reads its Markdown, numbers and signs
"""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.books.cutting import cut_paragraph
from pipeline.books.script import Part, Script

PARAGRAPH_MS = 350
CHAPTER_MS = 1500
HEADING_MS = 700
"""silence after a heading"""

_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{2})[.,](\d{1,3})"
_TIMES = re.compile(rf"{_TIME}[ \t]{{0,9}}-->[ \t]{{0,9}}{_TIME}(?:[ \t].{{0,300}})?")
_FIRST = re.compile(rf"\s*(?:WEBVTT(?:[ \t].{{0,300}})?\n|(?:\d{{1,9}}[ \t]{{0,9}}\n)?{_TIMES.pattern}\n)")
_MARKUP = re.compile(r"<[^<>\n]{0,200}>|\{\\[^{}\n]{0,200}\}")
PARAGRAPH_S = 3.0
"""silence between two cues that begins a paragraph"""
_BLANK = re.compile(r"\n[^\S\n]*\n\s*")


@dataclass(frozen=True, slots=True)
class Chapter:
    """A title and what stands below it."""

    title: str
    """empty: it has none, and nothing is spoken for it"""
    paragraphs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Book:
    """A document in the order in which it is read."""

    chapters: tuple[Chapter, ...]
    title: str = ""
    author: str = ""
    language: str = ""
    cover: bytes | None = b""
    """a JPEG or PNG picture; empty: it has none; None: it has one that no file can show"""
    missing: tuple[str, ...] = ()
    """files that it names and does not contain"""

    @property
    def characters(self) -> int:
        """Number of characters of its titles and paragraphs."""
        return sum(len(text) for chapter in self.chapters for text in (chapter.title, *chapter.paragraphs))


@dataclass(frozen=True, slots=True)
class Pauses:
    """Silences between the parts of a book [ms]."""

    paragraph_ms: int = PARAGRAPH_MS
    chapter_ms: int = CHAPTER_MS
    heading_ms: int = HEADING_MS


def read_plain(text: str) -> Book:
    """Returns a text as one chapter; blank lines end its paragraphs."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    return Book((Chapter("", tuple(filter(str.strip, _BLANK.split(text)))),))


def has_cues(text: str) -> bool:
    """True for a text that begins as subtitles do."""
    return bool(_FIRST.match(text.removeprefix("\ufeff").replace("\r\n", "\n")))


def read_cues(text: str) -> Book:
    """Returns what is said in the cues of a text, which has_cues()."""
    paragraphs: list[list[str]] = [[]]
    last_s, is_cue = 0.0, False
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if times := _TIMES.fullmatch(line.strip()):
            start_s, stop_s = (_seconds(*times.groups()[at : at + 4]) for at in (0, 4))
            if start_s - last_s > PARAGRAPH_S and paragraphs[-1]:
                paragraphs.append([])
            last_s, is_cue = stop_s, True
        elif not line.strip() or (line.strip().isdecimal() and _TIMES.fullmatch(following.strip())):
            is_cue = False
        elif is_cue and (words := html.unescape(_MARKUP.sub("", line)).strip()):
            paragraphs[-1].append(words)
    return Book((Chapter("", tuple("\n".join(lines) for lines in paragraphs if lines)),))


def _seconds(hours: str | None, minutes: str, seconds: str, fraction: str) -> float:
    return int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + int(fraction.ljust(3, "0")) / 1000


def script_of(book: Book, speech: Mapping[str, Any], pauses: Pauses) -> Script:
    """Returns what is spoken of a book, in which order and with which silences."""
    parts: list[Part] = []
    titles: list[str] = []
    for chapter in book.chapters:
        first, pause_ms = len(parts), pauses.chapter_ms if parts else 0
        for index, paragraph in enumerate((chapter.title, *chapter.paragraphs)):
            for text in cut_paragraph(paragraph):
                parts.append(Part(text, len(titles), pause_ms))
                pause_ms = 0
            if len(parts) > first:
                pause_ms = pauses.heading_ms if index == 0 else pauses.paragraph_ms
        if len(parts) > first:
            titles.append(chapter.title)
    return Script(tuple(parts), tuple(titles), book.title, book.author, book.language, speech=speech)
