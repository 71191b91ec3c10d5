"""Reach: says which rules can match at a place by two signs, the one there and the one that ends its run.

In:    Rules, in order
Out:   those of them that may match, in order
Owns:  the lists, by pairs of signs
Never: what a rule reads

A run is letters, digits, or one sign: the runs of "Mon-Fri" are Mon, - and Fri. A pattern that needs a dot behind its
letters cannot match at a word that a space ends. This is read off the parsed pattern: no list lacks a rule that matches.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from string import ascii_letters, digits, whitespace
from typing import Any

from pipeline.text.normalize.rule import Rule

MOST_PAIRS = 20_000
LONGEST_RUN = 64
_RUN = re.compile(rf"[A-Za-z]{{1,{LONGEST_RUN}}}|[0-9]{{1,{LONGEST_RUN}}}|[\s\S]")
_OTHER = "\uffff"
"""stands in a set for every sign beyond ASCII"""
_EVERY = frozenset(map(chr, range(128))) | {_OTHER}
_LETTERS, _DIGITS, _NONE = frozenset(ascii_letters), frozenset(digits), frozenset[str]()
_CATEGORIES = {
    op.CATEGORY_DIGIT: _DIGITS,
    op.CATEGORY_SPACE: frozenset(whitespace),
    op.CATEGORY_WORD: _LETTERS | _DIGITS | {"_"},
    op.CATEGORY_NOT_DIGIT: _EVERY - _DIGITS,
    op.CATEGORY_NOT_SPACE: _EVERY - frozenset(whitespace),
    op.CATEGORY_NOT_WORD: _EVERY - _LETTERS - _DIGITS - {"_"},
}
Signs = frozenset[str]


class Reach:
    """Rules by the signs at which they can match."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        self._cache: dict[tuple[str, str], tuple[Rule, ...]] = {}

    def at(self, text: str, place: int) -> tuple[Rule, ...]:
        """Returns the rules that may match at a place of a text; none that is left out can."""
        run = _RUN.match(text, place)
        assert run is not None
        stop = run.end()
        if stop - place == LONGEST_RUN:
            return self._rules
        pair = text[place], text[stop : stop + 1]
        if pair not in self._cache:
            if len(self._cache) >= MOST_PAIRS:
                self._cache.clear()
            self._cache[pair] = tuple(rule for rule in self._rules if may_match(rule.pattern, *pair))
        return self._cache[pair]


def may_match(pattern: re.Pattern[str], first: str, following: str) -> bool:
    """Returns False if no match of an ASCII pattern begins with `first`, and has or leaves `following` behind that run.

    Args:
        following: the sign behind the run of `first`; empty at the end of the text.
    """
    kind = _LETTERS if first in _LETTERS else _DIGITS if first in _DIGITS else _NONE
    return _is_in(first, needs(pattern, _NONE)) and (not kind or _is_in(following, needs(pattern, kind)))


@cache
def needs(pattern: re.Pattern[str], kind: Signs) -> Signs | None:
    """Returns the signs of which one must stand behind the signs of a kind that a match begins with; None if it needs none."""
    signs, needs_none = _reached(_parser.parse(pattern.pattern, pattern.flags), kind)
    return None if needs_none else signs


def _is_in(sign: str, signs: Signs | None) -> bool:
    return signs is None or sign in signs or (_OTHER in signs and bool(sign) and not sign.isascii())


def _reached(nodes: Sequence[Any], kind: Signs) -> tuple[Signs, bool]:
    """Returns the signs behind a run of a kind at which the nodes can match, and whether they can match without one."""
    reached = _NONE
    for code, value in nodes:
        signs, passes = _node(code, value, kind)
        reached |= signs
        if not passes:
            return reached, False
    return reached, True


def _node(code: Any, value: Any, kind: Signs) -> tuple[Signs, bool]:
    if code in (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY):
        signs = _signs(code, value)
        return signs - kind, not kind.isdisjoint(signs)
    if code is op.SUBPATTERN:
        _group, added, _removed, inside = value
        reached, passes = _reached(inside, kind)
        if added & re.IGNORECASE:
            reached |= frozenset(case for sign in reached for case in (sign.lower(), sign.upper()))
            reached, passes = reached - kind, passes or kind == _LETTERS
        return reached, passes
    if code is op.BRANCH:
        ways = [_reached(way, kind) for way in value[1]]
        return _NONE.union(*(signs for signs, _ in ways)), any(passes for _, passes in ways)
    if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        least, _most, inside = value
        signs, passes = _reached(inside, kind)
        return signs, passes or least == 0
    if code is op.ASSERT and value[0] > 0:
        return _reached(value[1], kind)
    if code in (op.ASSERT, op.ASSERT_NOT, op.AT):
        return _NONE, True
    return _EVERY, True  # a repeated group: anything


def _signs(code: Any, value: Any) -> Signs:
    """Returns the signs that a node of one sign matches."""
    if code is op.LITERAL:
        return frozenset(chr(value))
    if code is op.NOT_LITERAL:
        return _EVERY - {chr(value)}
    if code is op.ANY:
        return _EVERY
    listed = [item for item in value if item[0] is not op.NEGATE]
    signs = _NONE.union(*(_listed(*item) for item in listed))
    return (_EVERY - signs) | {_OTHER} if len(listed) < len(value) else signs


def _listed(code: Any, value: Any) -> Signs:
    if code is op.LITERAL:
        return frozenset(chr(value))
    if code is op.RANGE:
        first, last = value
        return frozenset(map(chr, range(first, min(last, 127) + 1))) | ({_OTHER} if last > 127 else _NONE)
    return _CATEGORIES[value]
