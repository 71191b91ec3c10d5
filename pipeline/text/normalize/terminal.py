"""Terminal: reads what comes from a screen: arrows, colour codes, options of commands, names of emoji.

In:    matches of signs
Out:   words, drops
Never: escape sequences with a real escape character, which written.py drops

An arrow is "to" between two numbers or letters, and between two Chinese words if it is the only one of its line. Elsewhere it
points at something that cannot be seen: it is dropped, and leaves a pause. So does the > of a path of menus.
"""

import re

import emoji

from pipeline.text.normalize.options import Language
from pipeline.text.normalize.rule import Drop, Gap, Match, Outcome, Rule, before, rule

_ARROW = r"(?:[→←↔]|<?[-=]{1,12}>|<[-=]{2,12}(?!\d))"
_ARROWS = re.compile(_ARROW)
_VALUE_BEFORE = re.compile(r"(?:\d[%℃°]?[CF]?|(?<![A-Za-z])[A-Za-z]|[α-ω])\s?$", re.ASCII)
_VALUE_AFTER = re.compile(r"\s?(?:[$€£¥+-]?\d|[A-Za-z](?![A-Za-z])|[α-ω])", re.ASCII)
_CHINESE_BEFORE = re.compile(r"[\u4e00-\u9fff\d%]\s?$")
_CHINESE_AFTER = re.compile(r"\s?[\u4e00-\u9fff\d]")


def _arrow(match: Match, language: Language) -> Outcome:
    lead = before(match, 8)
    is_value = _VALUE_BEFORE.search(lead) and _VALUE_AFTER.match(match.string, match.end())
    is_route = language == "zh" and _CHINESE_BEFORE.search(lead) and _CHINESE_AFTER.match(match.string, match.end())
    points_left = match[0][0] in "←<" and not match[0].endswith(">")
    if points_left or not (is_value or (is_route and _is_alone(match))):
        return Drop("symbol", Gap.COMMA)
    return "到" if language == "zh" else "to"


def _is_alone(match: Match) -> bool:
    """True if a line has no other arrow within 80 characters."""
    text = match.string
    start = max(text.rfind("\n", 0, match.start()) + 1, match.start() - 80)
    stop = text.find("\n", match.end(), match.end() + 80)
    line = text[start : stop if stop >= 0 else match.end() + 80]
    return len(_ARROWS.findall(line)) == 1


def _code(match: Match, language: Language) -> Outcome:
    return Drop("terminal_code")


def _long_option(match: Match, language: Language) -> Outcome:
    return "杠杠" if language == "zh" else "dash dash"


def _option(match: Match, language: Language) -> Outcome:
    return "杠" if language == "zh" else "dash"


def _emoji(match: Match, language: Language) -> Outcome:
    return Drop("emoji", Gap.SPACE) if emoji.is_emoji(emoji.emojize(match[0], language="alias")) else None


def _crumb(match: Match, language: Language) -> Outcome:
    return Gap.COMMA


def _and(match: Match, language: Language) -> Outcome:
    return "和" if language == "zh" else "and"


def _or(match: Match, language: Language) -> Outcome:
    return "或" if language == "zh" else "or"


def _variable(match: Match, language: Language) -> Outcome:
    return Drop("symbol")


def _bare_code(match: Match, language: Language) -> Outcome:
    """[31m without its escape character, unless it may be a length in brackets: [45min, [100m²."""
    around = match.string[max(0, match.start() - 200) : match.end() + 200]
    is_pair = len(re.findall(_COLOUR, around)) > 1 and re.search(r"\[0?m", around)
    return Drop("terminal_code") if ";" in match[0] or is_pair else None


_COLOUR = r"\[\d{0,3}(?:;\d{1,3}){0,4}m"
RULES: list[Rule] = [
    rule("\\", rf"\\(?:033|e|x1[bB]|u001[bB]){_COLOUR}", _code),
    rule(">", r"(?:(?<=[A-Za-z]{2}\s)|(?<=[\u4e00-\u9fff]\s)|(?<=\)\s))>(?=\s(?:\[?[A-Z][A-Za-z]|\[?[\u4e00-\u9fff]))", _crumb),
    rule("&", r"(?<=\s)&&(?=\s)", _and),
    rule("|", r"(?<=\s)\|\|(?=\s)", _or),
    rule("$", r"(?<![A-Za-z0-9])\$(?=\{?[A-Z]{2})(?![^$\n]{0,60}\$)", _variable),
    rule("[", rf"{_COLOUR}(?![A-Za-z\]]*\])", _bare_code),
    rule("→←↔", r"[→←↔]", _arrow),
    rule("-=<", rf"{_ARROW}(?![=>])", _arrow),
    rule("-", r"(?<![A-Za-z0-9-])--(?=[A-Za-z][A-Za-z0-9-])", _long_option),
    rule(
        "-",
        r"(?:(?<=[\s`])|(?<![\s\S]))-(?=[A-Za-z](?:[\s`=,.)]|$)|(?:rf|la|al|ltr|xzf|xvf|czf|czvf|aux|ef|pr|sv|it)(?![A-Za-z]))",
        _option,
    ),
    rule(":", r"(?<![A-Za-z0-9:]):[a-z+-][a-z0-9_+-]{1,30}:(?![A-Za-z0-9:])", _emoji),
]
