"""Models: reads names of products that mix letters, digits and hyphens: i9-14900K, 787-9, H.264, WH-1000XM5.

In:    matches of letters and digits
Out:   words
Never: quantities
"""

import re

from pipeline.text.normalize.latin import is_acronym, join_words, latin_word, letters
from pipeline.text.normalize.numbers import english, integer, number, pairs, spell
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import NOT_IN_WORD
from pipeline.text.normalize.rule import Match, Outcome, Rule, before, rule

_PART = re.compile(r"[A-Za-z]+|\d+")
_PLAIN_WORD = re.compile(r"[a-z]{3,}")


def model_number(digits: str, language: Language) -> str:
    """Returns a number in a name: 4090 forty ninety, 14900 fourteen nine hundred; 四零九零."""
    if "." in digits:
        return number(digits, language)
    if language == "zh":
        return integer(digits, "zh") if len(digits) <= 2 or (digits.endswith("00") and len(digits) < 5) else spell(digits, "zh")
    if len(digits) == 5 and digits.endswith("00"):
        return f"{english(int(digits[:2]))} {english(int(digits[2:]))}" if digits[2] != "0" else english(int(digits))
    return pairs(digits) if len(digits) < 5 else spell(digits, "en")


def is_term(match: Match) -> bool:
    """True for the x-3 of a formula: a small letter, a minus and a number."""
    around = before(match, 8) + match.string[match.end() : match.end() + 8]
    return re.match("[a-z]-", match[0]) is not None and (
        match[0][0] in "nxyz" or re.search(r"[=+<>≤≥|()*/^²³]", around) is not None
    )


def _name(part: str) -> str:
    if len(part) == 1 or (part.isupper() and (is_acronym(part) or len(part) < 4)):
        return letters(part)
    return latin_word(part)


def _words(written: str, language: Language) -> list[str]:
    parts = enumerate(_PART.findall(written))
    return [
        model_number(part, language) if part.isdigit() else part if place and len(part) == 1 else _name(part)
        for place, part in parts
    ]


def _compound(match: Match, language: Language) -> Outcome:
    """i9-14900K, R2-D2, Llama-2-70B, A380-800; words with a number behind, as mid-1990s, are none."""
    sides = match[0].split("-")
    if any(_PLAIN_WORD.fullmatch(side) for side in sides) or not re.search(r"\d", match[0]) or is_term(match):
        return None
    letters_of = {re.sub(r"\d", "", side) for side in sides}
    if len(letters_of) == 1 and all(side[-1].isdigit() for side in sides):
        return None  # Q1-Q3
    if language == "zh" and re.search(r"[图表第]$", before(match, 1)):
        return None
    return join_words([word for side in sides for word in _words(side, language)])


def _airliner(match: Match, language: Language) -> Outcome:
    """787-9, 747-400: an airliner, where its maker is named or the number has its pattern."""
    if language == "en":
        return f"{pairs(match['type'])} {integer(match['variant'], 'en')}{' E R' if match['tail'] else ''}"
    return f"{spell(match['type'], 'zh')}杠{integer(match['variant'], 'zh')}{'E R' if match['tail'] else ''}"


def _codec(match: Match, language: Language) -> Outcome:
    point = " dot " if language == "en" else "点"
    return f"{match['letter']}{point}{spell(match['digits'], language)}"


def _wireless(match: Match, language: Language) -> Outcome:
    tail = letters(match["tail"])
    if language == "zh":
        return f"八零二点一一{tail}"
    return f"eight oh two dot eleven {tail}".strip()


def _even(match: Match, language: Language) -> Outcome:
    """50/50, 20/20, 80/20."""
    first, second = int(match["first"]), int(match["second"])
    if language != "en" or (first + second != 100 and (first, second) != (20, 20)):
        return None
    return f"{english(first)} {english(second)}"


RULES: list[Rule] = [
    rule("0", r"(?<![\d.])802\.(?:11|3|15)(?<=11)(?P<tail>[a-z]{0,2})(?![A-Za-z0-9])", _wireless, "numbers"),
    rule("a", rf"{NOT_IN_WORD}(?P<letter>[HXG])\.(?P<digits>\d{{3}})(?!\d)", _codec, "numbers"),
    rule(
        "0",
        r"(?<![\d.,-])(?P<type>7[0-9]7)-(?P<variant>\d00|8|9|10|3|2)(?P<tail>ER)?(?![\dA-Za-z]|[-.,]\d|\s?=)",
        _airliner,
        "numbers",
    ),
    rule(
        "a",
        rf"{NOT_IN_WORD}(?!GMT|UTC)(?:[A-Z]{{1,6}}|[a-z]|[A-Z][a-z]{{1,11}})\d{{0,5}}[A-Za-z]{{0,3}}(?:-(?:\d{{1,5}}[A-Za-z]{{0,4}}\d{{0,3}}|[A-Z]{{1,4}}\d{{1,5}}[A-Za-z]{{0,3}}))"
        rf"{{1,4}}(?![A-Za-z0-9@]|-[A-Za-z0-9]|[.,:]\d)",
        _compound,
        "numbers",
    ),
    rule("0", r"(?<![\d.,/])(?P<first>[1-9]\d)/(?P<second>[1-9]\d)(?![\d/]|\.\d|%|\s?(?:mm|kg|cm))", _even, "numbers"),
]
