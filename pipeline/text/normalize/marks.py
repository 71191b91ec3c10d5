"""Marks: reads punctuation, markdown, HTML and single signs.

In:    matches of signs
Out:   gaps, drops, the names of signs
Never: words, numbers
"""

from pipeline.text.normalize.options import Language
from pipeline.text.normalize.rule import Drop, Gap, Match, Outcome, Rule, rule


def _stop(match: Match, language: Language) -> Outcome:
    return Gap.STOP


def _comma(match: Match, language: Language) -> Outcome:
    return Gap.COMMA


def _dash(match: Match, language: Language) -> Outcome:
    return "杠" if language == "zh" else Gap.COMMA


def _zero(match: Match, language: Language) -> Outcome:
    return "零"


def _dot(match: Match, language: Language) -> Outcome:
    return "点" if language == "zh" else "dot"


def _list(match: Match, language: Language) -> Outcome:
    return Gap.LIST


def _space(match: Match, language: Language) -> Outcome:
    return Gap.SPACE


def _silent(match: Match, language: Language) -> Outcome:
    return Gap.NONE


def _markup(match: Match, language: Language) -> Outcome:
    return Drop("markup")


def _markup_space(match: Match, language: Language) -> Outcome:
    return Drop("markup", Gap.SPACE)


def _markup_line(match: Match, language: Language) -> Outcome:
    return Drop("markup", Gap.STOP)


_TARGET = r"(?:[^()\s]|\([^()\s]{0,200}\)){0,2000}"
RULES: list[Rule] = [
    # markdown
    rule("`", r"`{1,3}", _markup, "markdown"),
    rule("*", r"\*{1,3}", _markup, "markdown"),
    rule("_", r"_{1,3}(?![A-Za-z0-9])|(?<![A-Za-z0-9])_{1,3}", _markup, "markdown"),
    rule("~", r"~~", _markup, "markdown"),
    rule(
        "]",
        rf"\]\((?=[^()\s]{{0,2000}}[./#:]|\S{{0,40}}\)\s*$){_TARGET}(?:\s{{1,3}}\"[^\"\n]{{0,200}}\")?\)",
        _markup_space,
        "markdown",
    ),
    rule("\\", r"\\(?=[*_#`\[\](){}~>+.!|\n-])", _markup, "markdown"),
    rule("|", r"\|\|(?=\S)|(?<=\S)\|\|", _markup, "markdown"),
    rule("#=*~", r"={4,}|#{4,}|\*{4,}|~{3,}", _markup_space, "markdown"),
    rule("!", r"!(?=\[)", _markup, "markdown"),
    rule("|", r"\|[\s|:-]{0,200}(?=\n)|\|\s?:?-{2,}[\s|:-]{0,200}", _markup_line, "markdown"),
    # punctuation
    rule("\n", r"\n", _stop),
    rule(" ", r" ", _space),
    rule("。", r"。", _stop),
    rule("!?", r"[!?]", _stop),
    rule("…", r"…+(?=\s*$)", _stop),
    rule("…", r"…+", _comma),
    rule(".", r"\.{2,}(?=\s*[a-z\u4e00-\u9fff])", _comma),
    # a name: sys.path, .NET, B.Sc., rc.3; but a stop where a sentence begins without a blank
    rule(
        ".", r"(?<![A-Za-z0-9])\.(?=[A-Za-z_])|(?<=[A-Za-z0-9_)])\.(?=[a-z_])|(?<=[A-Za-z][A-Za-z])\.(?=[A-Z](?![a-z]))", _dot
    ),
    rule(".", r"(?<![A-Za-z][A-Za-z])(?<=[A-Za-z])\.(?=[A-Z])|(?<=[A-Za-z])\.(?=\d)", _space),
    rule(".", r"\.", _stop),
    rule("，", r"，", _comma),
    rule("、", r"、", _list),
    rule(",;:()", r"[,;:()]", _comma),
    rule("—–", r"[—–]+", _comma),
    rule("-", r"(?<=\s)-{1,3}(?=\s)|--+", _comma),
    rule("-", r"(?<=[A-Za-zα-ωΑ-Ω])-(?=\d)", _space),
    rule("-", r"-(?=\d)", _dash),
    rule("-", r"-", _space),
    rule("~", r"~+", _comma),
    rule("/", r"(?<=[\u4e00-\u9fff])/(?=[\u4e00-\u9fff])", _list),
    rule("'\"", r"['\"]+", _silent),
    rule("|", r"(?<=\s)\|(?=\s)", _comma),
    rule("○", r"○(?=[○零一二三四五六七八九年月日室号])|(?<=[零一二三四五六七八九])○", _zero),
    rule("/\\|{}_[]•○`★☆", r"[/\\|{}_\[\]•○`]|[★☆]+", _space),
    rule("<>", r"[<>]", _comma),
]
