"""Book: a document as chapters of paragraphs, and its script.

In:    plain text, or chapters that others have read
Out:   Book; Script
Owns:  how long the silences of a book are
Never: how a paragraph is read: pipeline/text reads its Markdown, numbers and signs
"""

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
