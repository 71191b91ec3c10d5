"""Dialogue: a script of `Name: text` lines as what its speakers say, in order.

In:    a script: str, the names of the speakers
Out:   Said
Owns:  what a line with a name looks like
Never: voices; a client's text in an error message

    Anna: Who is there?          a name of the cast and a colon begin a turn
    - **Ben** (quietly): You?    a bullet, emphasis, brackets and a direction around the name are not spoken
    [09:41] Ben> Me.             the time of a chat, and what chats and plays have in place of a colon: >, |, a dash, BEN.
    BEN                          a name alone begins the turn of the lines below
    It is late.                  any other line goes on with it
      Note: an indented line       goes on too, whatever it looks like

A line that begins like one of a speaker whom the cast does not have is refused: else someone else would say it, name and all.
"""

import re
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pipeline.errors import InvalidRequest

MOST_NAME = 64
"""longest name of a speaker [characters]"""
NAME = rf"[^\W_][\w .'’\-]{{0,{MOST_NAME - 1}}}"
"""a name of a speaker begins with a letter or digit"""
_NAME_SIGNS = frozenset("_ .'’-")
_COLONS = (":", "：")
_AROUND = "*_~`\"'“”‘’「」『』【】[]<>《》 \t"
_BRACKETS = {"<": ">", "[": "]", "【": "】"}
_DIRECTIONS = {")": "(", "）": "（", "]": "[", "】": "【"}
_LONGEST_BEGINNING = MOST_NAME + 80  # with a direction

_STAMP = re.compile(
    r"[\[(<]?(?:\d{1,4}[./-]\d{1,2}[./-]\d{2,4},?\s)?\d{1,2}:\d\d(?::\d\d)?(?:\s?[AaPp][Mm])?[\])>]?\s{0,4}(?:[-–—]\s)?"
)
_TOLD = re.compile(
    r"(?P<name>[^:：>|\t]{1,80}?)(?:\s?>{1,2}\s|\s?\|\s|\t|\s[-–—]\s)\s*(?P<text>.*)|(?P<capitals>[^.a-z]{1,64})\.\s+(?P<line>.*)"
)
_MOST_WORDS = 4  # of a line's beginning that is taken for a name


@dataclass(frozen=True, slots=True)
class Said:
    """What one speaker says at a time."""

    speaker: str
    text: str
    """its lines, each as it stands"""


def read_script(script: str, speakers: Collection[str], *, param: str = "script", most: int | None = None) -> list[Said]:
    """Returns what is said in a script.

    Args:
        speakers: names, in any case.
        param: the field of the request that has it.
        most: turns that are read; None: all.

    Raises:
        InvalidRequest: a line that belongs to no speaker, or a speaker who says nothing; the message has its number.
    """
    known = {name.casefold(): name for name in speakers}
    turns: list[tuple[str, list[str]]] = []
    for number, line in _lines(script):
        name, text, is_sure = _beginning(line, known)
        other = _told(line, known) if name.casefold() not in known else None
        name, text = other or (name, text)
        if name.casefold() in known:
            if len(turns) == most:
                break
            turns.append((known[name.casefold()], [text] if text or not other else []))
        elif is_sure and _looks_like_a_name(name):
            raise _refused(
                param,
                number,
                "begins with a name that cast does not have: add it to cast, begin the line with one of the "
                f"{len(known)} names there, or with a space if it goes on with what was said before",
            )
        elif not turns:
            raise _refused(param, number, "has no speaker before it: begin it with a name of cast and a colon")
        else:
            turns[-1][1].append(line.strip())
    if len(turns) > 1 and not turns[-1][1]:  # a name alone at the end is a word
        turns[-2][1].append(turns.pop()[0])
    return [Said(speaker, "\n".join(lines).strip()) for speaker, lines in turns]


def _lines(script: str) -> Iterator[tuple[int, str]]:
    """Yields the lines that are neither blank, nor rules, nor fences, with their numbers."""
    lines = textwrap.dedent(script.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")).split("\n")
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip("-*_=~# \t") and line[:3] != "```")


def _beginning(line: str, known: Collection[str]) -> tuple[str, str, bool]:
    """Returns the name at the beginning of a line, what follows, and True if nothing but a name stands so; "" for no name."""
    closing = _BRACKETS.get(line[:1], "")
    place = line.find(closing, 0, MOST_NAME + 2) if closing else -1
    if place > 0 and (name := line[1:place].strip(_AROUND)).casefold() in known:  # <Ben> Hello
        return name, line[place + 1 :].lstrip(" \t:：*_"), True
    place = min((place for colon in _COLONS if (place := line.find(colon, 0, _LONGEST_BEGINNING)) >= 0), default=-1)
    if place < 0 or line[:1].isspace():
        return "", line, False
    name, is_item = _without_bullet(line[:place])
    opened = name[:1] if name[:1] in _AROUND else ""
    name = _without_direction(_without_direction(name.strip("*_~` \t")).strip("*_~` \t")).strip(_AROUND)
    text = line[place + 1 :]
    if opened and text[:1] in _AROUND:
        text = text.lstrip(_AROUND)
    is_name = 0 < len(name) <= MOST_NAME and name[0].isalnum() and all(sign.isalnum() or sign in _NAME_SIGNS for sign in name)
    is_apart = line[place] != ":" or not text[:1].strip() or bool(opened)
    if not is_name or not (is_apart or name.casefold() in known):
        return "", line, False
    return name, text.lstrip(), not is_item


def _told(line: str, known: Collection[str]) -> tuple[str, str] | None:
    """Returns one of the cast at the beginning of a line of a chat or a play, and what follows: Ben> Hi, 09:41 Ben: Hi, BEN."""
    stamp = _STAMP.match(line)
    rest = line[stamp.end() :] if stamp else line
    name, text, _ = _beginning(rest, known) if stamp else ("", "", False)
    if name.casefold() not in known and (shape := _TOLD.match(rest)):
        name, text = shape["name"] or shape["capitals"], shape["text"] or shape["line"] or ""
    elif name.casefold() not in known:
        name, text = rest, ""
    name = _without_direction(name.strip("*_~` \t")).strip("*_~`[]<> \t")
    return (name, text) if name.casefold() in known and not line[:1].isspace() else None


def _without_bullet(written: str) -> tuple[str, bool]:
    """Returns the beginning of a line without the sign or number of an item, and True if it had one."""
    bare = written.lstrip("-+•–—># \t")
    if bare.startswith("* "):
        bare = bare[2:].lstrip()
    number = bare.lstrip("0123456789")
    if number != bare and number[:1] in (".", ")", "、") and number[1:2] in (" ", "*", "_"):
        bare = number[1:].lstrip()
    return bare, bare != written


def _without_direction(name: str) -> str:
    """Returns a name without what stands in brackets behind it."""
    place = name.rfind(_DIRECTIONS[name[-1:]]) if name[-1:] in _DIRECTIONS else -1
    return name[:place].rstrip() if place > 0 else name


def _looks_like_a_name(name: str) -> bool:
    return any(map(str.isalpha, name)) and len(name.split()) <= _MOST_WORDS


def _refused(param: str, number: int, problem: str) -> InvalidRequest:
    return InvalidRequest(f"line {number} of the script {problem}", param=param)
