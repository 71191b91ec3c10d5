"""Quantities: reads ranges, fractions, ratios, ordinals, powers, Roman numerals, operators and plain numbers.

In:    matches of written quantities
Out:   words
Never: money, measures, dates, telephone numbers, codes
"""

import re

from pipeline.text.normalize.numbers import english, fraction, integer, number, ordinal, pairs, plural_of, roman, spell, year
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import COUNTED_AFTER, EDGE, NUMBER, TO
from pipeline.text.normalize.rule import Drop, Match, Outcome, Rule, after, alternatives, before, numeric, rule
from pipeline.text.normalize.tables import row_table
from pipeline.text.normalize.words import MEASURES, NUMBERED, REGNAL, SCALES, SIGNS, STROKES

_MEASURE = re.compile(rf" ?(?:{alternatives(MEASURES)}|{STROKES})")
_VULGAR = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_VULGAR_PARTS = row_table("vulgar")
_RAISED_BEFORE = re.compile(r"(?:[)\]α-ωΑ-Ω]|(?<![A-Za-z])(?:[A-Za-z]{2}|sin|cos|tan|log))$")
_NOTED = re.compile(
    r"(?:[a-z]{3}(?<!sin)(?<!cos)(?<!tan)(?<!log)(?<!mol)(?<!rad)|[a-z\u4e00-\u9fff]?[.,;:!?。，；：！？、\"']|[\u4e00-\u9fff](?<!米))$"
)
"""what stands before the mark of a note"""
_NUMBERED_LIST = re.compile(
    rf"\b(?i:{alternatives(NUMBERED)})s?\s[IVXLivxl]{{1,7}}(?:(?:,| and| or| to|, and| &|[-–])\s?[IVXLivxl]{{1,7}}){{0,8}}"
    r"(?:,| and| or| to|, and| &|[-–])\s?$",
    re.ASCII,
)
_PART_BEFORE = re.compile(r"\b(?:Table|Figure|Fig\.|Exhibit|Problem|Exercise|Chart|Equation)\s$")
_TEAM_BEFORE = re.compile(r"[A-Za-z] $|(?![图表号第版章节页])[\u4e00-\u9fff] ?$")
_SMALL_WORD_BEFORE = re.compile(r"\b(?:to|of|if|is|are|was|were|be|by|at|with|for|from|keep|stay|and|or|when|only|been)\s$")
_SIZE_BEFORE = re.compile(r"(?<![A-Za-z0-9])(?:\d?X{0,3}[SML]|[2-6]XL)$", re.ASCII)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_ROMAN_SIGNS = dict(zip("ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩⅪⅫ", range(1, 13), strict=True)) | dict(zip("ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹ", range(1, 11), strict=True))
_CODE_BEFORE = re.compile(
    r"\b(?:ID|PIN|code|zip|password|room|flight|extension|ext\.?|dial|call|agent|serial|passcode|OTP)(?:[:#,\s]|number|is){0,3}\s?$",
    re.IGNORECASE | re.ASCII,
)
_RUN_BEFORE = re.compile(
    r"\b(?:an?|first|his|her|my|your|our|charity|fun|run|runs|running|ran|finished|race|raced)\s$", re.IGNORECASE
)
_RATED = re.compile(r"\b(?:scored?|rated?|rating|got|graded?)\b[^\d]{0,6}$", re.IGNORECASE | re.ASCII)
_SEVERAL_NAMED = re.compile(r"\b(?:Windows|iOS|Android|Office|Python|Java|Lines?|Rooms?|Grades?|Gates?|Chapters?|Classe?s?)\s$")
_ODDS = re.compile(r"\b(?:odds|horse|favou?rite|bets?|bookmakers?|bookies|outsider|punters?|wager)\b", re.IGNORECASE | re.ASCII)
_MARK_AFTER = re.compile(r"\s?(?:•|stars?\b|would\b|points?\b|rating\b|on (?:Amazon|Google|Yelp))", re.ASCII)
_CLAUSE_END = re.compile(r"\s?(?:[.,;:!?)\n]|$)")
_TERM_BEFORE = re.compile(r"[=+×*/-]\s?$")
_SIDE_BEFORE = re.compile(r"[A-Z][a-z]{2,} \d{1,3} $", re.ASCII)
_SIDE_AFTER = re.compile(r" \d{1,3} [A-Z][a-z]{2,}", re.ASCII)
_SEVERAL_BEFORE = re.compile(
    r"(?:\b(?:sizes?|two|three|four|five|six|seven|eight|nine|ten|old|some|all|the|those|these)\s|\d\s?[x×]\s?)$"
)
_SPAN_BEFORE = re.compile(r"\b(?:for|after|within|under|of|in|took|takes|than|about|every|at)\s$")
_ADDRESS_AFTER = re.compile(r"\s?年级|\s?[栋幢座楼]\s?[\dA-Za-z]")


def _range(match: Match, language: Language) -> Outcome:
    low, high = match["low"], match["high"]
    if re.match(r"\s?=\s?-?\d", match.string[match.end() : match.end() + 4]):
        return None  # 10-3=7
    if language == "en" and _PART_BEFORE.search(before(match, 12)) and len(low + high) < 5:
        return f"{number(low, 'en')} dash {number(high, 'en')}"
    values = [float(side.replace(",", "")) for side in (low, high)]
    if language == "en" and values[0] > values[1] and " " not in match[0] and max(len(low), len(high)) <= 3 and low[0] != "0":
        return f"{number(low, 'en')} to {number(high, 'en')}"  # a score
    if language == "zh" and values[0] > values[1] and {len(low), len(high)} <= {2, 3} and _TEAM_BEFORE.search(before(match, 4)):
        return f"{number(low, 'zh')}比{number(high, 'zh')}"
    if values[0] >= values[1] or (low[0] == "0" and len(low) > 1 and "." not in low):
        return None
    if (
        (len(low), len(high)) in ((3, 4), (3, 8), (4, 8), (4, 7))
        and "." not in low
        and not _MEASURE.match(match.string, match.end())
    ):
        return None  # a telephone number
    if language == "en":
        return f"{number(low, 'en')} to {number(high, 'en')}"
    return f"{number(low, 'zh')}到{_before_measure(high, match)}"


def _before_measure(written: str, match: Match) -> str:
    """Returns a Chinese number; 2 is 两 before a measure word."""
    if written != "2" or before(match, 1).endswith("第") or _ADDRESS_AFTER.match(match.string, match.end()):
        return number(written, "zh")
    return "两" if _MEASURE.match(match.string, match.end()) else "二"


def _fraction(match: Match, language: Language) -> Outcome:
    whole, above, below = match["whole"], match["above"], match["below"]
    if int(below) == 0 or (int(below) == int(above) + 1 > 3 and _SEVERAL_NAMED.search(before(match, 12))):
        return None
    if not whole and language == "zh" and int(above) > int(below) >= 10:
        return f"{integer(above, 'zh')}比{integer(below, 'zh')}"  # a blood pressure
    if (
        not whole
        and language == "en"
        and int(above) > int(below)
        and (below == "1" or _ODDS.search(before(match, 40) + after(match, 16)))
    ):
        return f"{integer(above, 'en')} to {integer(below, 'en')}"
    is_alone = below == "10" and _CLAUSE_END.match(match.string, match.end()) and not _TERM_BEFORE.search(before(match, 3))
    is_mark = (
        (above == below and below in ("5", "10", "100"))
        or (is_alone and int(above) < 10)
        or _MARK_AFTER.match(match.string, match.end())
    )
    if not whole and language == "en" and (is_mark or _RATED.search(before(match, 16))):
        return f"{integer(above, 'en')} out of {integer(below, 'en')}"
    if not whole:
        return fraction(above, below, language)
    if language == "zh":
        return f"{integer(whole, 'zh')}又{fraction(above, below, 'zh')}"
    return f"{integer(whole, 'en')} and {_a(fraction(above, below, 'en'))}"


def _a(spoken: str) -> str:
    return f"a {spoken[4:]}" if spoken in ("one half", "one quarter", "one third") else spoken


def _vulgar(match: Match, language: Language) -> Outcome:
    above, below = _VULGAR_PARTS[match["sign"]]
    whole = match["whole"]
    if language == "zh":
        return (f"{integer(whole, 'zh')}又" if whole else "") + fraction(above, below, "zh")
    spoken = fraction(above, below, "en")
    return f"{integer(whole, 'en')} and {_a(spoken)}" if whole else spoken


def _ratio(match: Match, language: Language) -> Outcome:
    sides = [number(side, language) for side in match[0].replace(" ", "").split(":")]
    return ("比" if language == "zh" else " to ").join(sides)


def _ordinal(match: Match, language: Language) -> Outcome:
    digits = match["number"].replace(",", "")
    return f"第{integer(digits, 'zh')}" if language == "zh" else ordinal(digits)


def _numbered(match: Match, language: Language) -> Outcome:
    digits = match["number"]
    if language == "zh":
        return f"第{integer(digits, 'zh')}"
    return f"number {number(digits, 'en') if len(digits) < 5 else spell(digits, 'en')}"


def _hash(match: Match, language: Language) -> Outcome:
    digits = match["number"]
    return f"{integer(digits, 'zh')}号" if language == "zh" else f"number {number(digits, 'en')}"


def _scaled(match: Match, language: Language) -> Outcome:
    is_name = match[0] in ("2K", "4K", "5K", "8K", "3M")
    if match["scale"] in "kK" and len(match["number"]) < 4 and _RUN_BEFORE.search(before(match, 20)) and language == "en":
        return None if COUNTED_AFTER.match(match.string, match.end()) else f"{number(match['number'], 'en')} K"
    return f"{number(match['number'], 'en')} {SCALES[match['scale']]}" if language == "en" and not is_name else None


def _scaled_range(match: Match, language: Language) -> Outcome:
    """30-40k."""
    if language == "zh" or float(match["low"].replace(",", "")) >= float(match["high"].replace(",", "")):
        return None
    return f"{number(match['low'], 'en')} to {number(match['high'], 'en')} {SCALES[match['scale']]}"


def _power(match: Match, language: Language) -> Outcome:
    base, exponent = match["base"], (match["raised"] or match["after"]).translate(_SUPERSCRIPTS)
    minus = exponent.startswith(("-", "⁻"))
    exponent = exponent.lstrip("-⁻")
    spoken = number(base, language) if base[0].isdigit() else base
    if language == "zh":
        if not minus and exponent in ("2", "3") and not base[0].isdigit():
            return f"{spoken}的{'平方' if exponent == '2' else '立方'}"
        return f"{spoken}的{'负' if minus else ''}{integer(exponent, 'zh')}次方"
    if not minus and exponent in ("2", "3"):
        return f"{spoken} {'squared' if exponent == '2' else 'cubed'}"
    return f"{spoken} to the power of {'minus ' if minus else ''}{integer(exponent, 'en')}"


def _superscript(match: Match, language: Language) -> Outcome:
    if _NOTED.search(before(match, 4)):
        return Drop("markup")
    if match[0] in ("²", "³") and _RAISED_BEFORE.search(before(match, 4)):
        return {"²": ("squared", "的平方"), "³": ("cubed", "的立方")}[match[0]][language == "zh"]
    return integer(match[0].translate(_SUPERSCRIPTS), language)


def _roman_sign(match: Match, language: Language) -> Outcome:
    return integer(str(_ROMAN_SIGNS[match[0]]), language)


def _roman_numbered(match: Match, language: Language) -> Outcome:
    value = roman(match["roman"].upper())
    return f"{match['word']} {english(value)}" if value and value < 100 else None


def _roman_listed(match: Match, language: Language) -> Outcome:
    """The II and III of Volumes I, II and III."""
    value = roman(match["roman"].upper())
    return english(value) if value and value < 100 and _NUMBERED_LIST.search(before(match, 60)) else None


def _roman_ordinal(match: Match, language: Language) -> Outcome:
    """The XXI century."""
    value = roman(match["roman"])
    return ordinal(str(value)) if value and language == "en" else None


def _roman_to(match: Match, language: Language) -> Outcome:
    """The dash of Parts III-V."""
    is_numbered = re.search(rf"\b(?i:{alternatives(NUMBERED)})s?\s[IVXL]{{1,7}}$", before(match, 24))
    return _to(match, language) if is_numbered else None


def _roman_title(match: Match, language: Language) -> Outcome:
    """The II of 《战狼II》: a number behind a Chinese name; a letter alone only where the name ends."""
    written = match["roman"]
    value = roman(written)
    is_title = len(written) > 1 and written not in ("VI", "IV", "IX", "XX", "XI", "XXX")
    is_number = is_title or match["end"] or match["kind"] or before(match, 1) == "第"
    return integer(str(value), "zh") if value and is_number else None


def _roman_monarch(match: Match, language: Language) -> Outcome:
    value = roman(match["roman"])
    if not value or value > 30:
        return None
    own = "s" if match["own"] else ""
    return (
        f"{match['name']} the {ordinal(str(value))}{own}"
        if language == "en"
        else f"{match['name']}{integer(str(value), 'zh')}世"
    )


def _to(match: Match, language: Language) -> Outcome:
    return "到" if language == "zh" else "to"


def _size_to(match: Match, language: Language) -> Outcome:
    """The dash of XS-XXL."""
    return _to(match, language) if _SIZE_BEFORE.search(before(match, 6)) else None


def _more(match: Match, language: Language) -> Outcome:
    """The + of 10+人, and of iOS 17+, a version."""
    return "以上" if re.search(r"[A-Za-z]\s?\d{1,4}(?:\.\d{1,3}){0,2}$", before(match, 16), re.ASCII) else "多"


def _scientific(match: Match, language: Language) -> Outcome:
    minus = match["exponent"].startswith("-")
    exponent = match["exponent"].lstrip("+-")
    if language == "zh":
        return f"{number(match['number'], 'zh')}乘以十的{'负' if minus else ''}{integer(exponent, 'zh')}次方"
    return f"{number(match['number'], 'en')} times ten to the power of {'minus ' if minus else ''}{integer(exponent, 'en')}"


def _minus(match: Match, language: Language) -> Outcome:
    if _SIDE_BEFORE.search(before(match, 16)) and _SIDE_AFTER.match(match.string, match.end()):
        return {"zh": "比", "en": "to"}[language]  # Leeds 3 - 1 Fulham
    return {"zh": "减", "en": "minus"}[language] if match[0] == "-" else None


def _algebra(match: Match, language: Language) -> Outcome:
    """The minus of x³ - 2x and y=2x-3: between terms with a letter or a power."""
    context = before(match, 24)
    term = re.search(r"(?:[²³⁰¹⁴⁵⁶⁷⁸⁹)]|\^\d|\d[abkntxyz]|(?<![A-Za-z])[a-z])\s?$", context, re.ASCII)
    around = re.split("[.。,，]", context)[-1] + re.split("[.。,，]", match.string[match.end() : match.end() + 24])[0]
    signs = r"[=+²³^)<>≤≥]" if term and term[0].endswith(" ") else r"[=+≤≥]"
    is_formula = re.search(signs, around) or re.search(r"(?<![A-Za-z])[nxyz]$", context, re.ASCII)
    return _minus(match, language) if term and is_formula else None


def _less(match: Match, language: Language) -> Outcome:
    signs = {"<": ("is less than", "小于"), ">": ("is greater than", "大于")}
    signs |= {"<=": ("is at most", "小于等于"), ">=": ("is at least", "大于等于"), "!=": ("is not equal to", "不等于")}
    signs |= {"==": ("equals", "等于"), "->": ("to", "到"), "=>": ("to", "到")}
    signs |= {sign: (SIGNS[sign][0], SIGNS[sign][1]) for sign in "≤≥≈"}
    spoken = signs[match["sign"]][language == "zh"]
    if match["sign"] in "<>≤≥≈" and _SMALL_WORD_BEFORE.search(before(match, 12)):
        return spoken.removeprefix("is ")  # cut it to < 2%
    is_value = after(match, 1) == " " or re.search(r"(?:[\d)]|(?<![A-Za-z])[A-Za-z])\s?$", before(match, 4), re.ASCII)
    return spoken if is_value else spoken.removeprefix("is ")  # ages >65


def _plain(match: Match, language: Language) -> Outcome:
    written = match[0].replace(" ", ",")
    if language == "en":
        return _plain_english(match, written)
    return _before_measure(written, match)


def _plain_english(match: Match, written: str) -> str:
    is_code = "." not in written and "," not in written
    if is_code and len(written) >= 3 and _CODE_BEFORE.search(before(match, 16)):
        return pairs(written) if len(written) == 3 and written[1:] != "00" and written[0] != "0" else spell(written, "en")
    return number(written, "en")


def _own(match: Match, language: Language) -> Outcome:
    """The 11's of Apollo 11's crew."""
    digits = match["number"]
    words = year(digits, "en") if len(digits) == 4 and "1100" <= digits <= "2099" else integer(digits, "en")
    return f"{words}s" if language == "en" else None


def _powers_of_ten(match: Match, language: Language) -> Outcome:
    """100s of people."""
    words = english(int(match["number"])).removeprefix("one ")
    return f"{words}s" if language == "en" else None


def _several(match: Match, language: Language) -> Outcome:
    """Old 486s, size 8s, 3x5s; 8s alone are seconds."""
    digits, context = match["number"], before(match, 16)
    is_several = _SEVERAL_BEFORE.search(context) or (
        len(digits) > 2 and digits[-1] not in "05" and not _SPAN_BEFORE.search(context)
    )
    if language != "en" or not is_several:
        return None
    return plural_of(pairs(digits) if len(digits) > 2 else integer(digits, "en"))


def up_to(match: Match, language: Language) -> Outcome:
    """Returns the 3 of 3-3½, the 100 of 100-200 USD, and the dash."""
    return f"{number(match['low'], language)}{'到' if language == 'zh' else ' to'}"


def _stars(match: Match, language: Language) -> Outcome:
    """4.5★, ★★★★☆: a mark."""
    count = match[0].count("★") if len(match[0]) > 1 else 0
    if count and re.search(r"\d", before(match, 6) + after(match, 6)):
        return None  # a mark that is written in digits as well
    if count:
        return f"{integer(str(count), language)}{'星' if language == 'zh' else ' star' if count == 1 else ' stars'}"
    return "星" if language == "zh" else "stars"


def _point(match: Match, language: Language) -> Outcome:
    return f"零点{spell(match['places'], 'zh')}" if language == "zh" else f"point {spell(match['places'], 'en')}"


_COUNTED = r"(?=\s(?:people|users|views|downloads|streams|parameters|tokens|years|plays|rows)\b)"
FIRST: list[Rule] = [  # before ranges
    numeric("0", r"(?<![\d.,])(?P<number>10{1,6})s(?=\sof\b)", _powers_of_ten),
    numeric("0", r"(?<![\d.,])(?!\d{0,2}[2-9]0s|\d?00s)(?P<number>\d{1,4})s(?![A-Za-z0-9'])", _several),
    numeric("-", r"-(?=\s?(?:\d{0,9}[a-zA-Z](?![A-Za-z])|\d|\())(?<![A-Za-z]{2}-)", _algebra),
]
RULES: list[Rule] = [
    numeric("-–", r"(?<=[SML])\s?[-–]\s?(?=\d?X{0,3}[SML](?![A-Za-z0-9]))", _size_to),
    numeric("-–", r"[-–](?=[IVXL]{1,7}(?![A-Za-z0-9]))", _roman_to),
    numeric("0", rf"(?P<low>(?<![\d.,-]){NUMBER}){TO}(?P<high>{NUMBER})\s?(?P<scale>bn|tn|[kKM]){EDGE}", _scaled_range),
    numeric("0", r"24/7(?![\d/])", ("twenty four seven", "二十四小时全天候")),
    numeric(
        "0", r"(?:(?P<whole>\d{1,9})\s)?(?P<above>\d{1,6})/(?P<below>\d{1,6})(?:(?<=3)rds?|ths?|nds?)?(?![\d/]|\.\d)", _fraction
    ),
    numeric("0½", rf"(?P<whole>\d{{1,9}})?\s?(?P<sign>[{_VULGAR}])", _vulgar),
    numeric("0", r"\d{1,6}(?:\.\d{1,6})?(?:(?::|\s:\s)(?:\d{1,3}(?:,\d{3}){1,3}|\d{1,9})(?:\.\d{1,6})?){1,3}(?!:?\d)", _ratio),
    numeric("0", r"(?P<number>\d{1,3}(?:,\d{3}){1,4}|\d{1,9})(?:st|nd|rd|th|ST|ND|RD|TH)(?![A-Za-z])", _ordinal),
    numeric(
        "0a", r"(?P<base>\d{1,9}|[A-Za-z](?![A-Za-z]))(?:\^(?P<raised>-?\d{1,4})|(?P<after>[-⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,4}))", _power
    ),
    numeric("½", r"[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,4}", _superscript),
    numeric("½", r"[ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩⅪⅫⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹ]", _roman_sign),
    numeric("0", rf"(?P<low>(?<![\d.,-]){NUMBER}){TO}(?P<high>{NUMBER})(?![-\d]|\.\d|:\d)", _range),
    numeric("0", rf"(?P<number>{NUMBER})\s?(?P<scale>bn|tn|[kKM]|B{_COUNTED}){EDGE}", _scaled),
    numeric("0", rf"(?<![\d.,/:-])(?P<low>\d{{1,3}})[-–](?=\d{{0,3}}\s?[{_VULGAR}])", up_to),
    rule("★", r"(?:(?<=\d)|(?<=\d\s))[★☆](?!★)|★{1,5}☆{0,4}(?<=[★☆]{5})(?![★☆])", _stars),
    numeric("a", r"(?:(?:No|no|Nr)\.\s?|NO\.)(?P<number>\d{1,9})(?!\d)", _numbered),
    numeric("#", r"#(?P<number>\d{1,9})(?![\dA-Za-z])", _hash),
    numeric(
        "a",
        rf"(?P<word>(?i:{alternatives(NUMBERED)})s?)\s(?P<roman>[IVXL]{{1,7}}|[ivx]{{1,5}})(?!'?[A-Za-z0-9])",
        _roman_numbered,
    ),
    numeric("a", r"(?<=[\s–-])(?P<roman>[IVXL]{1,7}|[ivx]{1,5})(?!'?[A-Za-z0-9])", _roman_listed),
    numeric(
        "a",
        r"(?:(?<=[\u4e00-\u9fff])|(?<![A-Za-z0-9])(?=[IVX]{1,5}[型类级期]))(?P<roman>[IVX]{1,5})(?=(?P<end>\")|(?P<kind>[章部集卷期代世级类型篇季])|(?P<edge>[，。、,.:!?)\s\u4e00-\u9fff]|$))",
        _roman_title,
    ),
    numeric(
        "a",
        r"(?<![A-Za-z0-9])(?P<roman>[IVX]{1,6})"
        r"(?:(?:st|nd|rd|th)(?![A-Za-z])|(?= (?:[Cc]entur|(?:Winter |Summer )?Olympi|Congress|Corps|Legion|[Dd]ynasty|Army)))",
        _roman_ordinal,
    ),
    numeric("a", rf"(?P<name>{alternatives(REGNAL)})\s(?P<roman>[IVX]{{1,6}})(?P<own>'s)?(?!'?[A-Za-z])", _roman_monarch),
    numeric("+", r"(?<=\d)\+(?=[\u4e00-\u9fff])", (None, _more)),
    numeric(
        "0",
        r"(?!0\d)(?P<number>\d{1,20}(?:\.\d{1,20})?)[eE](?P<exponent>[+-]?\d{1,3})(?![\dA-Za-z]|\.\d|-\d*[A-Za-df-z])",
        _scientific,
    ),
    numeric("~", r"(?<![A-Za-z0-9])~\s?(?=[$€£¥]?\d)", ("about", "约")),
    numeric("-", r"-(?=[$€£¥]?(?:\d|\.\d))(?<![\wα-ωΑ-Ω)\]%.]-)", ("minus", "负")),
    numeric(
        "-–",
        r"(?:(?:(?<=[\d)]\s)|(?<=(?<![A-Za-z])[xyzabn]\s))[-–](?=\s(?:[\d(]|[xyzabn](?![A-Za-z])))|(?<=\d)-(?=\d{1,9}\s?=))",
        _minus,
    ),
    numeric("*", r"(?:(?<=\d)|(?<=\d\s)|(?<=\d[A-Za-z])|(?<=\d[A-Za-z]{2}))\*(?=\s?\d)", ("times", "乘")),
    numeric(
        "<>=!-≤≥≈",
        r"(?P<sign>[≤≥≈](?=\s?[$€£¥]?\d)|<=|>=|!=|==|->|=>|(?<=[\d\w)]\s)[<>](?=\s[\d\w(.-])|(?<=\d)[<>](?=\d)|[<>](?=\s?[$€£¥]?[.-]?\d))",
        _less,
    ),
    numeric(".", r"(?<![\w.])\.(?P<places>\d{1,20})", _point),
]
PLAIN: list[Rule] = [  # behind everything else that begins with a digit
    numeric("0", r"(?<![\d.,])(?P<number>\d{1,4})'s(?![A-Za-z'])", _own),
    numeric(
        "0",
        r"\d{1,3}(?: \d{3}){2,4}(?![\d]| \d)|"
        r"\d{1,3}(?:,\d{3}){1,5}(?!\d)(?:\.\d{1,20})?|\d{1,2}(?:,\d\d){1,4},\d{3}(?!\d)|\d+(?:\.\d{1,400})?",
        _plain,
    ),
    rule("0", r"\d+", lambda match, language: spell(match[0], language)),
]
