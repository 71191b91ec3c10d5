"""Numbers: turns digits into number words, in both languages.

In:    str of ASCII digits, some with signs, commas and dots
Out:   words: Chinese without spaces, English with single spaces and no hyphens
Never: units, contexts, anything but the number itself
"""

import re
from functools import lru_cache

from pipeline.text.normalize.options import Language
from pipeline.text.normalize.tables import word_table

MAX_DIGITS = 15  # a longer integer is a code and is read digit by digit

_ZH_DIGITS = "零一二三四五六七八九"
_EN_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_EN_TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_EN_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_EN_GROUPS = ("", " thousand", " million", " billion", " trillion")
_ROMAN = re.compile("M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_INDIAN = re.compile(r"\d{1,2}(?:,\d\d)+,\d{3}(?!\d)")
_EN_ORDINALS = word_table("ordinal")


def spell(digits: str, language: Language, *, telephone: bool = False) -> str:
    """Returns the digits one by one. In telephone numbers a Chinese 1 is 幺, which cannot be mistaken for 7."""
    if language == "en":
        return " ".join(_EN_DIGITS[int(digit)] for digit in digits)
    spoken = "".join(_ZH_DIGITS[int(digit)] for digit in digits)
    return spoken.replace("一", "幺") if telephone else spoken


def integer(digits: str, language: Language) -> str:
    """Returns the words of a whole number; one with a leading zero, or longer than MAX_DIGITS, is spelt."""
    if len(digits) > MAX_DIGITS or (len(digits) > 1 and digits[0] == "0"):
        return spell(digits, language)
    return chinese(int(digits)) if language == "zh" else english(int(digits))


def number(written: str, language: Language) -> str:
    """Returns the words of an integer or decimal, as in 1,234.50 or .5; decimals are read one by one."""
    whole, point, places = written.replace(",", "").partition(".")
    is_indian = language == "en" and _INDIAN.match(written)
    spoken = _lakhs(int(whole)) if is_indian else integer(whole or "0", language)
    if not point or not places:
        return spoken
    behind = spell(places, language)
    return f"{spoken} point {behind}" if language == "en" else f"{spoken}点{behind}"


def _lakhs(value: int) -> str:
    """Returns the words of a number written as 12,34,567: twelve lakh thirty four thousand five hundred sixty seven."""
    words = []
    for worth, name in ((10**7, " crore"), (10**5, " lakh")):
        if value >= worth:
            words.append(english(value // worth) + name)
            value %= worth
    return " ".join([*words, english(value)] if value or not words else words)


def counted(written: str) -> str:
    """Returns a Chinese number before a measure word: 2 is 两, not 二."""
    return "两" if written == "2" else number(written, "zh")


@lru_cache(maxsize=4096)
def chinese(value: int) -> str:
    """Returns the words of 0 .. 10**16 - 1. 2 is 两 before 千, 万 and 亿, as people speak, and 二 elsewhere."""
    spoken = _chinese(value) or "零"
    return spoken[1:] if spoken.startswith("一十") else spoken


def _chinese(value: int) -> str:
    for scale, name in ((10**8, "亿"), (10**4, "万")):
        if value >= scale:
            head, rest = divmod(value, scale)
            gap = "零" if 0 < rest < scale // 10 else ""
            return ("两" if head == 2 else _chinese(head)) + name + gap + _chinese(rest)
    return _chinese_group(value)


def _chinese_group(group: int) -> str:
    spoken = ""
    zero = False
    for scale, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = group // scale % 10
        if digit:
            spoken += ("零" if zero else "") + ("两" if digit == 2 and scale == 1000 else _ZH_DIGITS[digit]) + name
            zero = False
        else:
            zero = bool(spoken)
    return spoken


@lru_cache(maxsize=4096)
def english(value: int) -> str:
    """Returns the words of 0 .. 10**15 - 1, without "and"."""
    if value == 0:
        return "zero"
    groups = []
    for name in _EN_GROUPS:
        value, group = divmod(value, 1000)
        if group:
            groups.append(_english_group(group) + name)
    return " ".join(reversed(groups))


def _english_group(group: int) -> str:
    hundreds, rest = divmod(group, 100)
    words = [f"{_EN_DIGITS[hundreds]} hundred"] if hundreds else []
    if 10 <= rest < 20:
        words.append(_EN_TEENS[rest - 10])
    elif rest:
        words += [word for word in (_EN_TENS[rest // 10], _EN_DIGITS[rest % 10] if rest % 10 else "") if word]
    return " ".join(words)


def ordinal(digits: str) -> str:
    """Returns an English ordinal: first, twenty second, one hundredth."""
    rest, _, last = integer(digits, "en").rpartition(" ")
    regular = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return f"{rest} {_EN_ORDINALS.get(last, regular)}".strip()


def plural_of(spoken: str) -> str:
    """Returns the plural of a number in words: fifties, eighty sixes."""
    if spoken.endswith("y"):
        return f"{spoken[:-1]}ies"
    return f"{spoken}es" if spoken.endswith("x") else f"{spoken}s"


def pairs(digits: str) -> str:
    """Returns the words of a short code: 4090 forty ninety, 320 three twenty, 404 four oh four, 1000 one thousand."""
    if len(digits) not in (3, 4) or digits[0] == "0":
        return integer(digits, "en")
    head, tail = digits[:-2], digits[-2:]
    if tail == "00":
        return english(int(digits)) if digits[-3] == "0" or len(digits) == 3 else f"{english(int(head))} hundred"
    if len(digits) == 4 and head[1] == "0" and tail[0] == "0":
        return english(int(digits))
    return f"{english(int(head))} {f'oh {_EN_DIGITS[int(tail[1])]}' if tail[0] == '0' else english(int(tail))}"


def year(digits: str, language: Language) -> str:
    """Returns the words of a year: nineteen ninety nine, two thousand five; 一九九九."""
    if language == "zh":
        return spell(digits, "zh")
    return english(int(digits)) if len(digits) == 4 and digits[1] == digits[2] == "0" else pairs(digits)


def fraction(numerator: str, denominator: str, language: Language) -> str:
    """Returns the words of a fraction: 三分之二; two thirds; five over sixty four."""
    if language == "zh":
        return f"{integer(denominator, 'zh')}分之{integer(numerator, 'zh')}"
    parts, whole = int(numerator), int(denominator)
    above = integer(numerator, "en")
    if whole == 2:
        return f"{above} {'half' if parts == 1 else 'halves'}"
    if whole == 4:
        return f"{above} {'quarter' if parts == 1 else 'quarters'}"
    if 3 <= whole <= 20 or whole in (100, 1000):
        part_name = ordinal(denominator)
        part_name = part_name.removeprefix("one ")
        return f"{above} {part_name if parts == 1 else f'{part_name}s'}"
    return f"{above} over {integer(denominator, 'en')}"


def roman(numeral: str) -> int | None:
    """Returns the value of a Roman numeral below 4000; None if it is malformed."""
    if not _ROMAN.fullmatch(numeral):
        return None
    values = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
    total = 0
    for sign, following in zip(numeral, f"{numeral[1:]} ", strict=True):
        total += -values[sign] if values.get(following, 0) > values[sign] else values[sign]
    return total
