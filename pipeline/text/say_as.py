"""Say-as: reads what an element says it is, in the element's language: a date, a time, letters, a telephone number, a sum.

In:    a written text, its kind, the form of that kind, a language
Out:   words; None where the text is nothing of that kind
Owns:  the kinds of SSML's say-as, as W3C, Amazon, Google and Microsoft document them, and their forms
Never: guesses of what a text may be, which is the normaliser's work; markup

A kind that is written as running text is (an address, a name, an amount with its sign) is read by the normaliser in the
element's language. Every other kind has a reader of its own.
"""

import re
from collections.abc import Callable, Mapping

from pipeline.text.normalize import Language, normalize
from pipeline.text.normalize.addresses import ADDRESS_SIGNS
from pipeline.text.normalize.calendar import date_words, time_words
from pipeline.text.normalize.durations import duration_words
from pipeline.text.normalize.latin import join_words, latin_word
from pipeline.text.normalize.money import money_words
from pipeline.text.normalize.numbers import fraction, integer, number, ordinal, roman, spell
from pipeline.text.normalize.tables import row_table, word_table
from pipeline.text.normalize.telephones import telephone_words
from pipeline.text.normalize.words import CLOSE_UNITS, CURRENCIES, MONTH_NUMBERS, SIGNS, UNITS

_CURRENCY_SIGNS = {sign: names[::3] for sign, names in CURRENCIES.items() if len(sign) == 1}
_SIGN_NAMES = SIGNS | _CURRENCY_SIGNS | ADDRESS_SIGNS | row_table("sign name")
_IN_ADDRESSES = {short.upper(): long for short, long in word_table("street").items()} | word_table("side")
_SHORT = re.compile(r"[A-Z]{1,5}(?=\.?,?(?: |$))")
_NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)?|-?\.\d+"
_TIME = re.compile(
    r"(?P<before>[上下中]午|[早晚]上|凌晨)?\s?(?P<hours>\d{1,2})(?:[:.h点时：]\s?(?P<minutes>[0-5]\d)?分?)?"
    r"(?:[:.]?(?P<seconds>[0-5]\d)(?:\.\d+)?秒?)?\s?(?:(?P<half>[ap])\.?\s?m?\.?)?"
)
_COMPACT_TIME = re.compile(r"([01]\d|2[0-4])([0-5]\d)([0-5]\d)?")
_EXTENSION = re.compile(r"(.*?)\s?(?:,\s?)?(?:x|ext\.?|extension|转)\s?(\d{1,6})\s*", re.IGNORECASE)
_ISO_DURATION = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?", re.IGNORECASE)


def spoken_as(written: str, kind: str, form: str, language: Language) -> str | None:
    """Returns the words of a text of this kind: "12/31/99" as a date of the form mdy is "December thirty first, ninety nine".

    Args:
        kind: a key of KINDS.
        form: the order of a date or a duration, the currency of an amount; empty: by the text.
    """
    return KINDS[kind](" ".join(written.split()), form.lower(), language)


def _plain(written: str, form: str, language: Language) -> str | None:
    return normalize(written, language=language, fallback=language).text or None


def _characters(written: str, form: str, language: Language) -> str | None:
    """Returns every character by its name: letters, digits, signs."""
    return join_words([_name(character, language) for character in written if not character.isspace()]) or None


def _name(character: str, language: Language) -> str:
    if character.isdecimal():
        return spell(str(int(character)), language)
    if character in _SIGN_NAMES:
        return _SIGN_NAMES[character][language == "zh"]
    return character.upper() if character.isalpha() and len(character.upper()) == 1 else ""


def _digits(written: str, form: str, language: Language) -> str | None:
    return join_words([_name(character, language) for character in written if character.isalnum()]) or None


def _value(written: str) -> str | None:
    """Returns a number in digits: 1,003, -4.5 or IV."""
    plain = re.sub(r"(?<=\d)[ '’](?=\d{3})", "", written.replace("，", ","))
    if re.fullmatch(_NUMBER, plain, re.ASCII):
        return plain
    value = roman(written.upper()) if written else None
    return str(value) if value else None


def _cardinal(written: str, form: str, language: Language) -> str | None:
    value = _value(written)
    if value is None:
        return None
    minus = {"zh": "负", "en": "minus "}[language] if value[0] == "-" else ""
    digits = value.lstrip("-")
    return minus + number(digits.lstrip("0") or "0" if digits.isdecimal() else digits, language)


def _ordinal(written: str, form: str, language: Language) -> str | None:
    value = _value(re.sub(r"(?<=\d)(?:st|nd|rd|th)$|^第", "", written, flags=re.IGNORECASE))
    digits = (value or "").replace(",", "")
    if not digits.isdecimal():
        return None
    digits = digits.lstrip("0") or "0"
    return f"第{integer(digits, 'zh')}" if language == "zh" else ordinal(digits)


def _fraction(written: str, form: str, language: Language) -> str | None:
    match = re.fullmatch(r"(?:(\d{1,9})\s?(?:\+|\s)\s?)?(\d{1,6})\s?[/⁄]\s?(\d{1,6})", written, re.ASCII)
    if match is None or not int(match[3]):
        return _plain(written, form, language) if re.fullmatch(r"\d*\s?[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]", written) else None
    part = fraction(match[2], match[3], language)
    if not match[1]:
        return part
    return f"{integer(match[1], 'zh')}又{part}" if language == "zh" else f"{integer(match[1], 'en')} and {part}"


def _currency(written: str, form: str, language: Language) -> str | None:
    code = form.upper()
    value = _value(written)
    if value is not None and code in CURRENCIES and value[0] != "-":
        return money_words(code, value, "", language)
    return _plain(written, form, language) if value is None else None


def _unit(written: str, form: str, language: Language) -> str | None:
    match = re.fullmatch(rf"({_NUMBER})\s?-?(\S+)", written, re.ASCII)
    names = (UNITS | CLOSE_UNITS).get(match[2]) if match else None
    if match is None or names is None:
        return _plain(re.sub(r"(?<=\d)(?=[A-Za-z]{3})", " ", written), form, language)
    if language == "zh":
        return f"{_cardinal(match[1], '', 'zh')}{names[2]}"
    return f"{_cardinal(match[1], '', 'en')} {names[0] if match[1] == '1' else names[1]}"


def _telephone(written: str, form: str, language: Language) -> str | None:
    match = _EXTENSION.fullmatch(written)
    main, extension = (match[1], match[2]) if match and re.search(r"\d", match[1]) else (written, "")
    parts = [
        part if not part[0].isalpha() else latin_word(part) for part in re.findall(r"[A-Za-z]+|[^A-Za-z]*\d[^A-Za-z]*", main)
    ]
    comma = {"zh": "，", "en": ", "}[language]
    words = [part if part.isalpha() else telephone_words(part, language) for part in parts]
    if extension:
        words.append(("转" if language == "zh" else "extension ") + spell(extension, language, telephone=True))
    return comma.join(words) if re.search(r"\d", main) else None


def _date(written: str, form: str, language: Language) -> str | None:
    """Returns the words of a date with its parts in the order of the form, with or without signs between them."""
    parts = re.findall(r"\d+|[A-Za-z]+", written)
    names = [part for part in parts if part[:3].lower() in MONTH_NUMBERS and part.isalpha()]
    if names:
        return _plain(written, form, language)
    groups = [part for part in parts if part.isdigit()]
    if not groups:
        return None
    letters = re.sub("[^ymd]", "", form)
    order = "".join(dict.fromkeys(letters)) or _order(groups, language)
    if len(groups) == 1 and len(order) > 1:
        groups = _without_signs(groups[0], letters, order)
    if len(groups) != len(order):
        return None
    named = dict(zip(order, groups, strict=True))
    year, month, day = named.get("y", ""), int(named.get("m", 0)), int(named.get("d", 0))
    if len(year) not in (0, 2, 4) or not ("m" not in named or 1 <= month <= 12) or not ("d" not in named or 1 <= day <= 31):
        return None
    if not month:
        return _year_or_day(year, day, language)
    if len(year) == 2:
        short = integer(year, "en") if year[0] != "0" else f"oh {integer(year[1], 'en')}"
        rest = date_words("", month, day or None, language)
        return f"{spell(year, 'zh')}年{rest}" if language == "zh" else f"{rest}, {short}"
    return date_words(year, month, day or None, language)


def _order(groups: list[str], language: Language) -> str:
    """Returns the order of a date that names none: by the place of its year, else as the language has it."""
    if len(groups) == 1:
        return "ymd" if len(groups[0]) == 8 else "y"
    if len(groups) == 2:
        return "ym" if len(groups[0]) == 4 else "my" if len(groups[1]) == 4 else "md"
    if len(groups[0]) == 4 or (language == "zh" and len(groups[-1]) < 4):
        return "ymd"
    return "dmy" if int(groups[0]) > 12 else "mdy"


def _without_signs(digits: str, letters: str, order: str) -> list[str]:
    """Returns the parts of 20240506, of the widths that the form has, or of two digits, and four for a year that fits."""
    widths = [letters.count(part) for part in order]
    if sum(widths) != len(digits):
        rest = len(digits) - 2 * (len(order) - 1)
        widths = [rest if part == "y" else 2 for part in order]
    if sum(widths) != len(digits) or min(widths) < 1:
        return []
    stops = [sum(widths[: index + 1]) for index in range(len(widths))]
    return [digits[stop - width : stop] for width, stop in zip(widths, stops, strict=True)]


def _year_or_day(year: str, day: int, language: Language) -> str:
    if day:
        return f"{integer(str(day), 'zh')}日" if language == "zh" else ordinal(str(day))
    if language == "zh":
        return f"{spell(year, 'zh')}年"
    return date_words(year, 1, None, "en").partition(" ")[2] if len(year) == 4 else integer(year, "en")


def _time(written: str, form: str, language: Language) -> str | None:
    if re.search(r"\d['′]", written):
        return _duration(written, "ms", language)
    compact = _COMPACT_TIME.fullmatch(written)
    if compact:
        return time_words(int(compact[1]), int(compact[2]), int(compact[3] or 0), "", language)
    match = _TIME.fullmatch(written.lower())
    if match is None or int(match["hours"]) > 24:
        return None
    half = match["half"] or ""
    if match["before"]:
        words = time_words(int(match["hours"]), int(match["minutes"] or 0), int(match["seconds"] or 0), "", "zh")
        return match["before"] + words
    half = half if int(match["hours"]) <= 12 else ""
    return time_words(int(match["hours"]), int(match["minutes"] or 0), int(match["seconds"] or 0), half, language)


def _duration(written: str, form: str, language: Language) -> str | None:
    """Returns the words of 01:18:30, of hours, minutes and seconds in the order of the form."""
    iso = _ISO_DURATION.fullmatch(written)
    parts = ["", "", ""]
    groups = re.findall(r"\d+(?:\.\d+)?", written)
    order = "".join(dict.fromkeys(re.sub("[^hms]", "", form)))
    order = order if len(order) == len(groups) else {3: "hms", 2: "ms"}.get(len(groups), "")
    if iso and groups:
        parts = [part or "" for part in iso.groups()]
    elif re.search("[A-Za-z\u4e00-\u9fff]", written):
        return _plain(written, form, language)
    elif not order:
        return None
    else:
        for part, digits in zip(order, groups, strict=True):
            parts["hms".index(part)] = digits
    return duration_words((parts[0], parts[1], parts[2]), language)


def _address(written: str, form: str, language: Language) -> str | None:
    """Returns the words of an address, its abbreviations in capitals included: 150th CT NE."""
    return _plain(_SHORT.sub(lambda match: _IN_ADDRESSES.get(match[0], match[0]), written), form, language)


def _bleep(written: str, form: str, language: Language) -> str | None:
    """Returns the word that stands for one which must not be heard."""
    return {"zh": "哔", "en": "beep"}[language]


KINDS: Mapping[str, Callable[[str, str, Language], str | None]] = {
    "date": _date,
    "time": _time,
    "duration": _duration,
    "cardinal": _cardinal,
    "number": _cardinal,
    "ordinal": _ordinal,
    "fraction": _fraction,
    "digits": _digits,
    "number_digit": _digits,
    "characters": _characters,
    "spell-out": _characters,
    "verbatim": _characters,
    "letters": _characters,
    "telephone": _telephone,
    "currency": _currency,
    "unit": _unit,
    "address": _address,
    "name": _plain,
    "interjection": _plain,
    "expletive": _bleep,
    "bleep": _bleep,
}
