"""Ranges: reads the dash between two quantities as "to", whatever each of them is written with.

In:    matches of dashes, and of first ends whose unit stands only at the last
Out:   words
Never: the quantities at its ends, which their own rules read

A dash is a range where a quantity stands on both sides: a number with a unit, a day, a month, a time, an amount. Which unit
it is does not matter, so each end keeps its own: 5分钟-1小时, 9am-5pm, $500-$1k. A dash before a lone number stays a minus.
"""

import re

from pipeline.text.normalize.calendar import time_words
from pipeline.text.normalize.numbers import chinese, fraction, integer, ordinal, year
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import NOT_IN_WORD, NUMBER
from pipeline.text.normalize.quantities import up_to
from pipeline.text.normalize.rule import Match, Outcome, Rule, after, alternatives, before, rule
from pipeline.text.normalize.words import CLOSE_UNITS, CURRENCIES, MONTH_NUMBERS, MONTHS, SCALES, UNITS

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SHORT_DAYS = {name[:3]: name for name in _WEEKDAYS} | {"Tues": "Tuesday", "Thur": "Thursday", "Thurs": "Thursday"}
_DAY_NAME = rf"(?:{alternatives(_WEEKDAYS)}|(?:{alternatives(_SHORT_DAYS)})\.?)"
_MONTH_NAME = rf"(?:{alternatives(MONTHS)}|(?:{alternatives({name[:3] for name in MONTHS} | {'Sept'})})\.?)"
_NAMED = rf"(?:{_DAY_NAME}|{_MONTH_NAME})"

_DASH = r"(?:[-–~]|—(?!—))"
_NUMERAL = "[一二三四五六七八九十百千万亿两半几]"
_ZH_TIME = "(?:次日|当日|翌日|凌晨|清晨|早上?|上午|中午|正午|下午|午后|傍晚|晚上?|深夜|半夜|夜间|午夜)"
_ZH_DAY = "(?:周|星期|礼拜)[一二三四五六日天末]"
_ZH_SEASON = "[春夏秋冬][季天]"

_EN_UNIT = alternatives([*UNITS, *CLOSE_UNITS, *(scale for scale in SCALES if scale.isalpha()), "%", "‰", "x"])
_LEFT = re.compile(
    rf"(?:\d:\d\d|\d\s?(?P<unit>{_EN_UNIT}|{alternatives([code for code in CURRENCIES if code.isalpha()])})"
    r"|\d[万千亿]?[元块]?/(?:[A-Za-z]{1,4}[²³]?|[\u4e00-\u9fff]{1,2})"
    r"|\d\s?°[CF]?|\d(?P<suffix>st|nd|rd|th|s)|\d[′'\"″]|\d\s?[AaPp]\.?[Mm]\.?|\b(?:noon|midnight)"
    rf"|\d(?P<zh_unit>\s?[\u4e00-\u9fff]{{1,2}})|{_NUMERAL}(?P<zh_word>[\u4e00-\u9fff]{{0,2}})|{_ZH_DAY}|{_ZH_SEASON}"
    rf"|{_ZH_TIME}(?:\d{{1,2}}(?::\d\d)?)?|月(?:[初底末中]|[上中下]旬)|月份"
    rf"|[½⅓⅔¼¾⅛⅜⅝⅞]|(?<![\d/])\d{{1,2}}/\d{{1,2}}|\b{_MONTH_NAME}\s\d{{1,2}}"
    rf"|\d\s{_MONTH_NAME}|\b{_DAY_NAME}(?:\s\d{{1,2}})?)(?P<space> ?)$"
)
_RIGHT = re.compile(
    rf" ?(?:(?P<sign>[$€£¥₩₹]|US\$|HK\$)?\s?(?P<minus>-)?(?P<number>\d[\d,]*(?:\.\d+)?)\s?(?P<level>[%‰°])?"
    rf"|第?{_NUMERAL}|{_ZH_DAY}|{_ZH_SEASON}|(?:{_ZH_TIME})[\d{_NUMERAL[1:-1]}]|{_ZH_TIME}(?![\u4e00-\u9fff])|(?:初|大年|正月|腊月)[一二三四五六七八九十]"
    rf"|第\d|零下\d|[½⅓⅔¼¾⅛⅜⅝⅞]|{_NAMED}(?![A-Za-z])|(?:noon|midnight|present|now|today)\b|至今|今(?!年|天|日|后))",
    re.ASCII,
)
_DATE_BEHIND = re.compile(rf"(?:\d{{4}}[-/.]\d{{1,2}}(?:[-/.]\d{{1,2}})?|\b{_MONTH_NAME}\s\d{{1,2}}, \d{{4}}) ?$", re.ASCII)
_SUM = re.compile(r"[^\n=]{0,24}=\s?[\d-]", re.ASCII)
_TERM = re.compile(r"[\dA-Za-z)²³] $", re.ASCII)
_NOUN_BEHIND = re.compile(r"\d\s([A-Za-z]{2,12}) ?$", re.ASCII)
_NOUN_AHEAD = re.compile(r" ?\d[\d.,]{0,12}\s([A-Za-z]{2,12})(?![A-Za-z])", re.ASCII)


def _to(language: Language) -> str:
    return "到" if language == "zh" else "to"


def _between(match: Match, language: Language) -> Outcome:
    """Reads the dash of 3万-5万, 1.5h-2h, Dec 24th-26th; None where it is a minus, a hyphen or a pause."""
    if match["behind"] and _TERM.search(before(match, 3)) and _SUM.match(match.string, match.end()):
        return ("minus", "减")[language == "zh"]  # 10 kg - 3 kg = 7 kg
    if _same_noun(match):
        return _to(language)
    lower = _LEFT.search(before(match, 24))
    upper = _RIGHT.match(match.string, match.end() - len(match["behind"]))
    if not lower or not upper or bool(lower["space"]) != bool(match["behind"]):
        return None
    chinese_unit = lower["zh_unit"] or lower["zh_word"]
    if upper["level"] and (chinese_unit or lower["suffix"]):
        return None  # 8月-0.3%, 10时-3℃
    if lower["zh_word"] is not None and not _is_count(match, lower["zh_word"]):
        return None
    return _to(language)


def _same_noun(match: Match) -> bool:
    """True between two numbers with the same English word: 5 minutes - 10 minutes."""
    lower = _NOUN_BEHIND.search(before(match, 24))
    upper = _NOUN_AHEAD.match(match.string, match.end() - len(match["behind"]))
    return bool(lower and upper and lower[1].rstrip("s") == upper[1].rstrip("s"))


def _is_count(match: Match, unit: str) -> bool:
    """True if a Chinese numeral stands on the right too, or a digit behind a Chinese number with a unit."""
    following = after(match, 4).lstrip()
    if re.match(rf"第?{_NUMERAL}|(?:初|大年|正月|腊月)", following):
        return True
    return bool(unit) and following[:1].isdigit()


def _whole_dates(match: Match, language: Language) -> Outcome:
    """2020-01-01 - 2020-12-31, Jan 1, 2020 - Dec 31, 2021."""
    return _to(language) if _DATE_BEHIND.search(before(match, 24)) else None


def _double_minus(match: Match, language: Language) -> Outcome:
    return _to(language)


def _years_until(match: Match, language: Language) -> Outcome:
    return f"{year(match['year'], language)}{'到' if language == 'zh' else ' to'}"


def _named(match: Match, language: Language) -> Outcome:
    first, last = (_full_name(match[group]) for group in ("first", "last"))
    return f"{first} to {last}" if language == "en" else f"{first}到{last}"


def _full_name(written: str) -> str:
    short = written.rstrip(".")
    if short in _SHORT_DAYS:
        return _SHORT_DAYS[short]
    return MONTHS[MONTH_NUMBERS[short.lower()] - 1] if short.lower() in MONTH_NUMBERS else short


def _month_days(match: Match, language: Language) -> Outcome:
    """Dec 24-26, 2024: December twenty fourth to twenty sixth, twenty twenty four."""
    first, last = int(match["day"]), int(match["last"])
    if first >= last:
        return None
    month = MONTH_NUMBERS[match["name"].rstrip(".").lower()]
    if language == "zh":
        years = f"{year(match['year'], 'zh')}年" if match["year"] else ""
        return f"{years}{integer(str(month), 'zh')}月{integer(str(first), 'zh')}到{integer(str(last), 'zh')}日"
    spoken = f"{MONTHS[month - 1]} {ordinal(str(first))} to {ordinal(str(last))}"
    return f"{spoken}, {year(match['year'], 'en')}" if match["year"] else spoken


def _days_month(match: Match, language: Language) -> Outcome:
    """24-26 December: the twenty fourth to the twenty sixth of December."""
    first, last = int(match["day"]), int(match["last"])
    if first >= last or language == "zh":
        return None
    article = "" if before(match, 4).lower() == "the " else "the "
    month = MONTHS[MONTH_NUMBERS[match["name"].rstrip(".").lower()] - 1]
    return f"{article}{ordinal(str(first))} to the {ordinal(str(last))} of {month}"


def _first_time(match: Match, language: Language) -> Outcome:
    """The 9 of 9-11am, and the dash."""
    hours, minutes = int(match["hours"]), int(match["minutes"] or 0)
    if hours > 12 or minutes > 59:
        return None
    if language == "zh":
        return f"{time_words(hours, minutes, None, match['half'].lower(), 'zh')}到"
    spoken = time_words(hours, minutes, None, "a", "en").removesuffix(" a m")
    return f"{spoken} to"


def _thousands(match: Match, language: Language) -> Outcome:
    """15K-25K: pay in Chinese; 4K-8K are pictures."""
    low, high = match["low"], match["high"]
    is_pay = match["k"] == "k" or float(high) >= 9 or re.search(r"[薪资]", before(match, 6))
    sides = [chinese(round(float(side) * 1000)) for side in (low, high)]
    return "到".join(sides) if language == "zh" and is_pay else None


def _same_letter(match: Match, language: Language) -> Outcome:
    """Q1-Q3, A4-A6, v1.0-v2.0: the dash between two names of one series."""
    lower = re.search(r"(?<![A-Za-z0-9])([A-Za-z]{1,3})\d{1,4}(?:\.\d{1,2})?$", before(match, 12), re.ASCII)
    return _to(language) if lower and lower[1] == match["letter"] else None


def _fractions(match: Match, language: Language) -> Outcome:
    """1/2-3/4 cup. Two short dates look the same, but rise from the first to the last."""
    first, last = (int(match["a"]), int(match["b"])), (int(match["c"]), int(match["d"]))
    rises = first[0] / first[1] < last[0] / last[1] < 1
    if not rises or (first <= last and not match["measure"]):
        return None
    spoken = [fraction(match[above], match[below], language) for above, below in (("a", "b"), ("c", "d"))]
    return ("到" if language == "zh" else " to ").join(spoken)


def _ages(match: Match, language: Language) -> Outcome:
    """18-24-year-olds."""
    low, high = int(match["low"]), int(match["high"])
    return f"{integer(match['low'], 'en')} to {integer(match['high'], 'en')}" if language == "en" and low < high else None


def _last_decade(match: Match, language: Language) -> Outcome:
    """The 60s of 1950s-60s."""
    tens = integer(match["tens"], "en")
    return f"{tens[:-1]}ies" if language == "en" else f"{integer(match['tens'], 'zh')}年代"


def _letters(match: Match, language: Language) -> Outcome:
    return f"A {_to(language)} {match['last']}" if language == "en" else f"A到{match['last']}"


_ORDINAL = r"(?:st|nd|rd|th)?"
_DATE = r"3[01]|[12]\d|0?[1-9]"
_YEAR = r"1[1-9]\d\d|20\d\d"
EARLY: list[Rule] = [  # before short dates
    rule(
        "0",
        r"(?<![\d.,-])(?P<low>\d{1,3})[-–](?P<high>\d{1,3})(?=-(?:year|month|week|day|hour|minute|inch|foot|mile|page|person|yr)s?(?![a-z]))",
        _ages,
        "numbers",
    ),
    rule(
        "0",
        rf"(?<![\d/.])(?P<a>\d)/(?P<b>[2-9]){_DASH}(?P<c>\d)/(?P<d>[2-9])(?![\d/])"
        r"(?=(?P<measure>\s?(?:cups?|teaspoons?|tablespoons?|tsp|tbsp|inch|pounds?|lb|oz|of|miles?|hours?|杯|勺|小时|的)(?![a-z]))?)",
        _fractions,
        "numbers",
    ),
    rule("0", r"(?:(?<=\d\d0s-)|(?<=\d\d0s–))(?P<tens>[2-9]0)s(?![A-Za-z])", _last_decade, "dates"),
]
FIRST: list[Rule] = [  # before dates and telephone numbers
    rule("a", rf"{NOT_IN_WORD}(?P<first>{_NAMED})\s?{_DASH}\s?(?P<last>{_NAMED})(?![A-Za-z])", _named, "dates"),
    rule(
        "a",
        rf"{NOT_IN_WORD}(?P<name>{_MONTH_NAME})\s(?P<day>{_DATE}){_ORDINAL}\s?{_DASH}\s?(?P<last>{_DATE}){_ORDINAL}"
        rf"(?![\dA-Za-z%]|[-–/.:]\d)(?:,?\s(?P<year>{_YEAR})(?!\d))?",
        _month_days,
        "dates",
    ),
    rule(
        "0",
        rf"(?P<day>{_DATE}){_ORDINAL}\s?{_DASH}\s?(?P<last>{_DATE}){_ORDINAL}\s(?:of\s)?(?P<name>{_MONTH_NAME})(?![A-Za-z])",
        _days_month,
        "dates",
    ),
    rule(
        "0",
        rf"(?<![\d:.])(?P<hours>\d{{1,2}})(?::(?P<minutes>\d\d))?\s?{_DASH}\s?"
        r"(?=\d{1,2}(?::\d\d)?\s?(?P<half>[AaPp])(?:[Mm]\b|\.[Mm]\.))",
        _first_time,
        "dates",
    ),
    rule(
        "0", rf"(?P<year>{_YEAR})\s?{_DASH}\s?(?=(?:present|now|today|current)\b|至今|今(?!年|天|日|后))", _years_until, "dates"
    ),
    rule(
        "0",
        rf"(?<![\d.,-])(?P<low>{NUMBER})\s?{_DASH}\s?(?={NUMBER}\s?(?:(?:thousand|million|billion|trillion|[kMB])\s)?"
        rf"(?:{alternatives([code for code in CURRENCIES if code.isalpha()])})(?![A-Za-z0-9]))",
        up_to,
        "numbers",
    ),
    rule(
        "0",
        rf"(?<![\d.,-])(?P<low>\d{{1,3}}(?:\.\d)?)[kK]?{_DASH}(?P<high>\d{{1,3}}(?:\.\d)?)(?P<k>[kK])(?![A-Za-z0-9])",
        _thousands,
        "numbers",
    ),
    rule("a", rf"{NOT_IN_WORD}M{_DASH}F(?=[:,]?\s?\d)", ("Monday to Friday", "周一到周五"), "dates"),
    rule("a", rf"{NOT_IN_WORD}(?<!-)A{_DASH}(?P<last>[C-Z])(?![A-Za-z0-9-])", _letters, "numbers"),
    rule("-–~—", rf"{_DASH} ?(?=\d{{4}}[-/.]\d{{1,2}}(?:[-/.]\d|(?![\d.]))|{_MONTH_NAME}\s\d)", _whole_dates, "dates"),
    rule("-–~—", rf"{_DASH}(?P<behind> ?)", _between, "numbers"),
    rule("-–~", r"(?<=\d)[-–~](?=-\d)", _double_minus, "numbers"),
    rule("-–~", r"[-–~](?=(?P<letter>[A-Za-z]{1,3})\d)", _same_letter, "numbers"),
]
