"""Rates: reads what stands around a unit: a slash as "per", units apart from their number, offsets from UTC.

In:    matches of slashes, of units without a number, of single-letter units behind a space
Out:   words
Owns:  the words for what a rate is counted by
Never: a unit on its number, money, fractions
"""

import re

from pipeline.text.normalize.measures import unit_words
from pipeline.text.normalize.numbers import counted, integer, number
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import EDGE, MINUS, NOT_IN_WORD, NUMBER, TO
from pipeline.text.normalize.rule import Match, Outcome, Rule, alternatives, before, rule
from pipeline.text.normalize.tables import row_table, word_list
from pipeline.text.normalize.words import CLOSE_UNITS, CURRENCIES, UNITS

_PER = row_table("rate")  # English, Chinese
_TIMES = "second|sec|s|minute|min|hour|hr|h|day|week|wk|month|mo|year|yr"
_QUANTITY_BEFORE = re.compile(
    rf"(?:\d\s?(?:{alternatives([*UNITS, *CURRENCIES])})\.?"
    r"|\d[\"″]|[\d²³⁴⁵⁶⁷⁸⁹⁰%)]\s?(?:[A-Za-z°μΩ•²³]{1,12}\.?|[\u4e00-\u9fff]{1,3})?|\d\s?(?:thousand|million|billion|[A-Za-z]{2,12})"
    r"|\d[\d.,]*\s(?:[a-z]{2,12}\s)?[a-z]{2,12}|(?:one|two|three|four|five|six|ten|half|几|多少|[万亿千百])\s?[a-z\u4e00-\u9fff]{1,10})"
    r"(?:/[A-Za-z\u4e00-\u9fff]{1,8})?\s?$",
    re.ASCII,
)
_COUNTED_RATE = re.compile(
    r"(?:(?:元|[$€£¥]\s?\d[\d.,]*|dollars?|euros?|cents?|pounds?)\s?|\d\s?(?:mg|g|mcg|ug|μg|ml|mL|L|l|kcal|kJ|IU|kWh|gal|USD|EUR|CNY))"
    r"/\s?\d{1,4}\s?(?:mg|g|ml|mL|dL|L|l|kg|km|mi|lb|oz|cm|m|min|h)$",
    re.ASCII,
)
_MANY_BEFORE = re.compile(r"[a-z]{3,12}s$", re.ASCII)
_ZH_PER_BEFORE = re.compile(
    r"(?:\d[\d.,]*\s?[万亿千百多余来]?|[一二三四五六七八九十百千万亿两半几])(?:[\u4e00-\u9fff]{1,3}|[A-Za-z%°℃μ²³]{1,6})?"
    r"(?:/[\u4e00-\u9fffA-Za-z]{1,3}){0,2}\s?$",
    re.ASCII,
)
_DAY_BEFORE = re.compile(r"(?:周|星期|礼拜)[一二三四五六日天末]\s?$")
_SIGNS_BETWEEN = re.compile(r"\d[^A-Za-z0-9，。、,.;:!?()\n\u4e00-\u9fff-]{1,8}$", re.ASCII)
"""signs between a number and its unit that are not heard"""
_AMOUNT_BEFORE = re.compile(
    r"(?:(?<![\d/])(?P<part>\d{1,2}/\d{1,3}|(?<!\d)[½⅓⅔¼¾⅛⅜⅝⅞]|\bhalf a|\bquarter)|"
    r"\b(?:hundred|thousand|million|billion|trillion|dozen)|\d[kM]"
    r"|\d[½⅓⅔¼¾⅛⅜⅝⅞]|\d\s\d{1,2}/\d{1,2}|\d/\d{2,3}|[\d.,]\d?\s?[x×]\s?\d[\d.,]{0,8}|[⁰¹²³⁴⁵⁶⁷⁸⁹]|\^-?\d{1,3}|\d\+|\d\s?[万亿千百多余来几]|[万亿千百十几半每两多少]|单位[为是:]?|[\u4e00-\u9fff][用以按]|(?P<per>\bper|/))\s?$",
    re.ASCII,
)
_NUMBERED_BEFORE = re.compile(
    r"\b(?:Fig|Figure|Table|Section|Chapter|Part|Exercise|Question|Type|Group|Class|Grade|Year|Step)\.?\s$"
)
_CURRENT_NEAR = re.compile(
    r"\d\s?V\b|fuse|breaker|\bamps?\b|charg|current|circuit|adapter|\bUSB\b|电流|充电|保险|额定|输出|输入|电源"
)
_INCH_AFTER = re.compile(
    r"\.?\s?(?:[x×]\s?\d|by\s\d|wide|long|tall|high|deep|thick|in diameter|of (?:rain|snow)|diameter|screen|tv\b|pipe)",
    re.IGNORECASE,
)
_SIZED_AFTER = re.compile(r"\s?[x×=]\s?\d|-?[ ]?[A-Za-z\u4e00-\u9fff]")
_THING_AFTER = re.compile(r"-?\s?(?!(?:wide|long|tall|deep|high|thick|apart|square|from|with|into|across)\b)[a-z]{4,}")
_SIZED_BEFORE = re.compile(
    r"\b(?:screen|display|monitor|size|diameter|wheels?|pizza|tv|width|height|depth|waist)\b|[屏寸径]", re.IGNORECASE
)
_FEET_BEFORE = re.compile(r"(?:\b(?:ft|feet|foot)\.?|\d'|\d\s?in\.?\s?[x×]|by)\s?$")
_HEAT = re.compile(rf"\b(?:{alternatives(word_list('heat'))})\b|温|烤箱|预热|烧到|加热", re.IGNORECASE | re.ASCII)
_THOUSANDS_BEFORE = re.compile(
    r"[$€£¥]\s?$|\b(?:salary|salaries|paid|pay|pays|earn\w*|costs?|price\w*|worth|budget|income|revenue|made|makes?|an?|about|over)"
    r"\s(?:of\s)?$"
)
_THOUSANDS_AFTER = re.compile(
    r"\s(?:[a-z]{2,14}s|people|of (?:RAM|memory|data)|run|race|video|screen|resolution|TV|monitor|a (?:year|month))\b"
    r"|\s?[屏显画视电纱]"
)
_UNIT = alternatives(list(UNITS))
_CLOSE = alternatives(list(CLOSE_UNITS))


def _per(match: Match, language: Language) -> Outcome:
    """$5/month, 60 words/min, 7.5L/100km."""
    context, unit, count = before(match, 32), match["unit"], match["count"]
    is_rate = _QUANTITY_BEFORE.search(context) or (_MANY_BEFORE.search(context) and re.fullmatch(_TIMES, unit))
    if not is_rate or (count and not _COUNTED_RATE.search(context + match[0])):
        return None  # 220V/50Hz
    if language == "zh":
        chinese = _PER[unit][1] if unit in _PER else UNITS[unit][2]
        return f"每{'百' if count == '100' else integer(count, 'zh') if count else ''}{chinese}"
    if count:
        singular, plural = UNITS[unit][:2] if unit in UNITS else (_PER[unit][0], f"{_PER[unit][0]}s")
        return f"per {number(count, 'en')} {singular if count == '1' else plural}"
    return f"per {_PER[unit][0] if unit in _PER else UNITS[unit][0]}"


def _zh_per(match: Match, language: Language) -> Outcome:
    if _DAY_BEFORE.search(before(match, 4)):
        return None  # 周六/周日
    return "每" if _ZH_PER_BEFORE.search(before(match, 20)) else None


def _lone_unit(match: Match, language: Language) -> Outcome:
    """1/2 kg, 10 million km, 3万km, 每kg: a unit whose number is no plain one."""
    context = before(match, 20)
    amount = _AMOUNT_BEFORE.search(context)
    singular, plural, chinese = UNITS[match["unit"]]
    if language == "zh":
        return chinese if amount or _SIGNS_BETWEEN.search(context) else None
    if not amount:
        return None
    return singular if amount["part"] or amount["per"] else plural


def _apart(match: Match, language: Language) -> Outcome:
    """5 m, 30 s: a single letter behind a space."""
    if _NUMBERED_BEFORE.search(before(match, 12)):
        return None
    return unit_words(match, CLOSE_UNITS[match["unit"]], language)


def _amperes(match: Match, language: Language) -> Outcome:
    around = match.string[max(0, match.start() - 24) : match.end() + 24]
    is_current = _CURRENT_NEAR.search(around)
    return unit_words(match, ("amp", "amps", "安"), language) if is_current else None


def _inches(match: Match, language: Language) -> Outcome:
    is_length = (
        match.string.startswith(".", match.end("unit"))
        or _INCH_AFTER.match(match.string, match.end("unit"))
        or _FEET_BEFORE.search(before(match, 8))
    )
    return unit_words(match, CLOSE_UNITS["in"], language) if is_length else None


def _fraction_inches(match: Match, language: Language) -> Outcome:
    """The in. of 3 1/4 in. long."""
    is_mixed = re.search(r"\d(?:\s\d{1,2}/\d{1,2}|\s?[½⅓⅔¼¾⅛⅜⅝⅞])\s$", before(match, 10), re.ASCII)
    return "英寸" if language == "zh" else "inches" if is_mixed else "inch"


def _inch_mark(match: Match, language: Language) -> Outcome:
    """27": a quotation mark that closes nothing."""
    line = match.string[max(0, match.start() - 200) : match.start()].rpartition("\n")[2]
    is_size = _SIZED_AFTER.match(match.string, match.end()) or _SIZED_BEFORE.search(line[-24:])
    is_size = is_size or re.search(r"\d[\"″]\s?[x×]\s?$", line)
    quotes = len(re.findall(r"(?<!\d)\"", line))
    names = CLOSE_UNITS["in"]
    names = (names[0], names[0], names[2]) if _THING_AFTER.match(match.string, match.end()) else names
    return unit_words(match, names, language) if is_size and quotes % 2 == 0 else None


def _fraction_mark(match: Match, language: Language) -> Outcome:
    """1/4" bit: inches, unless a quotation ends here."""
    line = match.string[max(0, match.start() - 200) : match.start()].rpartition("\n")[2]
    return ("inch", "英寸")[language == "zh"] if len(re.findall(r"(?<!\d)\"", line)) % 2 == 0 else None


def _feet_mark(match: Match, language: Language) -> Outcome:
    """6'x4', 6' tall."""
    is_size = _INCH_AFTER.match(match.string, match.end()) or re.search(r"\d'?\s?[x×]\s?$", before(match, 6))
    return unit_words(match, ("foot", "feet", "英尺"), language) if is_size else None


def _offset(match: Match, language: Language) -> Outcome:
    """GMT-5, UTC+05:30."""
    sign = {"+": ("plus", "加"), "-": ("minus", "减"), "±": ("plus or minus", "正负")}[match["sign"]][language == "zh"]
    hours, minutes = str(int(match["hours"])), match["minutes"]
    zone = " ".join(match["zone"])
    if language == "zh":
        return f"{zone}{sign}{integer(hours, 'zh')}" + (f"点{integer(minutes, 'zh')}分" if minutes and int(minutes) else "")
    return f"{zone} {sign} {integer(hours, 'en')}" + (f" {integer(minutes, 'en')}" if minutes and int(minutes) else "")


def _by(match: Match, language: Language) -> Outcome:
    """10 in x 12 in, 5cm×3cm."""
    is_size = re.search(rf"\d\s?(?:{_UNIT}|{_CLOSE}|['\"])\s?$", before(match, 12))
    return ("乘" if language == "zh" else "by") if is_size else None


def _temperature(match: Match, language: Language) -> Outcome:
    """180C, 98.6 F: degrees beside a word of heat, or with decimals; 300 K: kelvin behind a blank."""
    prefix, suffix = before(match, 28), match.string[match.end() : match.end() + 16]
    if match["scale"] == "K":
        is_thousands = _THOUSANDS_BEFORE.search(prefix) or _THOUSANDS_AFTER.match(suffix)
        is_hot = match["gap"] or _HEAT.search(prefix) or _HEAT.search(suffix)
        is_kelvin = re.fullmatch(r"[1-9]\d\d0", match["low"]) or (is_hot and not is_thousands)
        return unit_words(match, ("kelvin", "kelvin", "开尔文"), language) if is_kelvin else None
    if not (_HEAT.search(prefix) or _HEAT.search(suffix) or ("." in match["low"] and not match["gap"])):
        return None
    name = {"C": ("degree Celsius", "degrees Celsius", "摄氏度"), "F": ("degree Fahrenheit", "degrees Fahrenheit", "华氏度")}
    return unit_words(match, name[match["scale"]], language)


def _meters_and(match: Match, language: Language) -> Outcome:
    """1m8: a height."""
    return f"{counted(match['meters'])}米{integer(match['rest'], 'zh')}" if language == "zh" else None


_ZH_COUNTED = word_list("chinese rate")[0]
FIRST: list[Rule] = [  # before names and quantities
    rule(
        "a",
        rf"{NOT_IN_WORD}(?P<zone>GMT|UTC)\s?(?P<sign>[+±-])\s?(?P<hours>\d{{1,2}})(?::?(?P<minutes>\d\d))?(?!\d)",
        _offset,
        "dates",
    ),
    rule("0", r"(?P<minus>(?!))?(?P<low>\d{1,3})(?P<high>(?!))?'(?![A-Za-z0-9](?<!x))", _feet_mark, "units"),
    rule("0", r"(?<![\d.,])(?P<meters>[12])m(?P<rest>\d{1,2})(?![\dA-Za-z])", _meters_and, "units"),
]
RULES: list[Rule] = [
    rule("a×", r"[x×](?=\s?\d)", _by, "numbers"),
    rule(
        "0-", rf"{MINUS}(?P<low>{NUMBER})(?:{TO}(?P<high>{NUMBER}))?(?P<gap>\s?)(?P<scale>[CFK]){EDGE}", _temperature, "units"
    ),
    rule(
        "/",
        rf"/\s?(?P<count>\d{{1,4}}(?=\s?[A-Za-z]))?\s?(?P<unit>{alternatives([*_PER, *UNITS])}){EDGE}(?!\.[A-Za-z])",
        _per,
        "units",
    ),
    rule("/", rf"/\s?(?=[{_ZH_COUNTED}])", _zh_per, "units"),
    rule("a", r"(?:(?<=\d/\d\d)|(?<=\d/\d\d\d))(?P<unit>mmHg|kPa)(?![A-Za-z0-9])", _lone_unit, "units"),
    rule(
        "ag",
        rf"{NOT_IN_WORD}(?P<unit>{_UNIT})(?:{EDGE}|(?<=[²³]))(?!\.[A-Za-z])(?:\.(?=\s[a-z(&]|[,;:)]))?",
        _lone_unit,
        "units",
    ),
    rule(
        "0-",
        rf"{MINUS}(?P<low>{NUMBER})(?:{TO}(?P<high>{NUMBER}))?\s(?P<unit>[mgLlhsVWJ]|t(?!\.\s(?!of\b)[a-z])){EDGE}(?!['.][A-Za-z])",
        _apart,
        "units",
    ),
    rule("0-", rf"{MINUS}(?P<low>{NUMBER})(?P<high>(?!))?\s?(?P<unit>A){EDGE}", _amperes, "units"),
    rule(
        "0", rf"(?P<minus>(?!))?(?P<low>{NUMBER})(?P<high>(?!))?\s(?P<unit>in)\b(?:\.(?=\s[a-z(×]|[,;:)]))?", _inches, "units"
    ),
    rule(
        "a",
        r"(?:(?<=\d/\d\s)|(?<=\d/\d\d\s)|(?<=[½⅓⅔¼¾⅛⅜⅝⅞]\s))in(?:(?=\.(?:\s[A-Z]|$))|\.(?=\s[a-z(×]|[,;:)])"
        r"|(?=\s(?:wide|long|tall|high|deep|thick)\b))",
        _fraction_inches,
        "units",
    ),
    rule(
        '"″',
        r"(?:(?<=\d/\d)|(?<=\d/\d\d)|(?<=[½¼¾⅛⅜⅝⅞]))[\"″](?=\s[A-Za-z\u4e00-\u9fff]|\s?=|[\u4e00-\u9fff]|-[a-z])",
        _fraction_mark,
        "units",
    ),
    rule("0", rf"(?P<minus>(?!))?(?P<low>{NUMBER})(?P<high>(?!))?(?P<unit>[\"″])(?![A-Za-z0-9])", _inch_mark, "units"),
]
