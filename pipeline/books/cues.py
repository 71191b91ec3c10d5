"""Cues: subtitles in SRT or WebVTT as a text.

In:    the text of a file
Out:   Book: what is said in the cues
Never: times and numbers of cues, notes, styles, who speaks
"""

import html
import re

from pipeline.books.book import Book, Chapter

_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{2})[.,](\d{1,3})"
_TIMES = re.compile(rf"{_TIME}[ \t]{{0,9}}-->[ \t]{{0,9}}{_TIME}(?:[ \t].{{0,300}})?")
_FIRST = re.compile(rf"\s*(?:WEBVTT(?:[ \t].{{0,300}})?\n|(?:\d{{1,9}}[ \t]{{0,9}}\n)?{_TIMES.pattern}\n)")
_MARKUP = re.compile(r"<[^<>\n]{0,200}>|\{\\[^{}\n]{0,200}\}")
PARAGRAPH_S = 3.0
"""silence between two cues that begins a paragraph"""


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
