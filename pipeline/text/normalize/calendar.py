"""Calendar: reads dates and times of day.

In:    matches of written dates and times
Out:   words
Never: other numbers
"""

import re

from pipeline.text.normalize.numbers import english, integer, ordinal, spell, year
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import COUNTED_AFTER, EDGE
from pipeline.text.normalize.rule import Match, Outcome, Rule, after, alternatives, before, rule
from pipeline.text.normalize.tables import word_list
from pipeline.text.normalize.words import MONTH_NUMBERS, MONTHS, UNITS

_MONTH_NAMES = alternatives([name for month in MONTHS for name in (month, month[:3])] + ["Sept"])
_DAY = r"(?P<day>3[01]|[12]\d|0?[1-9])"
_MONTH = r"(?P<month>1[0-2]|0?[1-9])"
_YEAR = r"(?P<year>1[1-9]\d\d|20\d\d)"
# The dot after p.m is a stop at the end of a sentence.
_BEHIND_HALF = r"(?=\s?[a-z0-9,;:)–—-]|\s(?:[MTWFS][a-z]{2,5}day|[ECMP][SD]?T|CES?T|[BIJ]ST|GMT|UTC)\b)"
_HALF = rf"(?:\s?(?P<half>[AaPp])(?:[Mm]\b|\.[Mm]\.{_BEHIND_HALF}|\.[Mm]\b|(?<=:\d\d.)(?![A-Za-z0-9.])))"

_ABOUT = re.compile(r"(?:近|约|超过|过去|长达|大约|将近|至少|历时|历经|上下|整整|有着?|了)$")
_LONG_AFTER = re.compile(r"\s?年(?:来|间|历史|的历史|以上|左右|之久|前|后|多)")
_SCORE_BEFORE = re.compile(
    r"(?:(?:比分|战胜|击败|赢|输|负|胜|平|比例|以|局|盘|score|scores|won|beat|lost|win|lose|ratio|sets)[^\d。]{0,6}|\b(?:dilut|mix|blend|odds|scale|proportion)[^\d.,。]{0,24})"
    r"(?:\d{1,3}:\d{1,3}[、，, ]{1,2}){0,5}$",
    re.IGNORECASE | re.ASCII,
)
_YEAR_WORDS = rf"(?:\b(?:{alternatives(word_list('year words'))}|Q[1-4]|H[12]|{_MONTH_NAMES})[ ,.-]{{1,2}}|[©]\s?)$"
_YEAR_BEFORE = re.compile(_YEAR_WORDS, re.IGNORECASE | re.ASCII)
_OLD_YEAR_BEFORE = re.compile(
    r"\b(?:it was|it is|it's|in|since|until|till|year|circa|born|died|ca\.|c\.|(?:battle|siege|conquest|treaty|council|events|"
    r"crusade|war|revolt|year|summer|spring|autumn|winter|plague|fall) of)\s$",
    re.IGNORECASE | re.ASCII,
)
_COUNT_BEFORE = re.compile(
    r"\b(?:sum|total|product|average|square|root|population|altitude|height|length|capacity|score|rating) of\s$",
    re.IGNORECASE | re.ASCII,
)
_REIGN = re.compile(rf"\b(?:{alternatives(word_list('reign'))}|years?\b)", re.IGNORECASE | re.ASCII)
_SPAN = re.compile(
    r"\b(?:from|between|about|around|circa|c\.)\s(?:about\s|around\s)?1?\d{3}\s(?:to|until|till|and)\s(?:about\s|around\s)?1?\d{3}(?!,?\d)",
    re.ASCII,
)
_DATED_BEFORE = re.compile(r"(?:日期|出生于?|生日|\b(?:date|dated|born|expires|DOB))[:为是]?\s?$", re.ASCII)
_UNIT_AFTER = re.compile(rf"\s(?:{alternatives(list(UNITS))}){EDGE}", re.ASCII)


def date_words(years: str, month: int, day: int | None, language: Language) -> str:
    """Returns the words of a date: May first, twenty twenty four; 二零二四年五月一日. `years` may be empty."""
    if language == "zh":
        spoken = f"{year(years, 'zh')}年" if years else ""
        return f"{spoken}{integer(str(month), 'zh')}月" + (f"{integer(str(day), 'zh')}日" if day else "")
    spoken = MONTHS[month - 1] + (f" {ordinal(str(day))}" if day else "")
    return f"{spoken}{', ' if day else ' '}{year(years, 'en')}" if years else spoken


def time_words(hours: int, minutes: int, seconds: int | None, half: str, language: Language) -> str:
    """Returns the words of a time: ten thirty, three oh five p m; 上午十点三十分."""
    if language == "zh":
        spoken = {"a": "上午", "p": "下午", "": ""}[half] + (f"{'两' if hours == 2 else integer(str(hours), 'zh')}点")
        if minutes or seconds:
            spoken += f"{'零' if 0 < minutes < 10 else ''}{integer(str(minutes), 'zh')}分"
        return spoken + (f"{integer(str(seconds), 'zh')}秒" if seconds else "")
    if hours == 0 and not minutes and not half:
        spoken = "midnight"
    elif not minutes and half:
        spoken = english(hours)
    elif not minutes:
        spoken = f"{english(hours)} o clock" if hours <= 12 else f"{english(hours)} hundred"
    else:
        spoken = f"{english(hours)} {f'oh {english(minutes)}' if minutes < 10 else english(minutes)}"
    if seconds:
        spoken += f" and {english(seconds)} second{'s' if seconds > 1 else ''}"
    return f"{spoken} {half} m" if half else spoken


def _ymd(match: Match, language: Language) -> Outcome:
    return date_words(match["year"], int(match["month"]), int(match["day"]), language)


def _ym(match: Match, language: Language) -> Outcome:
    return date_words(match["year"], int(match["month"]), None, language)


def _ym_dotted(match: Match, language: Language) -> Outcome:
    """有效期至2026.05."""
    return _ym(match, language) if language == "zh" else None


def _compact(match: Match, language: Language) -> Outcome:
    """20240315, behind a word that says it is a date."""
    return _ymd(match, language) if _DATED_BEFORE.search(before(match, 12)) else None


def _dmy(match: Match, language: Language) -> Outcome:
    first, second = int(match["first"]), int(match["second"])
    month, day = (second, first) if first > 12 or match["mark"] == "." else (first, second)
    return date_words(match["year"], month, day, language) if 1 <= month <= 12 and 1 <= day <= 31 else None


def _day_month(match: Match, language: Language) -> Outcome:
    month = MONTH_NUMBERS[match["name"].lower()]
    if language == "zh":
        return date_words(match["year"] or "", month, int(match["day"]), "zh")
    article = "" if re.search(r"\bthe\s$", before(match, 5), re.IGNORECASE | re.ASCII) else "the "
    spoken = f"{article}{ordinal(str(int(match['day'])))} of {MONTHS[month - 1]}"
    return f"{spoken}, {year(match['year'], 'en')}" if match["year"] else spoken


def _month_day(match: Match, language: Language) -> Outcome:
    return date_words(match["year"] or "", MONTH_NUMBERS[match["name"].lower()], int(match["day"]), language)


def _zh_year(match: Match, language: Language) -> Outcome:
    digits = match["year"]
    if digits.endswith("00") and (_ABOUT.search(before(match, 4)) or _LONG_AFTER.match(match.string, match.end())):
        return None
    return f"{spell(digits, 'zh')}"


def _year_range(match: Match, language: Language) -> Outcome:
    first, last = match["first"], match["last"]
    if len(last) == 4 and int(last) <= int(first):
        return None
    if len(last) == 2 and int(last) <= int(first[2:]):
        return None
    words = "到" if language == "zh" else " to "
    spoken_last = year(last, language) if len(last) == 4 or language == "zh" else integer(last, "en").replace("zero", "oh")
    return f"{year(first, language)}{words}{spoken_last}"


def _decade(match: Match, language: Language) -> Outcome:
    digits = match["decade"]
    if language == "zh" and match[0][0] == "'":
        return None  # a quotation mark
    if language == "zh":
        return f"{spell(digits, 'zh')}年代" if len(digits) == 4 else f"{integer(digits, 'zh')}年代"
    tens = "" if digits.endswith("00") else english(int(digits[-2:]))
    plural = f"{tens[:-1]}ies" if tens.endswith("y") else f"{tens}s"
    if len(digits) == 2:
        return plural
    if not tens:
        return f"{english(int(digits))}s" if digits[1] == "0" else f"{english(int(digits[:2]))} hundreds"
    return f"{english(int(digits[:2]))} {plural}"


def _noughties(match: Match, language: Language) -> Outcome:
    """The '00s and '10s: the first decades of this century."""
    return ("two thousands" if match["short"] == "00" else "twenty tens") if language == "en" else None


def _century(match: Match, language: Language) -> Outcome:
    """The 300s."""
    return f"{english(int(match['century']))}s" if language == "en" else None


def _clock(match: Match, language: Language) -> Outcome:
    hours, minutes = int(match["hours"]), int(match["minutes"])
    if hours > 24 or minutes > 59 or (not match["half"] and _SCORE_BEFORE.search(before(match, 36))):
        return None
    half = (match["half"] or "").lower()
    if half and hours > 12:
        half = ""
    return time_words(hours, minutes, int(match["seconds"] or 0), half, language)


def _watch(match: Match, language: Language) -> Outcome:
    """0930 hours, 1430h."""
    hours, minutes = integer(match["hours"].lstrip("0") or "0", "en"), match["minutes"]
    spoken = f"{hours} {'hundred' if minutes == '00' else english(int(minutes))}"
    return f"{spoken} {'hours' if match[0].endswith('h') else ''}" if language == "en" else None


def _hour(match: Match, language: Language) -> Outcome:
    hours = int(match["hours"])
    return time_words(hours, 0, None, match["half"].lower(), language) if 1 <= hours <= 12 else None


def _zh_month_day(match: Match, language: Language) -> Outcome:
    # 2月 and 2日 keep 二: a date is no count.
    return integer(str(int(match["number"])), "zh")


def _english_year(match: Match, language: Language) -> Outcome:
    if language != "en":  # in 2024 between Chinese words
        return spell(match["year"], "zh") if match["year"] >= "1900" and _PREPOSITION_BEFORE.search(before(match, 8)) else None
    is_year = "1900" <= match["year"] <= "2099" or _YEAR_BEFORE.search(before(match, 16))
    is_plural = COUNTED_AFTER.match(match.string, match.end()) and not _YEARLY_AFTER.match(match.string, match.end())
    is_count = is_plural or _UNIT_AFTER.match(match.string, match.end()) or _COUNT_BEFORE.search(before(match, 16))
    return year(match["year"], "en") if is_year and not is_count else None


_TITLE_BEFORE = re.compile(r"\b(?!Total|Reviews|Comments|Votes)[A-Z][A-Za-z'-]*[.,\"'*_]{0,2} \($", re.ASCII)


def _old_year(match: Match, language: Language) -> Outcome:
    """1066, behind words that only a year follows."""
    context = before(match, 16)
    begins = not re.search(r"[A-Za-z0-9]\s?$", context, re.ASCII)
    is_year = _OLD_YEAR_BEFORE.search(context) or (begins and _HISTORY_AFTER.match(match.string, match.end()))
    around = f"{context}{match[0]}{after(match, 18)}"
    is_year = is_year or (
        match["year"] >= "1400" and _ARTICLE_BEFORE.search(context) and _NOUN_AFTER.match(match.string, match.end())
    )
    is_year = is_year or (match["year"] >= "1500" and _TITLE_BEFORE.search(context) and re.match(r"[),]", after(match, 1)))
    is_year = is_year or (_SPAN.search(around) and _REIGN.search(before(match, 60)))
    is_year = language == "en" and len(match["year"]) > (3 if begins else 2) and is_year
    is_count = COUNTED_AFTER.match(match.string, match.end()) or _UNIT_AFTER.match(match.string, match.end())
    return year(match["year"], "en") if is_year and not is_count else None


def _two_years(match: Match, language: Language) -> Outcome:
    """The 2023/24 season."""
    if int(match["last"]) != (int(match["year"]) + 1) % 100:
        return None
    if int(match["last"]) <= 12 and not _SEASON_AFTER.match(match.string, match.end()):
        return None  # a month
    if language == "zh":
        return f"{year(match['year'], 'zh')}到{year(match['last'], 'zh')}"
    return f"{year(match['year'], 'en')} {integer(match['last'], 'en')}"


def _class_of(match: Match, language: Language) -> Outcome:
    """The class of '98."""
    digits = match["year"]
    if language == "zh":
        return spell(digits, "zh")
    return f"oh {integer(digits[1], 'en')}" if digits[0] == "0" else integer(digits, "en")


def _era(match: Match, language: Language) -> Outcome:
    era = {"AD": "A D", "BC": "B C", "BCE": "B C E", "CE": "C E"}[match["era"]]
    if language == "zh":
        return f"{'公元前' if 'B' in match['era'] else '公元'}{integer(match['year'], 'zh')}年"
    return f"{year(match['year'], 'en') if len(match['year']) == 4 else integer(match['year'], 'en')} {era}"


def _short_year(match: Match, language: Language) -> Outcome:
    return f"{spell(match['year'], 'zh')}"


def _zh_bare_year(match: Match, language: Language) -> Outcome:
    """(1998), 从1998到2005, 2008北京奥运会, 618-907年."""
    return "到".join(spell(digits, "zh") for digits in re.findall(r"\d+", match[0])) if language == "zh" else None


def _sure(match: Match, language: Language) -> Outcome:
    return None if after(match, 1).isdigit() or _NUMBER_BEFORE.search(before(match, 8)) else _dmy(match, language)


_NUMBER_BEFORE = re.compile(r"(?:[件货证号提]码|单号|编号|\b(?:code|number|no\.))[:为是 ]{0,2}$", re.IGNORECASE)
_YEARLY_AFTER = re.compile(rf"\s(?:{alternatives(word_list('yearly'))})\b")
_SEASON_AFTER = re.compile(r"\s?(?:seasons?\b|campaigns?\b|fiscal|academic|school|financial|tax|赛季|学年|财年|年度)")
_ARTICLE_BEFORE = re.compile(r"\b(?:the|a|an|this|that)\s$", re.IGNORECASE | re.ASCII)
_NOUN_AFTER = re.compile(r"\s(?!(?:more|or|and|to|in|on|at|of|for|from|by|with|that|who|which)\b)[A-Za-z]{3,}", re.ASCII)
_HISTORY_AFTER = re.compile(r"\s(?:was|saw|marked|brought|is)\b", re.ASCII)
_PREPOSITION_BEFORE = re.compile(r"\b(?:in|since|by|until|of|from|before|after)\s$", re.IGNORECASE | re.ASCII)
_PLACE = "[\\u4e00-\\u9fff]{2}"
_FEAST = "奥运|冬奥|世界杯|欧洲杯|亚运|世博|春晚|高考|中考|国考|考研|春节|国庆|双十一|新年|跨年|年度|赛季|财年"
_END = r"(?![\d])(?!\.\d)"
RULES: list[Rule] = [
    rule("0", rf"{_YEAR}(?P<mark>[-/.]){_MONTH}(?P=mark){_DAY}(?!\d|(?P=mark)\d)(?:[T ](?=\d\d:\d\d))?", _ymd, "dates"),
    rule("0", rf"(?P<first>\d{{1,2}})(?P<mark>[-/.])(?P<second>\d{{1,2}})(?P=mark){_YEAR}(?!\d|(?P=mark)\d)", _sure, "dates"),
    rule("0", rf"{_YEAR}/(?P<last>\d\d)(?![\d/])", _two_years, "dates"),
    rule(
        "'",
        r"'(?P<year>\d\d)(?![\dA-Za-z'\"])(?=年(?!代)|(?<=of '..)|(?<=in '..)|(?<=er '..)|(?<=ng '..)|(?<=ce '..)|(?<=ll '..)|"
        r"\s[A-Z][a-z]{2}(?![^'\n]{0,40}'))",
        _class_of,
        "dates",
    ),
    rule("0", rf"{_YEAR}-(?P<month>1[0-2]|0[1-9])(?![\d-])", _ym, "dates"),
    rule("0", rf"{_YEAR}/{_MONTH}(?![\d/])", _ym, "dates"),
    rule("0", rf"(?<![\d/.])(?P<month>1[0-2]|0[1-9])/{_YEAR}(?![\d/])", _ym, "dates"),
    rule("0", rf"(?:(?<=[至自从于到期:])|(?<=[:] )){_YEAR}\.(?P<month>1[0-2]|0[1-9])(?![\d.])", _ym_dotted, "dates"),
    rule("0", rf"(?<!\d){_YEAR}(?P<month>1[0-2]|0[1-9])(?P<day>3[01]|[12]\d|0[1-9])(?!\d)", _compact, "dates"),
    rule("0", r"(?P<first>1[1-9]\d\d|20\d\d)\s?[-–—~]\s?(?P<last>1[1-9]\d\d|20\d\d|\d\d)(?![\d-]|\.\d)", _year_range, "dates"),
    rule("0", r"(?P<year>\d{4}|\d{2})(?=\s?年\s?(?:1[0-2]|0?[1-9])\s?月)", _short_year, "dates"),
    rule("0", r"(?P<year>[12]\d{3})(?=\s?年(?!级))", _zh_year, "dates"),
    rule(
        "0",
        r"(?:(?<=\()|(?<=从)|(?<=从(?:19|20)\d\d[到至]))(?P<year>(?:19|20)\d\d)(?=\)|[到至](?:19|20)\d\d(?!\d)|[，。,.]|$)|"
        r"(?:(?<=\()[1-9]\d\d|(?<!\d)[2-9]\d[1-9])[-–~至到]\d{3,4}(?=年)|(?<!\d)\d\d[-–~/]\d\d(?=学年|赛季)|"
        rf"(?<!\d)(?P<event>(?:19|20)\d\d)(?=(?:{_PLACE})?(?:{_FEAST}))",
        _zh_bare_year,
        "dates",
    ),
    rule("0", r"(?P<number>1[0-2]|0?[1-9])(?=\s?月(?!球|亮))", _zh_month_day, "dates"),
    rule("0", rf"(?P<number>3[01]|[12]\d|0?[1-9])(?=\s?(?:日|号)(?!{'线|楼|院|机|店|门'}))", _zh_month_day, "dates"),
    rule("0", rf"{_DAY}(?:st|nd|rd|th)?\s(?:of\s)?(?P<name>{_MONTH_NAMES})\b\.?(?:,?\s{_YEAR}{_END})?", _day_month, "dates"),
    rule(
        "a",
        rf"(?P<name>{_MONTH_NAMES})\b\.?\s{_DAY}(?:st|nd|rd|th)?(?![\d%])(?![.:]\d)(?:,?\s{_YEAR}{_END})?",
        _month_day,
        "dates",
    ),
    rule(
        "0",
        rf"(?P<hours>\d{{1,2}}):(?P<minutes>\d\d)(?::(?P<seconds>[0-5]\d)(?:\.\d{{1,6}})?)?(?!:?\d|,\d{{3}}(?!\d))(?:{_HALF}|Z\b)?",
        _clock,
        "dates",
    ),
    rule("0", rf"(?P<hours>\d{{1,2}}){_HALF}(?![A-Za-z])", _hour, "dates"),
    rule(
        "0",
        r"(?<![\d.,])(?P<hours>0\d|1\d|2[0-3])(?P<minutes>[0-5]\d)(?:(?<=0\d\d\d) (?=hours|hrs)|h(?![A-Za-z]))",
        _watch,
        "dates",
    ),
    rule("0'", r"'?(?P<decade>(?:1[1-9]|20)\d0|[2-9]0)'?s(?![A-Za-z])", _decade, "dates"),
    rule("0'", r"(?:'|(?<=the )|(?<=mid-)|(?<=late )|(?<=early ))(?P<short>[01]0)'?s(?![A-Za-z])", _noughties, "dates"),
    rule("0", r"(?:(?<=the )|(?<=mid-)|(?<=late )|(?<=early ))(?P<century>[1-9]00)s(?![A-Za-z])", _century, "dates"),
    rule("0", r"(?P<year>\d{1,4})\s?(?P<era>AD|BCE|BC|CE)\b", _era, "dates"),
    rule(
        "0",
        r"(?P<year>1[0-8]\d\d|[3-9]\d\d)(?![\d%]|[:,.]\d|\s?[-–~]\s?\d|[A-Za-z]|\s?(?:million|billion|thousand|percent)\b)",
        _old_year,
        "dates",
    ),
    rule(
        "0",
        rf"{_YEAR}(?!\s?[x×]\s?\d|[\d%]|[:,.]\d|\s?[-–~]\s?\d|[A-Za-z]|\s(?:hundred|thousand|million|billion|trillion|percent)\b)",
        _english_year,
        "dates",
    ),
]
