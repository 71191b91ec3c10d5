"""Rule: the type of a reading rule and of its outcomes.

Out:   Rule, Gap, Drop, Outcome
Never: any rule in particular
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from pipeline.text.normalize.options import Language


class Gap(IntEnum):
    """The separation of two words; the strongest of several wins."""

    NONE = 0
    """no separation: a quotation mark"""
    SPACE = 1
    LIST = 2
    """、"""
    COMMA = 3
    STOP = 4


@dataclass(frozen=True, slots=True)
class Drop:
    """Characters that are not spoken; they are counted under `code`."""

    code: str
    gap: Gap = Gap.NONE
    """the separation it leaves between its neighbours"""


Outcome = str | Gap | Drop | None
"""words, a gap, a drop, or None: the rule does not apply here"""
Match = re.Match[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern and its reading. Patterns are bounded: a match at one place takes constant time."""

    first: str
    """the classes of character it begins with, one letter per class as scan._class names them"""
    pattern: re.Pattern[str]
    read: Callable[[Match, Language], Outcome]
    option: str = ""
    """the field of NormalizeOptions that switches it off"""


def rule(first: str, pattern: str, read: Callable[[Match, Language], Outcome], option: str = "") -> Rule:
    # ASCII: Chinese characters are not \w, so a number beside one is at the edge of a word.
    return Rule(first, re.compile(pattern, re.ASCII), read, option)


def alternatives(words: object) -> str:
    """Returns a pattern that matches any of these words, the longest first."""
    assert isinstance(words, list | tuple | set | frozenset | dict)
    return "|".join(re.escape(word) for word in sorted(words, key=lambda word: (-len(word), word)))


def before(match: Match, characters: int = 12) -> str:
    """Returns the text just before a match."""
    return match.string[max(0, match.start() - characters) : match.start()]


def after(match: Match, characters: int = 12) -> str:
    """Returns the text just after a match."""
    return match.string[match.end() : match.end() + characters]
