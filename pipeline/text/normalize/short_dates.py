"""Short dates: reads a day and month written with a slash or dot where the words beside them show that they are a date.

In:    matches such as 12/25, 24/3/15, 9·18
Out:   words
Owns:  the words that reveal a date
Never: fractions, ratios, full dates
"""

import re
from math import gcd

from pipeline.text.normalize.calendar import date_words
from pipeline.text.normalize.numbers import english, integer, spell
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.rule import Match, Outcome, Rule, before, rule

_DATE_BEFORE = re.compile(
    r"(?:\b(?:RSVP|on|due|dated?|deadline|expires?|exp\.?|updated|posted|effective|Christmas|Halloween|birthday|DOB|"
    r"Mon|Tue|Tues|Wed|Weds|Thu|Thur|Thurs|Fri|Sat|Sun|[A-Z][a-z]{2,5}day)\.?,?:?\s\(?(?:is\s|on\s|by\s|the\s)?|"
    r"(?:日期|截止|圣诞节?|定于|将于|放假|时间|生日|节|活动|改到|延期|推迟|提前|周[一二三四五六日天])(?:[为是到至在]|[:(]|\s){0,2})$",
    re.ASCII | re.IGNORECASE,
)
_MAYBE_BEFORE = re.compile(
    r"(?:(?<!increase )(?<!decrease )(?<!reduced )(?<!divide )(?<!multiply )"
    r"\b(?:by|until|till|from|since|through|thru|before|after|starting|starts|ending|ends|between|and|to|for)\s|[在于至从到自前]\s?)$",
    re.ASCII | re.IGNORECASE,
)
_DATE_AFTER = re.compile(
    r"\s?(?:(?:at|@)\s\d|\d{1,2}:\d\d|放假|截止|开始|之?前|出发|举行|上线|发布|开幕|开售|到货|到期|到\d{1,2}/\d|起|当天|上映|开播|播出|开学|公布|生效|晚|上午|下午|-\d{1,2}/\d)",
    re.ASCII,
)
_KNOWN_DAYS = ("12/24", "12/25", "12/31", "10/31")


def _is_day(month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= 31


def _is_fraction(above: int, below: int) -> bool:
    """True if a fraction people write: in lowest terms, and of few parts."""
    return above < below <= 10 and gcd(above, below) == 1


def _month_day(match: Match, language: Language) -> Outcome:
    month, day = int(match["month"]), int(match["day"])
    if not _is_day(month, day):
        return None
    context = before(match, 24)
    is_date = match[0] in _KNOWN_DAYS or bool(_DATE_BEFORE.search(context) or _DATE_AFTER.match(match.string, match.end()))
    if not is_date and _MAYBE_BEFORE.search(context):
        is_date = not _is_fraction(month, day) and (language == "zh" or day > 12 or month > day)
    if not is_date and language == "zh":
        is_date = month > day and bool(re.match(r"\s?[\u4e00-\u9fff]", match.string[match.end() : match.end() + 2]))
    return date_words("", month, day, language) if is_date else None


def _counts(match: Match, language: Language) -> Outcome:
    """KDA 8/2/11: three counts of a game."""
    comma = {"zh": "、", "en": ", "}[language]
    return comma.join(integer(count, language) for count in match[0].split("/"))


def _short_year(match: Match, language: Language) -> Outcome:
    first, second, third = (int(match[name]) for name in ("first", "second", "third"))
    if language == "zh":
        years, month, day = match["first"], second, third
        if len(years) == 2 and _is_day(month, day):
            return f"{spell(years, 'zh')}年{date_words('', month, day, 'zh')}"
        return _counts(match, language)
    month, day = (second, first) if first > 12 else (first, second)
    if not _is_day(month, day) or len(match["third"]) != 2:
        return _counts(match, language)
    return date_words(f"{20 if third < 70 else 19}{match['third']}", month, day, "en")


def _memorial(match: Match, language: Language) -> Outcome:
    """9·18事变: a date by which an event is known, digit by digit."""
    return spell(re.sub(r"\D", "", match[0]), "zh")


def _countdown(match: Match, language: Language) -> Outcome:
    return f"T minus {english(int(match['seconds']))}" if language == "en" else None


_EVENTS = "事变|事件|惨案|运动|恐怖|袭击|地震|大地震|案|大案|专案|讲话|起义|学潮|特大|工程|空难|事故|爆炸"
RULES: list[Rule] = [
    rule(
        "0",
        r"(?:(?<=战绩)|(?<=数据)|(?<=打出)|(?<=KDA )|(?<=KDA)|(?<=KDA: )|(?<=kda )|"
        r"(?<=K/D/A )|(?<=went )|(?<=score )|(?<=KDA was )|(?<=战绩为)|(?<=战绩是)|(?<=战绩:))"
        r"\d{1,3}/\d{1,3}/\d{1,3}(?![/\d])",
        _counts,
        "numbers",
    ),
    rule("0", r"(?<!\d)(?<!\d[/.])9/11(?!\d|/\d)", ("nine eleven", "九一一"), "dates"),
    rule("0", r"(?<!\d)(?<!\d[/.])(?P<first>\d{1,2})/(?P<second>\d{1,2})/(?P<third>\d{1,2})(?!/?\d)", _short_year, "dates"),
    rule(
        "0",
        r"(?<!\d)(?<!\d[/.])(?<!\d\s)(?P<month>1[0-2]|0?[1-9])/(?P<day>3[01]|[12]\d|0?[1-9])(?!/?\d|\.\d|%)",
        _month_day,
        "dates",
    ),
    rule("0", rf"(?<![\d./])(?:\d{{1,2}}[./]\d{{1,2}}|[1-9][0-3]\d)(?=[\"'”’]?(?:{_EVENTS}))", _memorial, "dates"),
    rule("0", r"(?<![\d.•])(?:1[0-2]|[1-9])•(?:3[01]|[12]\d|[1-9])(?![\d.•])", _memorial, "dates"),
    rule(
        "a", r"(?<![A-Za-z0-9])T-(?P<seconds>\d{1,3})(?=\s(?:second|minute|hour|day|and)|\s?[:.,!]|\s?$)", _countdown, "numbers"
    ),
]
