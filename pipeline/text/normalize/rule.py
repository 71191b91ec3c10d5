"""Rule: the type of a reading rule and of its outcomes.

Out:   Rule, Gap, Drop, Outcome
Never: any rule in particular
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

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
Read = Callable[[Match, Language], Outcome]
_Spoken = Read | Mapping[str, str] | tuple[Outcome | Read, Outcome | Read] | Outcome


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern and its reading. Patterns are bounded: a match at one place takes constant time."""

    first: str
    """the classes of character it begins with, one letter per class as scan._class names them"""
    pattern: re.Pattern[str]
    read: Read
    option: str = ""
    """the field of NormalizeOptions that switches it off"""


def rule(first: str, pattern: str, read: _Spoken, option: str = "") -> Rule:
    """Returns a rule.

    Args:
        read: a reading, an outcome, or one of them in English and one in Chinese; or a table for the group `word`.
    """
    # ASCII: Chinese characters are not \w, so a number beside one is at the edge of a word.
    return Rule(first, re.compile(pattern, re.ASCII), read if callable(read) else partial(_constant, read), option)


numeric = partial(rule, option="numbers")
"""a rule that the option `numbers` switches off"""


def _constant(spoken: _Spoken, match: Match, language: Language) -> Outcome:
    if isinstance(spoken, tuple):
        spoken = spoken[language == "zh"]
    if callable(spoken):
        return spoken(match, language)
    return spoken[match["word"]] if isinstance(spoken, Mapping) else spoken


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
