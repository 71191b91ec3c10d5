"""Marks: reads punctuation, markdown and single signs, and what comes from a screen: arrows, colour codes, options, emoji.

In:    matches of signs
Out:   gaps, drops, the names of signs
Never: words, numbers; escape sequences with a real escape character, which written.py drops

An arrow is "to" between two numbers or letters, and between two Chinese words if it is the only one of its sentence. Elsewhere
it points at something that cannot be seen: it is dropped, and leaves a pause. So does the > of a path of menus.
"""

import re

import emoji

from pipeline.text.lines import ENDED
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.rule import Drop, Gap, Match, Outcome, Rule, before, rule

_ARROW = r"(?:[→←↔]|<?[-=]{1,12}>|<[-=]{2,12}(?!\d))"
_ARROWS = re.compile(_ARROW)
_VALUE_BEFORE = re.compile(r"(?:\d[%℃°]?[CF]?|(?<![A-Za-z])[A-Za-z]|[α-ω])\s?$", re.ASCII)
_VALUE_AFTER = re.compile(r"\s?(?:[$€£¥+-]?\d|[+-]?∞|[A-Za-z](?![A-Za-z])|[α-ω])", re.ASCII)
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
    """True if the sentence has no other arrow in its line within 80 characters."""
    text = match.string
    start = max(text.rfind("\n", 0, match.start()) + 1, match.start() - 80)
    stop = text.find("\n", match.end(), match.end() + 80)
    ahead = text[match.end() : stop if stop >= 0 else match.end() + 80]
    return not _ARROWS.search(f"{ENDED.split(text[start : match.start()])[-1]} {ENDED.split(ahead, maxsplit=1)[0]}")


def _emoji(match: Match, language: Language) -> Outcome:
    return Drop("emoji", Gap.SPACE) if emoji.is_emoji(emoji.emojize(match[0], language="alias")) else None


def _bare_code(match: Match, language: Language) -> Outcome:
    """[31m without its escape character, unless it may be a length in brackets: [45min, [100m²."""
    around = match.string[max(0, match.start() - 200) : match.end() + 200]
    is_pair = len(re.findall(_COLOUR, around)) > 1 and re.search(r"\[0?m", around)
    return Drop("terminal_code") if ";" in match[0] or is_pair else None


_COLOUR = r"\[\d{0,3}(?:;\d{1,3}){0,4}m"
SCREEN: list[Rule] = [
    rule("\\", rf"\\(?:033|e|x1[bB]|u001[bB]){_COLOUR}", Drop("terminal_code")),
    rule(
        ">", r"(?:(?<=[A-Za-z]{2}\s)|(?<=[\u4e00-\u9fff]\s)|(?<=\)\s))>(?=\s(?:\[?[A-Z][A-Za-z]|\[?[\u4e00-\u9fff]))", Gap.COMMA
    ),
    rule("&", r"(?<=\s)&&(?=\s)", ("and", "和")),
    rule("|", r"(?<=\s)\|\|(?=\s)", ("or", "或")),
    rule("$", r"(?<![A-Za-z0-9])\$(?=\{?[A-Z]{2})(?![^$\n]{0,60}\$)", Drop("symbol")),
    rule("[", rf"{_COLOUR}(?![A-Za-z\]]*\])", _bare_code),
    rule("→←↔", r"[→←↔]", _arrow),
    rule("-=<", rf"{_ARROW}(?![=>])", _arrow),
    rule("-", r"(?<![A-Za-z0-9-])--(?=[A-Za-z][A-Za-z0-9-])", ("dash dash", "杠杠")),
    rule(
        "-",
        r"(?:(?<=[\s`])|(?<![\s\S]))-(?=[A-Za-z](?:[\s`=,.)]|$)|(?:rf|la|al|ltr|xzf|xvf|czf|czvf|aux|ef|pr|sv|it)(?![A-Za-z]))",
        ("dash", "杠"),
    ),
    rule(":", r"(?<![A-Za-z0-9:]):[a-z+-][a-z0-9_+-]{1,30}:(?![A-Za-z0-9:])", _emoji),
]

_TARGET = r"(?:[^()\s]|\([^()\s]{0,200}\)){0,2000}"
RULES: list[Rule] = [
    # markdown
    rule("`", r"`{1,3}", Drop("markup"), "markdown"),
    rule("*", r"\*{1,3}", Drop("markup"), "markdown"),
    rule("_", r"_{1,3}(?![A-Za-z0-9])|(?<![A-Za-z0-9])_{1,3}", Drop("markup"), "markdown"),
    rule("~", r"~~", Drop("markup"), "markdown"),
    rule(
        "]",
        rf"\]\((?=[^()\s]{{0,2000}}[./#:]|\S{{0,40}}\)\s*$){_TARGET}(?:\s{{1,3}}\"[^\"\n]{{0,200}}\")?\)",
        Drop("markup", Gap.SPACE),
        "markdown",
    ),
    rule("\\", r"\\(?=[*_#`\[\](){}~>+.!|\n-])", Drop("markup"), "markdown"),
    rule("!", r"!(?=\[)", Drop("markup"), "markdown"),
    # punctuation
    rule("\n", r"\n", Gap.STOP),
    rule(" ", r" ", Gap.SPACE),
    rule("。", r"。", Gap.STOP),
    rule("!?", r"[!?]", Gap.STOP),
    rule("…", r"…+(?=\s*$)", Gap.STOP),
    rule("…", r"…+", Gap.COMMA),
    rule(".", r"\.{2,}(?=\s*[a-z\u4e00-\u9fff])", Gap.COMMA),
    # a name: sys.path, .NET, B.Sc., rc.3; but a stop where a sentence begins without a blank
    rule(
        ".",
        r"(?<![A-Za-z0-9])\.(?=[A-Za-z_])|(?<=[A-Za-z0-9_)])\.(?=[a-z_])|(?<=[A-Za-z][A-Za-z])\.(?=[A-Z](?![a-z]))",
        ("dot", "点"),
    ),
    rule(".", r"(?<![A-Za-z][A-Za-z])(?<=[A-Za-z])\.(?=[A-Z])|(?<=[A-Za-z])\.(?=\d)", Gap.SPACE),
    rule(".", r"(?:(?<=\.[A-Z][a-z])|(?<=\.[A-Z][a-z]{2})|(?<=\.[A-Z][a-z]{3}))\.(?=[,;:)]|\s[a-z(])", Gap.SPACE),  # M.Sc. in
    rule(".", r"\.", Gap.STOP),
    rule("，", r"，", Gap.COMMA),
    rule("、", r"、", Gap.LIST),
    rule(",;:()", r"[,;:()]", Gap.COMMA),
    rule("—–", r"[—–]+", Gap.COMMA),
    rule("-", r"(?<=\s)-{1,3}(?=\s)|--+", Gap.COMMA),
    rule("-", r"(?<=[A-Za-zα-ωΑ-Ω])-(?=\d)", Gap.SPACE),
    rule("-", r"-(?=\d)", (Gap.COMMA, "杠")),
    rule("-", r"-", Gap.SPACE),
    rule("~", r"~+", Gap.COMMA),
    rule("/", r"(?<=[\u4e00-\u9fff])/(?=[\u4e00-\u9fff])", Gap.LIST),
    rule("'\"", r"['\"]+", Gap.NONE),
    rule("|", r"(?<=\s)\|(?=\s)|(?<=\w)\|(?=\w)", Gap.COMMA),
    rule("○", r"○(?=[○零一二三四五六七八九年月日室号])|(?<=[零一二三四五六七八九])○", ("零", "零")),
    rule("/\\|{}_[]•○`★☆", r"[/\\|{}_\[\]•○`]|[★☆]+", Gap.SPACE),
    rule("<>", r"[<>]", Gap.COMMA),
]
