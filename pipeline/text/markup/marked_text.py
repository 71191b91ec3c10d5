"""Markup: what a protocol marks in its texts, such as pauses and sounds, as SSML.

In:    a text, the table of a protocol
Out:   fields of a body; XML of a part of a document
Never: a mark that is spoken; a look at more than MOST_MARK_CHARS for each sign

A table has the sign with which marks begin -> patterns that are tried there, each with what its match becomes.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any
from xml.sax.saxutils import escape

from pipeline.text.markup.ssml_elements import BREAK_MS, MAX_BREAK_MS

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]
Table = Mapping[str, tuple[Rule, ...]]

MOST_MARK_CHARS = 300
MOST_MARKS = 400
"""of a text that become elements; further ones are dropped"""
MOST_BREAKS = 40
"""of a text; a document has at most 50, voices included"""
LAUGH = "<laugh/>"
DROPPED = "<unspoken/>"
"""an element that is counted among the warnings, and has no words"""

NO_XML = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF], " ")
_SECONDS = re.compile(r"\s*([0-9]{0,6}(?:\.[0-9]{0,6})?)\s*(ms|s)?\s*")


def words(text: str) -> str:
    """Returns a text as the content of an element."""
    return escape(text.translate(NO_XML).encode("utf-8", "replace").decode())


def pause(duration: str) -> str:
    """Returns the element of a pause: of 1.5s, 500ms, or 1.5 [s], as long as one may be; what is no duration is counted."""
    parts = _SECONDS.fullmatch(duration)
    if parts is None or parts[1] in ("", "."):
        return DROPPED
    ms = float(parts[1]) * (1 if parts[2] == "ms" else 1000)
    return f'<break time="{min(MAX_BREAK_MS, round(ms))}ms"/>'


def marked(text: str, table: Table) -> dict[str, Any]:
    """Returns the fields of a body that speaks a text: the text itself if nothing in it is marked."""
    content = fragment(text, table)
    return {"input": text} if content is None else {"input": f"<speak>{content}</speak>", "input_type": "ssml"}


def fragment(text: str, table: Table) -> str | None:
    """Returns the text as the content of an element; None: nothing in it is marked."""
    pieces: list[str] = []
    place = marks = breaks = 0
    for at in _signs(text, table):
        if at < place or (element := _element(text, at, table[text[at]])) is None:
            continue
        content, stop = element
        marks, breaks = marks + 1, breaks + content.startswith("<break")
        is_counted = marks <= MOST_MARKS and (breaks <= MOST_BREAKS or not content.startswith("<break"))
        pieces += [words(text[place:at]), content if is_counted or not content.startswith("<") else ""]
        place = stop
    return "".join([*pieces, words(text[place:])]) if pieces else None


def _signs(text: str, table: Table) -> list[int]:
    """Returns the places of all signs, in order."""
    places: list[int] = []
    for sign in table:
        at = text.find(sign)
        while at >= 0:
            places.append(at)
            at = text.find(sign, at + 1)
    return sorted(places)


def _element(text: str, at: int, rules: tuple[Rule, ...]) -> tuple[str, int] | None:
    """Returns what the mark at a place becomes, and where it ends; None: there is none."""
    for pattern, becomes in rules:
        if (mark := pattern.match(text, at, at + MOST_MARK_CHARS)) is not None:
            return becomes(mark), mark.end()
    return None


def _attribute(name: str, tag: str) -> str:
    value = re.search(rf"""\b{name}\s*=\s*["']([^"'<>]{{0,40}})["']""", tag)
    return "" if value is None else value[1]


def _break(mark: re.Match[str]) -> str:
    return pause(_attribute("time", mark[0]) or f"{BREAK_MS.get(_attribute('strength', mark[0]), BREAK_MS['medium'])}ms")


TAGS: tuple[Rule, ...] = (
    (re.compile(r"<break\b[^<>]{0,200}>", re.IGNORECASE), _break),
    (re.compile(r"<phoneme\b[^<>]{0,200}>", re.IGNORECASE), lambda mark: DROPPED),
    (re.compile(r"</(?:break|phoneme|speak)\s{0,9}>|<speak\b[^<>]{0,200}>", re.IGNORECASE), lambda mark: ""),
)
"""of texts that may have single tags of SSML: a pause is one, and the words in others are spoken"""
