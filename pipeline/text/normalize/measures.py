"""Measures: reads percentages, temperatures, coordinates, durations, sizes and everything with a unit.

In:    matches of written measures
Out:   words
Never: money, dates, plain numbers
"""

import re

from pipeline.text.normalize.numbers import counted, number, pairs, plural_of
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import EDGE, MINUS, NUMBER, TO, is_one
from pipeline.text.normalize.rule import Match, Outcome, Rule, alternatives, before, rule
from pipeline.text.normalize.tables import word_list
from pipeline.text.normalize.words import CLOSE_UNITS, UNITS

_UNIT = alternatives(list(UNITS))
_CLOSE = alternatives(list(CLOSE_UNITS))
_ARTICLE_BEFORE = re.compile(r"(?:^|[^A-Za-z.])[Aa]n?\s[\"']?$")
_MILLIONS_AFTER = re.compile(
    rf"\+? (?!(?:{alternatives(word_list('measured in meters'))})\b)"
    r"(?:(?:more|other|new|active|daily|monthly|paying|registered|unique|tons of|barrels of)\s)?"
    r"(?:[a-z]{2,12}s|people|men|women|children|tonnes|of (?:them|us|you|whom|which|these|those|its|our|their))\b",
    re.ASCII,
)
"""what is counted in millions behind 2m; what is measured in meters is left out"""
_NOUN_AFTER = re.compile(rf" (?:{alternatives(word_list('attributed'))})\b")
_NETWORK_AFTER = re.compile("网|手机|信号|流量|基站|套餐|时代|技术")
_DEGREE = {"C": ("degrees Celsius", "摄氏度"), "F": ("degrees Fahrenheit", "华氏度"), "": ("degrees", "度")}
_COMPASS = {"N": ("north", "北纬"), "S": ("south", "南纬"), "E": ("east", "东经"), "W": ("west", "西经")}


def is_attribute(match: Match) -> bool:
    """True if a quantity describes a noun, so that its unit is singular: a 5 kg bag, a 5-kg bag."""
    return bool(
        re.search(r"\d-[A-Za-z]", match[0])
        or _NOUN_AFTER.match(match.string, match.end())
        or _ARTICLE_BEFORE.search(before(match, 5))
    )


def _percent(match: Match, language: Language) -> Outcome:
    sign = match["sign"]
    low, high = match["low"], match["high"]
    minus = {"zh": "负", "en": "minus "}[language] if match["minus"] else ""
    if language == "zh":
        over = {"%": "百分之", "‰": "千分之", "‱": "万分之"}[sign]
        return f"{over}{minus}{number(low, 'zh')}" + (f"到{over}{number(high, 'zh')}" if high else "")
    name = {"%": "percent", "‰": "per mille", "‱": "per ten thousand"}[sign]
    return f"{minus}{number(low, 'en')} " + (f"to {number(high, 'en')} " if high else "") + name


def _temperature(match: Match, language: Language) -> Outcome:
    minus, low, high = match["minus"], match["low"], match["high"]
    english_name, chinese_name = _DEGREE[match["scale"] or ""]
    if language == "zh":
        below = "零下" if match["scale"] else "负"
        to = f"到{below if match['minus2'] else ''}{number(high, 'zh')}" if high else ""
        return f"{below if minus else ''}{number(low, 'zh')}{to}{chinese_name}"
    to = f" to {'minus ' if match['minus2'] else ''}{number(high, 'en')}" if high else ""
    if not high and is_one(low):
        english_name = english_name.replace("degrees", "degree")
    return f"{'minus ' if minus else ''}{number(low, 'en')}{to} {english_name}"


def _coordinate(match: Match, language: Language) -> Outcome:
    degrees, minutes, seconds, side = match["degrees"], match["minutes"], match["seconds"], match["side"]
    if not minutes and not side:
        return None
    if language == "zh":
        spoken = f"{number(degrees, 'zh')}度"
        spoken += f"{number(minutes, 'zh')}分" if minutes else ""
        spoken += f"{number(seconds, 'zh')}秒" if seconds else ""
        return f"{_COMPASS[side][1] if side else ''}{spoken}"
    spoken = f"{number(degrees, 'en')} degrees"
    spoken += f" {number(minutes, 'en')} minutes" if minutes else ""
    spoken += f" {number(seconds, 'en')} seconds" if seconds else ""
    return f"{spoken} {_COMPASS[side][0]}" if side else spoken


def _unit(match: Match, language: Language) -> Outcome:
    symbol = match["unit"].strip() if match["unit"].strip() != "st" else "stone"
    if symbol == "m" and language == "en" and _MILLIONS_AFTER.match(match.string, match.end()):
        return unit_words(match, ("million", "million", ""), language)
    if match[0] in ("4g", "5g") and _NETWORK_AFTER.match(match.string, match.end()):
        return f"{number(match['low'], 'zh')}G"
    if symbol == "w" and language == "en":
        symbol = "W"
    if symbol == "pt" and _TYPE_AFTER.match(match.string, match.end()):
        symbol = "pts"
    if symbol == "pp" and match.string.startswith(".", match.end("unit")):
        return unit_words(match, ("page", "pages", "页"), language)
    return unit_words(match, UNITS.get(symbol) or CLOSE_UNITS[symbol], language)


def unit_words(match: Match, names: tuple[str, ...], language: Language) -> str:
    """Returns a number or a range with its unit: five kilograms; a five kilogram bag; 五公斤.

    Args:
        match: with the groups minus, low and high.
        names: of the unit: English for one, for more, Chinese.
    """
    low, high = match["low"], match["high"]
    singular, plural, chinese_name = names
    minus = {"zh": "负", "en": "minus "}[language] if match["minus"] else ""
    if language == "zh":
        return minus + (f"{number(low, 'zh')}到{counted(high)}" if high else counted(low)) + chinese_name
    spoken = f"{number(low, 'en')} to {number(high, 'en')}" if high else number(low, "en")
    return f"{minus}{spoken} {singular if (is_one(low) and not high) or is_attribute(match) else plural}"


def _feet(match: Match, language: Language) -> Outcome:
    feet, inches = match["feet"], match["inches"]
    if language == "zh":
        return f"{counted(feet)}英尺{counted(inches)}英寸"
    foot, inch = "foot" if feet == "1" else "feet", "inch" if inches == "1" else "inches"
    return f"{number(feet, 'en')} {foot} {number(inches, 'en')} {inch}"


def _duration(match: Match, language: Language) -> Outcome:
    spoken = []
    names = (("hours", "hour", "小时"), ("minutes", "minute", "分钟"), ("seconds", "second", "秒"))
    for group, english_name, chinese_name in names:
        written = match[group]
        if written and language == "zh":
            spoken.append(f"{counted(written)}{'分' if group == 'minutes' and match['seconds'] else chinese_name}")
        elif written:
            spoken.append(f"{number(written.lstrip('0') or '0', 'en')} {english_name}{'' if is_one(written) else 's'}")
    return ("" if language == "zh" else " ").join(spoken)


def _size(match: Match, language: Language) -> Outcome:
    """40x30x20mm, 4x100 m relay; 2 x 250 mg is a product."""
    symbol = match["unit"]
    is_product = (symbol in _AMOUNTS or _ASKED_BEFORE.search(before(match, 16))) and not match["c"] and " " in match[0]
    by = "乘" if language == "zh" else " times " if is_product else " by "
    sides = [match["a"], match["b"], *([match["c"]] if match["c"] else [])]
    are_dots = language == "en" and not symbol and all(len(side) == 4 and side.isdigit() for side in sides)
    spoken = by.join(pairs(side) if are_dots else number(side, language) for side in sides)
    if match["many"]:
        return plural_of(spoken) if language == "en" else None
    if not symbol:
        return spoken
    singular, plural, chinese_name = UNITS.get(symbol) or CLOSE_UNITS[symbol]
    if language == "zh":
        return f"{spoken}{chinese_name}"
    return f"{spoken} {singular if _RACE_AFTER.match(match.string, match.end()) else plural}"


def _lone_degrees(match: Match, language: Language) -> Outcome:
    """The ℃ of 温度用℃: a unit without its number."""
    return _DEGREE[match["scale"]][language == "zh"]


_ASKED_BEFORE = re.compile(r"\b(?:[Ww]hat(?:'s| is| does)|[Ii]s|[Cc]ompute|[Cc]alculate|[Mm]ultiply|[Ss]olve)\s$")
_AMOUNTS = frozenset(["mg", "g", "kg", "ml", "mL", "L", "l", "mcg", "μg", "oz", "lb", "IU", "W"])
_RACE_AFTER = re.compile(r" (?:relay|race|freestyle|medley|hurdles|sprint)\b")
_TYPE_AFTER = re.compile(r"\s(?:font|type|text|Arial|Times|bold)\b")
_STOPLESS = r"(?:\.(?=\s[a-z(&]|[,;:)])|(?<=ft)\.(?=\s\d))?"  # the dot of an abbreviated unit within a sentence
RULES: list[Rule] = [
    rule("0-", rf"{MINUS}(?P<low>{NUMBER})(?:[%‰‱]?{TO}(?P<high>{NUMBER}))?\s?(?P<sign>[%‰‱])", _percent, "numbers"),
    rule(
        "0",
        r"(?P<degrees>\d{1,3}(?:\.\d{1,8})?)\s?°\s?(?:(?P<minutes>\d{1,2}(?:\.\d{1,6})?)\s?[′']\s?"
        r"(?:(?P<seconds>\d{1,2}(?:\.\d{1,6})?)\s?(?:[″\"]|''))?)?\s?(?:(?P<side>[NSEW])(?![A-Za-z]))?",
        _coordinate,
        "units",
    ),
    rule(
        "0-",
        rf"{MINUS}(?P<low>{NUMBER})(?:\s?°[CF]?)?(?:{TO}(?P<minus2>-)?(?P<high>{NUMBER}))?\s?°\s?(?:(?P<scale>[CF])(?![A-Za-z]))?",
        _temperature,
        "units",
    ),
    rule("°", r"°(?P<scale>[CF])(?![A-Za-z])", _lone_degrees, "units"),
    rule("0", r"(?P<feet>\d)\s?[′']\s?(?P<inches>\d{1,2})\s?(?:[″\"]|'')", _feet, "units"),
    rule(
        "0",
        r"(?:(?P<hours>\d{1,3})\s?h(?:rs?)?\s?)(?P<minutes>\d{1,2})(?:\s?m(?:in)?|(?<=h[0-5]\d))(?:\s?(?P<seconds>\d{1,2})\s?s(?:ec)?)?(?![A-Za-z\d])",
        _duration,
        "units",
    ),
    rule(
        "0",
        r"(?P<hours>(?!))?(?P<minutes>\d{1,3})\s?m(?:in)?\s?(?P<seconds>\d{1,2})\s?s(?:ec)?(?![A-Za-z])",
        _duration,
        "units",
    ),
    rule(
        "0",
        rf"(?P<a>{NUMBER})\s?[x×]\s?(?P<b>{NUMBER})(?:\s?[x×]\s?(?P<c>{NUMBER}))?"
        rf"(?!\s?=|[\d^⁰¹²³⁴⁵⁶⁷⁸⁹⁻]|-[⁰¹²³⁴⁵⁶⁷⁸⁹]|\s?(?:{_UNIT}|{_CLOSE})\s?[x×])"
        rf"(?:(?P<many>s)(?![A-Za-z])|\s?(?P<unit>{_UNIT}|[mgLlW](?=\s[a-z]|[.,;:)]|$)|{_CLOSE}){EDGE}(?!\.[A-Za-z]))?",
        _size,
        "numbers",
    ),
    rule(
        "0-",
        rf"{MINUS}(?P<low>{NUMBER})(?:{TO}(?P<high>{NUMBER}))?(?:\s?|-)(?P<unit>{_UNIT}){EDGE}(?!\.[A-Za-z]){_STOPLESS}",
        _unit,
        "units",
    ),
    rule(
        "0-",
        rf"{MINUS}(?P<low>{NUMBER})(?:{TO}(?P<high>{NUMBER}))?"
        rf"-?(?P<unit>(?:{_CLOSE})(?!(?<=-in)-)|(?<!1)st(?= ?\d{{1,2}} ?lb)| st(?! of\b|[A-Za-z]|\.\s?[A-Z])"
        rf"| m(?= (?:tall|long|wide|deep|high|away|apart|thick)\b)){EDGE}(?!\.[A-Za-z])",
        _unit,
        "units",
    ),
]
