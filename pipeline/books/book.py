"""Book: a document as chapters of paragraphs, and its script.

In:    plain text, or Markdown
Out:   Book; Script
Owns:  how long the silences of a book are
Never: how a paragraph is read: pipeline/text reads its Markdown, numbers and signs
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.books.cutting import cut_paragraph
from pipeline.books.script import Part, Script

PARAGRAPH_MS = 350
CHAPTER_MS = 1500
HEADING_MS = 700
"""silence after a heading"""

_BLANK = re.compile(r"\n[^\S\n]*\n\s*")
_MOST_LEVEL = 6  # of headings
_FENCE = re.compile(r"[ ]{0,3}(```|~~~)")


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
    return Book((Chapter("", tuple(filter(str.strip, _BLANK.split(_lines(text))))),))


def read_markdown(text: str) -> Book:
    """Returns a Markdown text, whose largest headings begin chapters.

    One heading alone at the top level is the title of the book, and those of the next level begin its chapters.
    """
    blocks = list(_blocks(_lines(text)))
    levels = [level for level, _ in blocks if level]
    top = min(levels, default=0)
    title = ""
    if levels.count(top) == 1 and len(set(levels)) > 1 and blocks[0][0] == top:
        title = blocks.pop(0)[1]
        top = min(level for level, _ in blocks if level)
    chapters: list[tuple[str, list[str]]] = [(title, [])]
    for level, block in blocks:
        if level and level == top:
            chapters.append((block, []))
        else:
            chapters[-1][1].append(block)
    filled_chapters = (Chapter(name, tuple(paragraphs)) for name, paragraphs in chapters if name or paragraphs)
    return Book(tuple(filled_chapters), title)


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


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yields headings with their level, and with level 0 the blocks between them; a fence with code is one block."""
    block: list[str] = []
    fence = ""
    for line in text.split("\n"):
        opened = _FENCE.match(line)
        if opened and (not fence or opened[1] == fence):
            fence = "" if fence else opened[1]
        level, heading = (0, "") if fence else _heading(line)
        if (level or (not fence and not line.strip())) and block:
            yield 0, "\n".join(block)
            block = []
        if level:
            yield level, heading
        elif line.strip() or fence:
            block.append(line)
    if block:
        yield 0, "\n".join(block)


def _heading(line: str) -> tuple[int, str]:
    """Returns the level and the text of a heading: `## Text ##`; level 0: the line is none."""
    signs = line.lstrip(" ")
    text = signs.lstrip("#")
    level = len(signs) - len(text)
    if not (0 < level <= _MOST_LEVEL and len(line) - len(signs) <= 3 and text[:1] in (" ", "\t") and text.strip(" \t")):
        return 0, ""
    return level, text.strip(" \t").rstrip("#").rstrip(" \t") or "#"
