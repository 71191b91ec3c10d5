"""Durations: reads lengths of time that look like times of day, decades or feet: 2:05:13, 30s, 5'30".

In:    matches of digits with colons, primes or an s
Out:   words
Owns:  the words that reveal a duration
Never: times of day
"""

import re

from pipeline.text.normalize.numbers import counted, integer, number, spell
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import is_one
from pipeline.text.normalize.rule import Drop, Gap, Match, Outcome, Rule, after, alternatives, before, rule
from pipeline.text.normalize.tables import word_list

_UNITS = (("hours", "hour", "小时"), ("minutes", "minute", "分"), ("seconds", "second", "秒"))
_CLOCK_BEFORE = re.compile(
    r"(?:\b(?:at|by|until|till|since|from|after|before)\s|[于在至到]|凌晨|上午|下午|晚上?|早上?|清晨|时间)$", re.IGNORECASE
)
_LENGTH_BEFORE = re.compile(
    r"(?:时长|用时|耗时|历时|成绩|长度|总长|片长|配速|纪录|记录|跑出|完赛|跑进|"
    r"\b(?:duration|length|runtime|running time|elapsed|pace|split|lap|best|record|pb|time of|in|clocked)"
    r"(?:\s(?:is|was|of))?)[为是达:]?\s?$",
    re.IGNORECASE,
)
_LENGTH_AFTER = re.compile(
    r"(?:\s(?:long|marathon|pace|lap|clip|video|song|track|runtime|finish)\b|的(?:视频|歌曲|成绩|时长|音频|录音|配速))"
)
_PACE = re.compile(r"(?:pace|run|ran|split|mile|km|tempo|jog|配速|用时|成绩|跑|耗时|每公里)[^.。]{0,12}$", re.IGNORECASE)
_PACE_AFTER = re.compile(r"\s?(?:/\s?(?:km|mi|公里)|per\s|一公里|每公里|的?配速)")
_DECADE_BEFORE = re.compile(
    r"(?:\b(?:his|her|their|my|your|our|its|the|mid|early|late|in|into|of|are|is)(?:\s|-)|')$", re.IGNORECASE | re.ASCII
)
_SECONDS_BEFORE = re.compile(
    r"(?:\b(?:timeout|timeouts|wait|waits|delay|limit|interval|period|duration) (?:of|is|in) |\b(?:is|are) )$",
    re.IGNORECASE | re.ASCII,
)
_DECADE_AFTER = re.compile(rf"\s?(?:{alternatives(word_list('decade'))}|and\s'?\d0s)")


def duration_words(parts: tuple[str, str, str], language: Language) -> str:
    """Returns hours, minutes and seconds in words; an empty part is left out."""
    spoken: list[str] = []
    for (_, english_name, chinese_name), written in zip(_UNITS, parts, strict=True):
        exact = written.lstrip("0") or "0"
        exact = f"0{exact}" if exact.startswith(".") else exact
        if not written or (exact == "0" and any(spoken)):
            continue
        if language == "zh":
            is_last = written == parts[1] and not parts[2] and english_name == "minute"
            spoken.append(f"{counted(exact)}{'分钟' if is_last else chinese_name}")
        else:
            spoken.append(f"{number(exact, 'en')} {english_name}{'' if is_one(exact) else 's'}")
    return ("" if language == "zh" else " ").join(spoken)


def _hms(match: Match, language: Language) -> Outcome:
    """2:05:13: a clock with seconds has two digits for the hour, or a word before it."""
    is_length = _LENGTH_BEFORE.search(before(match, 24)) or _LENGTH_AFTER.match(match.string, match.end())
    if not is_length and (len(match["hours"]) > 1 or _CLOCK_BEFORE.search(before(match, 8))):
        return None
    return duration_words((match["hours"], match["minutes"], match["seconds"]), language)


def _ms(match: Match, language: Language) -> Outcome:
    is_length = (
        match["hundredths"] or _LENGTH_BEFORE.search(before(match, 24)) or _LENGTH_AFTER.match(match.string, match.end())
    )
    return (
        duration_words(("", match["minutes"], match["seconds"] + (match["hundredths"] or "")), language) if is_length else None
    )


def _primes(match: Match, language: Language) -> Outcome:
    """5'30" is a pace, 5'11" a height."""
    is_pace = _PACE.search(before(match, 24)) or _PACE_AFTER.match(match.string, match.end()) or int(match["seconds"]) > 11
    return duration_words(("", match["minutes"], match["seconds"]), language) if is_pace else None


def _hundredths(match: Match, language: Language) -> Outcome:
    """9″58: a time of a race."""
    return f"{integer(match['seconds'], 'zh')}秒{spell(match['hundredths'], 'zh')}" if language == "zh" else None


def _seconds(match: Match, language: Language) -> Outcome:
    """30s: seconds, unless the words beside it speak of a decade."""
    context = before(match, 20)
    if _DECADE_AFTER.match(match.string, match.end()):
        return None
    if language == "en" and _DECADE_BEFORE.search(context) and not _SECONDS_BEFORE.search(context):
        return None
    if language == "en" and context.strip() == "" and re.match(r"\s[a-z]", after(match, 2)):
        return None
    return f"{integer(match['seconds'], 'zh')}秒" if language == "zh" else f"{integer(match['seconds'], 'en')} seconds"


RULES: list[Rule] = [
    rule("0", r"(?P<seconds>\d{1,2})[″\"](?P<hundredths>\d\d)(?!\d)", _hundredths, "units"),
    rule(
        "0", r"(?:\d{1,2}:)?\d\d:\d\d[.,]\d{3}\s?--?>\s?(?:\d{1,2}:)?\d\d:\d\d[.,]\d{3}", Drop("markup", Gap.STOP), "markdown"
    ),
    rule(
        "0",
        r"(?P<hours>\d{1,2}):(?P<minutes>[0-5]\d):(?P<seconds>[0-5]\d(?:\.\d{1,3})?)(?!:?\d)(?!\s?[AaPp]\.?[Mm])",
        _hms,
        "dates",
    ),
    rule(
        "0",
        r"(?P<minutes>\d{1,3}):(?P<seconds>[0-5]\d)(?P<hundredths>\.\d{1,3})?(?!:?\d|,\d{3}(?!\d))(?!\s?[AaPp]\.?[Mm]\b)",
        _ms,
        "dates",
    ),
    rule("0", r"(?P<minutes>\d{1,2})\s?[′']\s?(?P<seconds>[0-5]\d)(?:\s?(?:[″\"]|''))?(?!\d)", _primes, "units"),
    rule("0", r"(?<![\d.,])(?P<seconds>[2-9]0)s(?![A-Za-z0-9]|'[A-Za-z])", _seconds, "units"),
]
