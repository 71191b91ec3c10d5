"""Math: finds formulas, between dollar signs or in running text, and reads them.

In:    matches of formulas, TeX commands, powers, indices and functions
Out:   words
Never: how a formula is read, which is in tex.py; dollars of money

A pair of dollar signs is a formula if nothing but a formula may stand between: no space inside its edges, no digit behind it,
and a sign of mathematics or a single letter within. So "$5 and $6" stays money.
"""

import re

from pipeline.text.normalize.latin import join_words
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import EDGE, NOT_IN_WORD
from pipeline.text.normalize.rule import Drop, Gap, Match, Outcome, Rule, alternatives, before, rule
from pipeline.text.normalize.tex import ACCENTS, BIG, FONTS, NAMES, TEXTS, spelled, tex_words
from pipeline.text.normalize.words import CLOSE_UNITS, UNITS

_COMMANDS = alternatives(
    sorted(
        {*NAMES, *BIG, *ACCENTS, *FONTS, *TEXTS, "frac", "dfrac", "tfrac", "sqrt", "vec", "binom", "lim", "begin", "end"}
        - set("%&$#")
    )
)
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}\s+[a-z]{2,}|[，。！？]", re.ASCII)
_TEXT_COMMAND = re.compile(r"\\(?:text|mathrm|operatorname|mbox|textbf|textit)\s?\{[^{}]{0,200}\}")
_FORMULA = re.compile(
    r"[\\^_=+<>≤≥≈≠×÷∈|]|[A-Za-z]!|[A-Za-z]'\(|^[A-Za-z]'?$|^-?\d*[A-Za-z](?:\([A-Za-z0-9, ]{1,12}\))?$"
    r"|^[A-Za-z0-9][-/*][A-Za-z0-9]$|^[A-Za-z](?:, ?[A-Za-z])+$|^\(?-?[\d.]+[,)/-]|^\d+(?:\.\d+)?$"
)
_POWER_BEFORE = re.compile(r"(?:\^-?\d{1,3}|\^\{-?\d{1,3}\}|\d-?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,3})\$?\s?$")
_GROUP = r"\{[^{}\n]{0,120}(?:\{[^{}\n]{0,60}\}[^{}\n]{0,60}){0,4}\}"


def _formula(match: Match, language: Language) -> Outcome:
    source = match["tex"]
    plain = _TEXT_COMMAND.sub("", source)
    if _PROSE.search(plain) or not _FORMULA.search(source.strip()):
        return None
    return tex_words(source, language) or None


def _display(match: Match, language: Language) -> Outcome:
    return tex_words(match["tex"], language) or None


def _power(match: Match, language: Language) -> Outcome:
    return tex_words(re.sub(r"\^\(([^()]*)\)", r"^{\1}", match[0]), language) or None


def _masked(match: Match, language: Language) -> Outcome:
    """The signs of f**k and b$$, which are neither powers nor money."""
    return None if re.search(r"[=+*/()]\s?\w{0,8}$", before(match, 12)) else Drop("symbol")


def _double_star(match: Match, language: Language) -> Outcome:
    return tex_words(f"{match['base']}^{{{match['power']}}}", language) or None


def _of_one(match: Match, language: Language) -> Outcome:
    """The (x) of f(x)."""
    return ("" if language == "zh" else "of ") + tex_words(match["of"], language)


def _function(match: Match, language: Language) -> Outcome:
    """sin(x), log(10)."""
    name = tex_words(f"\\{match['name']}", language)
    return join_words([name, "" if language == "zh" else "of", tex_words(match["of"], language)])


def _product(match: Match, language: Language) -> Outcome:
    """The mx of y = mx + b."""
    return " ".join(match[0])


def _raised(match: Match, language: Language) -> Outcome:
    """The mc^2 of E=mc^2: its letters one by one."""
    spoken = spelled(match["letters"][:-1])
    power = match["power"].strip("^{}").translate(_PLAIN_POWERS)
    return join_words([spoken, tex_words(f"{match['letters'][-1]}^{{{power}}}", language)])


def _unit(match: Match, language: Language) -> Outcome:
    """The unit behind a power of ten, which is no plain number."""
    if not _POWER_BEFORE.search(before(match)):
        return None
    return (UNITS | CLOSE_UNITS)[match["unit"]][2 if language == "zh" else 1]


_PLAIN_POWERS = str.maketrans("²³", "23")
_TEN = r"10(?:\^|-?[⁰¹²³⁴⁵⁶⁷⁸⁹]|⁻)"
RULES: list[Rule] = [
    rule(
        "|",
        r"(?<![A-Za-z0-9|])\|-?(?:\d{0,4}[A-Za-z]|\d{1,4})(?:\s?[-+*/^]\s?(?:\d{0,4}[A-Za-z]|\d{1,4})){0,3}\|(?![A-Za-z0-9|])",
        _power,
        "numbers",
    ),
    rule("$", r"\$\$(?P<tex>[^$]{1,2000})\$\$", _display, "numbers"),
    rule("$", r"\$(?P<tex>(?!\s)(?:\\\$|[^$\n]){1,400}(?<!\s))\$(?!\d)", _formula, "numbers"),
    rule("\\", r"\\\((?P<tex>[\s\S]{1,600}?)\\\)", _display, "numbers"),
    rule("\\", r"\\\[(?P<tex>[\s\S]{1,2000}?)\\\]", _display, "numbers"),
    rule("\\", r"\\begin\{(?P<name>[a-z]{3,12}\*?)\}(?P<tex>[\s\S]{1,2000}?)\\end\{(?P=name)\}", _display, "numbers"),
    rule(
        "\\",
        rf"(?<![:\\])\\(?:{_COMMANDS})(?![A-Za-z])(?:\[[^\[\]\n]{{0,20}}\])?(?:[_^]?{_GROUP}|[_^][A-Za-z0-9]){{0,3}}",
        _power,
        "numbers",
    ),
    rule(
        "0a",
        rf"(?:(?<!\d)\d{{1,9}}(?:\.\d{{1,6}})?|{NOT_IN_WORD}[A-Za-z])\^(?:{_GROUP}|[A-Za-z](?![A-Za-z])|\([^()\n]{{1,40}}\))",
        _power,
        "numbers",
    ),
    rule(
        "a",
        rf"{NOT_IN_WORD}(?P<letters>[a-z]{{2,3}})(?P<power>\^(?:{_GROUP}|-?\d{{1,4}}|[A-Za-z](?![A-Za-z]))|(?<=[=+-].[a-z][a-z])[²³]|(?<=[=+-][a-z][a-z])[²³])",
        _raised,
        "numbers",
    ),
    rule(
        "a",
        rf"(?<![A-Za-z0-9_])[A-Za-z]_(?:{_GROUP}|[0-9a-zA-Z])(?:\^(?:{_GROUP}|[0-9a-zA-Z]))?(?![A-Za-z0-9_])",
        _power,
        "numbers",
    ),
    rule("$", r"(?<=[a-z])\${1,4}(?=[A-Za-z\s.,!?]|$)", _masked),
    rule(
        "0a",
        rf"{NOT_IN_WORD}(?P<base>\d{{1,9}}|[a-z])\*\*(?P<power>\d{{1,4}}|[a-z](?=\s?[-+*/=)]))(?![A-Za-z0-9*])",
        _double_star,
        "numbers",
    ),
    rule("a", rf"(?P<unit>{alternatives([*UNITS, *CLOSE_UNITS])}){EDGE}", _unit, "units"),
    rule("a×*", rf"(?:(?<=\d)|(?<=\d\s))[x×*](?=\s?{_TEN})", ("times", "乘以"), "numbers"),
    rule(
        "*",
        r"(?:(?<=(?<![A-Za-z*])[A-Za-z0-9)])|(?<=[A-Za-z0-9)]\s))\*(?=\s?[A-Za-z0-9(](?![A-Za-z*]))(?!\*)",
        ("times", "乘"),
        "numbers",
    ),
    rule("a", r"(?<=\d\s)x(?=\s\d[\d.]{0,12}\s?=)", ("times", "乘"), "numbers"),
    rule(  # (a+b)/2, 1/x, a/(b+c), ∂f/∂x
        "/",
        r"(?:(?<=[A-Za-z0-9²³!]\))(?=/(?:\d{1,4}(?![\d/])|\(|[a-z√π](?![a-z])))|(?<=(?<![A-Za-z])[a-z0-9])(?=/\()"
        r"|(?<=(?<![\d.,/])\d)(?=/[nrtxyz](?![A-Za-z]))|(?<=(?<![A-Za-z])[nrtxyz])(?=/\d(?!\d))|(?=/∂))/",
        ("over", "除以"),
        "numbers",
    ),
    rule("|", r"(?<=\([A-Z])\|(?=[A-Z]\))", ("given", Gap.COMMA)),
    rule(
        "a",
        rf"{NOT_IN_WORD}(?:(?:(?<=[-+=]\s)|(?<=[-+=]))[abckmnp][xyz](?![A-Za-z0-9])|[abckmnp][xyz](?=[²³]?\s?[-+=]\s?[a-z\d]))",
        _product,
        "numbers",
    ),
    rule("a", rf"{NOT_IN_WORD}(?P<name>sin|cos|tan|cot|log|ln|exp)\((?P<of>-?\d{{0,6}}[A-Za-z]?)\)", _function, "numbers"),
    rule("(", r"(?<=(?<![A-Za-z.])[fghpFGHPO])\((?P<of>[A-Za-z0-9])\)", _of_one, "numbers"),
    rule("(", r"(?<=(?<![A-Za-z.])[fghpquvyFGHOPTVELNW])\((?=[A-Za-z0-9][^()\n]{0,40}\))", ("of", Gap.SPACE), "numbers"),
]
