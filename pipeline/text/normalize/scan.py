"""Scan: reads a written text once, from left to right, and applies the first matching rule at each position.

In:    Written, the language of each place, NormalizeOptions
Out:   pieces: words, gaps, drops and control tags, in order
Owns:  the order of the rules
Never: the source, spans

Every step consumes at least one character, and every pattern is bounded, so the time is linear in the text.
"""

import re
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import emoji

from pipeline.text.normalize import (
    abbreviations,
    addresses,
    calendar,
    chinese_codes,
    codes,
    durations,
    marks,
    math,
    measures,
    models,
    money,
    names,
    notation,
    quantities,
    ranges,
    rates,
    short_dates,
    telephones,
    trades,
)
from pipeline.text.normalize.chinese import chinese_words, dialect_sentences, homophones
from pipeline.text.normalize.languages import language_at
from pipeline.text.normalize.options import Language, NormalizeOptions
from pipeline.text.normalize.reach import Reach
from pipeline.text.normalize.rule import Drop, Gap
from pipeline.text.normalize.structure import marked_lines
from pipeline.text.normalize.words import CURRENCIES, SIGNS
from pipeline.text.normalize.written import OPAQUE, UNREADABLE, Written

_ORDER = (
    *(
        *addresses.ADDRESSES,
        *telephones.RULES,
        *marks.SCREEN,
        *math.RULES,
        *abbreviations.CHAT,
        *trades.RULES,
        *notation.RULES,
        *ranges.EARLY,
        *short_dates.RULES,
        *codes.RULES,
        *chinese_codes.RULES,
        *models.RULES,
        *quantities.FIRST,
        *ranges.FIRST,
    ),
    *(*durations.RULES, *calendar.RULES, *telephones.GROUPS, *names.DOTTED, *rates.FIRST),
    *(
        *money.RULES,
        *measures.RULES,
        *rates.RULES,
        *quantities.RULES,
        *abbreviations.RULES,
        *names.NAMES,
        *quantities.PLAIN,
        *marks.RULES,
    ),
)
_CHINESE = re.compile(r"[\u4e00-\u9fff]+")
_GREEK = re.compile(r"[α-ωΑ-Ω]")
_LOVER = re.compile(r"(?:\b(?:I|We|You|They)|[我你他她们])\s?$")
_LOVED = re.compile(r"\s?[A-Za-z\u4e00-\u9fff]")
_ALIAS_SIGNS = re.compile(r"[^A-Za-z\u4e00-\u9fff，。、,. ]+")


@lru_cache(maxsize=4096)
def _class(sign: str) -> str:
    """Returns the class of rules for a character: 0 digits, a letters, g Greek, ½ number signs, $ currencies, else itself."""
    if sign.isascii() and sign.isalnum():
        return "0" if sign.isdigit() else "a"
    if _GREEK.match(sign):
        return "g"
    if sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞⁰¹²³⁴⁵⁶⁷⁸⁹ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩⅪⅫⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹ":
        return "½"
    return "$" if sign in CURRENCIES else sign


_FIRSTS = frozenset(sign for rule in _ORDER for sign in rule.first)
_Rules = dict[str, Reach]


@lru_cache(maxsize=64)
def _rules(options: NormalizeOptions) -> _Rules:
    """Returns the active rules, in order, by the class of character they begin with."""
    on = [rule for rule in _ORDER if not rule.option or getattr(options, rule.option)]
    return {first: Reach(rule for rule in on if first in rule.first) for first in _FIRSTS}


class Piece(NamedTuple):
    """The outcome for characters [start, stop) of the written text."""

    start: int
    stop: int
    outcome: str | Gap | Drop
    language: Language
    is_control: bool = False


def scan(written: Written, painted: bytes, options: NormalizeOptions, places: range) -> list[Piece]:
    """Reads the places of a written text; what stands beside them is only looked at.

    Args:
        painted: languages.paint of its text.
    """
    pieces: list[Piece] = []
    rules = _rules(options)
    dialect = {place for sentence in dialect_sentences(written.text) for place in range(*sentence)}
    marked = marked_lines(written.text) if options.markdown else {}
    place, end = places.start, places.stop
    while place < end:
        language = language_at(painted, place)
        if place in marked:
            stop, gap = marked[place]
            pieces.append(Piece(place, min(stop, end), gap, language))
            place = stop
            continue
        run = _CHINESE.match(written.text, place, end)
        if run:
            words = chinese_words(run[0], replace_homophones=options.homophones and place not in dialect)
            stops = [place + stop for stop in accumulate(map(len, words))] if len(words) > 1 else [run.end()]
            for word, start, stop in zip(words, [place, *stops], stops, strict=False):
                pieces.append(Piece(start, stop, word, language))
            place = run.end()
            continue
        stop, outcome = _read(written, place, end, language, options, rules)
        if options.homophones and isinstance(outcome, str) and place not in dialect and place not in written.readings:
            outcome = outcome.translate(homophones())
        pieces.append(Piece(place, stop, outcome, language, is_control=place in written.tags))
        place = stop
    return pieces


def _read(
    written: Written, place: int, end: int, language: Language, options: NormalizeOptions, rules: _Rules
) -> tuple[int, str | Gap | Drop]:
    text = written.text
    sign = text[place]
    if sign == OPAQUE:
        return place + 1, _opaque(written, place, language, options)
    if sign == UNREADABLE:
        return place + 1, Drop(written.unreadable[place])
    reach = rules.get(_class(sign))
    for rule in reach.at(text, place) if reach else ():
        match = rule.pattern.match(text, place)
        if match and match.end() > end:
            match = rule.pattern.match(text, place, end)
        if match and match.end() > place:
            outcome = rule.read(match, language)
            if outcome is not None:
                return match.end(), outcome
    return place + 1, _lone(sign, language)


def _opaque(written: Written, place: int, language: Language, options: NormalizeOptions) -> str | Gap | Drop:
    if place in written.tags:
        return written.tags[place]
    if place in written.readings:
        return written.readings[place] or Drop("reading")
    if options.emoji == "pause":
        return Gap.COMMA
    if (
        written.emoji[place][0] in "♥❤"
        and _LOVER.search(written.text[max(0, place - 6) : place])
        and _LOVED.match(written.text, place + 1)
    ):
        return "爱" if language == "zh" else "love"
    name = _emoji_name(written.emoji[place], language) if options.emoji == "speak" else ""
    return name or Drop("emoji", Gap.SPACE)


def _lone(sign: str, language: Language) -> str | Drop:
    """Returns the reading of a sign that no rule matched."""
    if sign in SIGNS:
        return SIGNS[sign][language == "zh"]
    if sign in CURRENCIES:
        return CURRENCIES[sign][3] if language == "zh" else CURRENCIES[sign][1]
    return Drop("unsupported_script" if _GREEK.match(sign) else "symbol", Gap.SPACE)


def _emoji_name(sequence: str, language: Language) -> str:
    """Returns the Unicode name of an emoji, or of its first part that has one."""
    for candidate in (sequence, sequence.rstrip("\ufe0f"), sequence + "\ufe0f", sequence[0], sequence[0] + "\ufe0f"):
        name = emoji.demojize(candidate, language=language, delimiters=("", ""))
        spoken = _ALIAS_SIGNS.sub(" " if language == "en" else "", name).strip()
        if name != candidate and spoken:
            return spoken
    return ""
