"""Say-as: rewrites a text so that the normaliser reads it as the given kind of thing.

In:    written text, `kind` or `kind:format` of SSML's say-as, zh or en
Out:   written text
Never: number words: the normaliser writes them
"""

import re

from pipeline.text.normalize import Language

_DIGITS = re.compile(r"\d+")
_CODES = {"USD": "$", "EUR": "€", "GBP": "£", "CNY": "¥", "RMB": "¥"}
_CODE_FIRST = re.compile(r"(USD|EUR|GBP|CNY|RMB)\s?(\d.*)")
_CODE_LAST = re.compile(r"(\d[\d.,\s]*?)\s?(USD|EUR|GBP|CNY|RMB)")


def expand_say_as(written: str, kind: str, language: Language) -> str:
    """Returns `written` rewritten for its kind, and unchanged where it cannot be read as that kind."""
    kind, _, form = kind.partition(":")
    match kind:
        case "digits" | "number_digit":
            return " ".join(character for character in written if character.isalnum())
        case "characters" | "spell-out":
            return " ".join(character for character in written if not character.isspace())
        case "telephone":
            groups = re.findall(r"\w+", written)
            return ", ".join(" ".join(group) for group in groups)
        case "cardinal" | "number":
            plain = re.sub(r"[,\s]", "", written)
            # With a comma, 1999 is not read as a year.
            return f"{int(plain):,}" if plain.isdecimal() and len(plain) <= 15 else written
        case "ordinal":
            return _ordinal(written.strip(), language)
        case "date":
            return _date(written, form, language)
        case "currency":
            first, last = _CODE_FIRST.fullmatch(written.strip()), _CODE_LAST.fullmatch(written.strip())
            if first:
                return _CODES[first[1]] + first[2]
            return _CODES[last[2]] + last[1] if last else written
        case _:
            return written  # a time is read in one way only


def _ordinal(written: str, language: Language) -> str:
    if not written.isdecimal():
        return written
    if language == "zh":
        return f"第{written}"
    suffix = "th" if written[-2:] in ("11", "12", "13") else {"1": "st", "2": "nd", "3": "rd"}.get(written[-1], "th")
    return written + suffix


def _date(written: str, form: str, language: Language) -> str:
    """Returns a date in the form the normaliser knows: 2026-11-21, 11-21."""
    numbers = _DIGITS.findall(written)
    order = form if form in ("ymd", "mdy", "dmy", "ydm", "md", "dm", "ym", "my", "y") else ""
    if len(numbers) != len(order):
        return written
    named = dict(zip(order, numbers, strict=True))
    if language == "zh":
        return "".join(f"{named[part]}{sign}" for part, sign in (("y", "年"), ("m", "月"), ("d", "日")) if part in named)
    if set(named) == {"y", "m", "d"}:
        return f"{int(named['y']):04d}-{int(named['m']):02d}-{int(named['d']):02d}"
    return written
