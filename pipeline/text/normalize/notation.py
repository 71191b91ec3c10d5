"""Notation: reads formulas of chemistry and mathematics without TeX, Roman numbers, and paths of Windows.

In:    matches of letters, digits and signs
Out:   words
Never: TeX, quantities with a unit
"""

import re

from pipeline.text.normalize.latin import join_words, letters
from pipeline.text.normalize.numbers import english, integer, number, roman, year
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import NOT_IN_WORD
from pipeline.text.normalize.rule import Match, Outcome, Rule, alternatives, before, rule
from pipeline.text.normalize.tables import word_table
from pipeline.text.normalize.tex import tex_words

_ELEMENT = r"(?:Al|Ag|Au|Ba|Br|Ca|Cl|Cr|Cu|Fe|Hg|Li|Mg|Mn|Na|Ni|Pb|Si|Sn|Ti|Zn|[BCFHIKNOPSU])"
_PARTS = word_table("part")
_DRIVE = re.compile(
    r"(?:^|[^A-Za-z0-9])[A-Z]:(?:\\(?:[A-Za-z0-9_$\u4e00-\u9fff-]|[. ](?=[A-Za-z0-9_$\u4e00-\u9fff-])){1,40}){0,12}$", re.ASCII
)
_CHARGES = str.maketrans("⁺⁻", "+-")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_WORK_BEFORE = re.compile(
    r"(?:\n|^)$|(?:^|[^A-Za-z])(?!(?:The|This|Her|His|Our|With|Use|Get|Start|Give) $)[A-Z][a-z]{2,} $", re.ASCII
)


def _formula(match: Match, language: Language) -> Outcome:
    """C6H12O6: its letters, and its numbers as numbers."""
    parts = re.findall(r"[A-Z][a-z]?|\d+", match[0])
    if sum(part.isdigit() for part in parts) < 2 and match[0].isupper() and not re.fullmatch("[SN]O[2-4]", match[0]):
        return None  # COP28; CO2 needs no rule of its own
    return join_words([integer(part, language) if part.isdigit() else letters(part) for part in parts])


def _ion(match: Match, language: Language) -> Outcome:
    """Ca²⁺, NH₄⁺, SO₄²⁻."""
    parts = [
        integer(part, language) if part.isdigit() else letters(part) for part in re.findall(r"[A-Z][a-z]?|\d", match["formula"])
    ]
    sign = {"+": ("plus", "正"), "-": ("minus", "负")}[match["sign"].translate(_CHARGES)][language == "zh"]
    return join_words([*parts, integer(match["charge"].translate(_RAISED), language) if match["charge"] else "", sign])


def _term(match: Match, language: Language) -> Outcome:
    """3x^2, 2x³: a power behind its factor."""
    power = match["power"].lstrip("^").strip("{}").translate(_RAISED)
    return join_words([number(match["factor"], language), tex_words(f"{match['base']}^{{{power}}}", language)])


def _prime(match: Match, language: Language) -> Outcome:
    argument = integer(match["of"], language) if match["of"].isdigit() else match["of"]
    return f"{match['name']}撇{argument.upper()}" if language == "zh" else f"{match['name']} prime of {argument}"


def _compared(match: Match, language: Language) -> Outcome:
    """a>b, without spaces."""
    return {"<": ("is less than", "小于"), ">": ("is greater than", "大于")}[match[0]][language == "zh"]


def _mark(match: Match, language: Language) -> Outcome:
    """4.5/5: a mark."""
    above, below = (number(match[side], language) for side in ("above", "below"))
    return f"{below}分之{above}" if language == "zh" else f"{above} out of {below}"


def _roman_year(match: Match, language: Language) -> Outcome:
    value = roman(match[0])
    return year(str(value), language) if value and 1500 <= value <= 2100 else None


def _roman_title(match: Match, language: Language) -> Outcome:
    """Rocky III, Final Fantasy VII: a number behind a name."""
    value = roman(match[0])
    return english(value) if value and language == "en" and _WORK_BEFORE.search(before(match, 16)) else None


def _roman_part(match: Match, language: Language) -> Outcome:
    """Vol. II, Ch. XIV."""
    value = roman(match["roman"])
    return f"{_PARTS[match['part']]} {english(value)}" if value and language == "en" else None


def _backslash(match: Match, language: Language) -> Outcome:
    """The signs of C:\\Users\\Ann."""
    return ("backslash" if language == "en" else "反斜杠") if _DRIVE.search(before(match, 120)) else None


RULES: list[Rule] = [
    rule(
        "a",
        rf"{NOT_IN_WORD}(?P<formula>(?:{_ELEMENT}\d?){{1,4}})(?P<charge>[²³])?(?P<sign>[⁺⁻]|(?<=[²³]|\d)[+-]|(?<=[A-Z][a-z])\+|(?<=Cl|Br)-)(?![A-Za-z0-9+-])",
        _ion,
        "numbers",
    ),
    rule(
        "a",
        rf"{NOT_IN_WORD}(?<![@#_./-])(?=[A-Za-z]{{1,20}}\d)(?![A-Z]2[A-Z](?![A-Za-z0-9]))(?:{_ELEMENT}\d{{0,2}}){{2,8}}(?<![A-Z][A-Z])(?<![A-Z]\d\d\d)(?![A-Za-z0-9_-])",
        _formula,
        "numbers",
    ),
    rule(
        "0",
        r"(?<![A-Za-z0-9.,])(?P<factor>\d{1,4}(?:\.\d{1,3})?)(?P<base>[a-ln-z])"
        r"(?P<power>\^(?:\{[^{}\n]{1,20}\}|-?\d{1,3}|[a-z])|[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,3})(?![A-Za-z])",
        _term,
        "numbers",
    ),
    rule(
        "0", r"(?<![\d/.])(?P<above>\d{1,2}\.\d{1,2})/(?P<below>(?:[45]|10)(?:\.00?)?|20|100)(?![\d/]|\.\d)", _mark, "numbers"
    ),
    rule("!", r"(?<=\d)!(?=\s?[=×÷+*/]\s?\d)|(?<=(?<![A-Za-z'])[nkm])!(?!\w)", ("factorial", "的阶乘"), "numbers"),
    rule("a", rf"{NOT_IN_WORD}(?P<name>[fghF])'\((?P<of>[a-z]|\d{{1,3}})\)", _prime, "numbers"),
    rule("<>", r"(?<=(?<![A-Za-z0-9</])[a-zA-Z])[<>](?=(?:[a-zA-Z]|\d{1,6})(?![A-Za-z0-9>]))", _compared, "numbers"),
    rule("a", rf"{NOT_IN_WORD}(?=[MDCLXVI]{{5}})M{{1,3}}[CDXLVI]{{2,12}}(?![A-Za-z0-9])", _roman_year, "numbers"),
    rule(
        "a",
        r"(?:(?<=[a-z] )|(?<![^\n])(?=[IVX]{2,5}\.?(?:\n|$)))"
        r"(?:I{2,3}|VI{1,3}|IX|X[IV]{1,4}|XX[IV]{1,3}|IV(?! (?:drip|line|fluid|bag|pole|drug)))(?!['.]?[A-Za-z0-9])",
        _roman_title,
        "numbers",
    ),
    rule(
        "a",
        rf"{NOT_IN_WORD}(?P<part>{alternatives(_PARTS)})\.\s?(?P<roman>[IVXL]{{1,6}})(?!'?[A-Za-z0-9])",
        _roman_part,
        "numbers",
    ),
    rule(":", r"(?<=(?<![A-Za-z0-9])[A-Z]):(?=\\[A-Za-z0-9_.\u4e00-\u9fff])", ("colon", "冒号"), "urls"),
    rule("\\", r"\\(?=[A-Za-z0-9_.\u4e00-\u9fff])", _backslash, "urls"),
]
