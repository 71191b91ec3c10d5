"""Telephones: reads telephone numbers of any country, digit by digit, with a pause between groups.

In:    matches of groups of digits
Out:   words
Owns:  the shapes of telephone numbers
Never: codes of other kinds, dates, counts
"""

import re

from pipeline.text.normalize.chinese_codes import CALLED_BEFORE
from pipeline.text.normalize.codes import CALL_BEFORE, CODE_BEFORE
from pipeline.text.normalize.latin import join_words
from pipeline.text.normalize.numbers import integer, spell
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.rule import Match, Outcome, Rule, before, rule


def telephone_words(written: str, language: Language) -> str:
    """Returns the digits in groups with pauses between them: as written, or 3-4-4 for a Chinese mobile number."""
    groups = re.findall(r"\d+", written)
    if len(groups) == 1 and len(groups[0]) == 11:
        groups = [groups[0][:3], groups[0][3:7], groups[0][7:]]
    plus = {"zh": "加", "en": "plus "}[language] if written.lstrip("( ").startswith("+") else ""
    comma = {"zh": "，", "en": ", "}[language]
    return plus + comma.join(spell(group, language, telephone=True) for group in groups)


def _telephone(match: Match, language: Language) -> Outcome:
    return telephone_words(match[0], language)


def _telephone_en(match: Match, language: Language) -> Outcome:
    return telephone_words(match[0], "en") if language == "en" else None


def _trunk(match: Match, language: Language) -> Outcome:
    """0161 496 0000, 01 23 45 67 89: a zero before groups is dialled."""
    return telephone_words(match[0], language) if 8 <= len(re.sub(r"\D", "", match[0])) <= 12 else None


def _uneven(match: Match, language: Language) -> Outcome:
    """91 123 45 67: groups of different lengths, which no list of numbers has."""
    groups = match[0].split(" ")
    is_list = groups == sorted(groups, key=int)
    is_phone = (
        not is_list and 8 <= sum(map(len, groups)) <= 11 and len({len(group) for group in groups}) == 2 and len(groups[0]) < 4
    )
    return telephone_words(match[0], language) if is_phone else None


def _called(match: Match, language: Language) -> Outcome:
    """Groups behind a word of calling: call 5550 1234, tel. 612 345 678."""
    context = before(match, 36)
    is_called = CALL_BEFORE.search(context) or CALLED_BEFORE.search(context) or _NUMBER_BEFORE.search(context)
    is_long = 6 <= len(re.sub(r"\D", "", match[0])) <= 13
    return telephone_words(match[0], language) if is_called and is_long and not CODE_BEFORE.search(context[-12:]) else None


def _keys(match: Match, language: Language) -> Outcome:
    """*键, press #, *#06#: keys of a telephone."""
    names = (
        {"*": ("star", "星"), "#": ("pound", "井")}
        if re.search(r"\d", match[0])
        else {"*": ("star", "星号"), "#": ("pound", "井号")}
    )
    return join_words(
        [names[sign][language == "zh"] if sign in names else spell(sign, language) for sign in match[0].rstrip("号")]
    )


_NUMBER_BEFORE = re.compile(
    r"(?:\b(?:tel|telephone|fax|mobile|cell|phone|whatsapp|freephone|landline)\.?(?:\s(?:number|no\.?))?(?:\s(?:is|on|at))?|"
    r"\bcall \w+ (?:on|at)"
    r"|\breach \w+ (?:on|at)|电话|手机|传真|热线|致电|联系方式)(?:号码?)?[为是:]?\s?\(?$",
    re.IGNORECASE | re.ASCII,
)
RULES: list[Rule] = [  # before dates and quantities, which look similar
    rule(
        "*#",
        r"[*#]号?(?=键)|(?:(?<=[Dd]ial )|(?<=[Pp]ress )|(?<=ialing )|(?<=ressing )|(?<=or ))[*#](?=\d\d(?![\d*#]))|"
        r"(?<=按)[*#](?!\d)|(?:(?<=press )|(?<=Press )|(?<=then )|(?<=push )|(?<=dial ))[*#](?![*\w])|"
        r"[*#]{1,2}\d[\d*#]{0,20}#",
        _keys,
        "numbers",
    ),
    rule("0+(", r"(?<![\d.])(?:\+?86[- ]?)?1[3-9]\d(?:[- ]?)\d{4}(?:[- ]?)\d{4}(?![\d.])", _telephone, "phone"),
    rule(
        "0",
        r"(?<![\d.-])(?:0\d{2,3}[- ]\d{7,8}|0\d{4} \d{6}|0\d{2,3}-\d{4}[- ]\d{4}|"
        r"[48]00[- ]\d{3}[- ]\d{4}|[48]00[- ]\d{4}[- ]\d{3}|1[38]00 \d{3} \d{3}|[2-9]\d\d \d{3} \d{4})(?![\d-]| \d{3})",
        _telephone,
        "phone",
    ),
    rule(
        "0",
        r"(?<![\d.,/-])(?<!\d )0\d{1,4}(?:(?:[ .]\d{2,4}){1,5}|[ /-]\d{5,8}(?!/)|"
        r"\d / \d{2,4}(?: \d{2,4}){1,3})(?![\d-]|[ .,]\d)",
        _trunk,
        "phone",
    ),
    rule("(", r"\(\+?\d{1,5}\)[ -]?\d{2,8}(?:[ -]\d{2,4}){0,4}(?![\d-]| \d)", _trunk, "phone"),
    rule("0", r"(?<![\d.,/-])(?<!\d )\d{2,5}(?:[ .-]\d{2,4}){1,5}(?![\d-]|[ .,]\d)", _called, "phone"),
    rule("0", r"(?<![\d.,/+-])(?<!\d )[1-9]\d{1,3}(?: \d{2,4}){3,4}(?![\d-]|[ .,]\d)", _uneven, "phone"),
    rule("0", r"(?<![\d.,/+-])(?<!\d )[6-9]\d{4} \d{5}(?![\d-]|[ .,]\d)", _telephone, "phone"),
    rule(
        "+",
        r"\+(?=(?:[-. /()]{0,3}\d){7})(?!\d{1,3}(?: 000){1,4}(?!\d)|\d{1,9}\.\d{1,20}(?![\d.]))"
        r"\d{1,14}(?:[-. /()]{1,2}\d{1,8}){0,7}(?!\d)",
        _telephone,
        "phone",
    ),
    rule("(0", r"(?<![\d.-])(?:1[- ])?(?:\(\d{3}\)\s?|\d{3}[-.])\d{3}[-.]\d{4}(?![\d-])", _telephone, "phone"),
    rule("0", r"(?<![\d.-])\d{3}-\d{4}(?![\d-])", _telephone_en, "phone"),
]


def _three(match: Match, language: Language) -> Outcome:
    """10-6-1, 20-20-20: won, lost and drawn; a mixture."""
    return (", " if language == "en" else "，").join(integer(part, language) for part in match[0].split("-"))


GROUPS: list[Rule] = [  # after dates
    rule("0", r"(?<![\d.,-])(?<!code )(?<!\d )(?:0|[1-9]\d?)(?:-(?:0|[1-9]\d?)){2}(?![\dA-Za-z-])", _three, "numbers"),
    rule("0", r"(?<![\d.-])\d{1,7}(?:-\d{1,7}){2,6}(?![\d-])", _telephone, "phone"),
]
