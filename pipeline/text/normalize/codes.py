"""Codes: reads numbers that name something in English: emergency calls, orders, cards, rooms, house numbers, forms, verses.

In:    matches of digits, some with letters
Out:   words: digit by digit, or in pairs as people say a house number
Owns:  the words that reveal a code beside a number
Never: quantities, dates, Chinese codes
"""

import re

from pipeline.text.normalize.latin import join_words, letters
from pipeline.text.normalize.numbers import integer, pairs, spell, year
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import COUNTED_AFTER, EDGE, NOT_IN_WORD
from pipeline.text.normalize.rule import Gap, Match, Outcome, Rule, after, alternatives, before, numeric, rule
from pipeline.text.normalize.tables import word_list, word_table
from pipeline.text.normalize.words import UNITS

_LINK = (
    r"(?:\s(?:numbers?|nos?\.?|num\.?|codes?|ids?|IDs?|is|was|are|there|here|(?:ending|ends|begins|starts)\s(?:in|with))"
    r"|\s?[:=#]){0,4}\s?[\"'(]?$"
)
CALL_BEFORE = re.compile(
    r"\b(?:(?:call|dial|ring|phone|text)(?:s|ed|ing|led|ling)?(?: \d{3},?(?: or| and| not)?)?|rang|"
    r"hotline|helpline|texts? [A-Z]{2,8} to|emergency number|"
    r"pager)" + _LINK,
    re.IGNORECASE | re.ASCII,
)
_CALL_AFTER = re.compile(rf"\s(?:{alternatives(word_list('call names'))})\b", re.ASCII)
CODE_BEFORE = re.compile(
    rf"\b(?:{alternatives(word_list('code names'))}|p\.?o\.? box|area code|ending in|"
    r"(?:card|account|visa|mastercard|amex) ending|sort code|article number)" + _LINK,
    re.IGNORECASE | re.ASCII,
)
_NAMED = re.compile(rf"(?:\b(?:{alternatives(word_list('named'))}|Ryzen \d|exit code|error code)|\b[A-Z]{{2,5}})\s$", re.ASCII)
_RIDDEN = re.compile(r"\b(?:bus|tram|train|flight|route|gate|room|line)\s$", re.IGNORECASE)  # bus 402 goes, room 305 smells
_NAMED_AFTER = re.compile(rf"\s(?:tax forms?|{alternatives(word_list('named after'))})\b", re.ASCII)
_SHORT_BOOKS = word_table("book")
_BOOK_BEFORE = re.compile(rf"\b(?:{alternatives(word_list('bible'))}|(?:{alternatives(_SHORT_BOOKS)})\.?)\s$", re.ASCII)
_STREET = alternatives(word_list("street names"))
_STATES = word_table("state code")
_SURE_STATES = set(_STATES) - set(word_list("unsure states"))
_COMMON_CALLS = ("911", "112", "999", "988")
_UNIT_AFTER = re.compile(rf"\s?(?:{alternatives(list(UNITS))}){EDGE}", re.ASCII)
_AIRLINERS = ("707", "717", "727", "737", "747", "757", "767", "777", "787")
_HASH = re.compile(r"(?!\d+[a-f]$)(?=.*\d)(?=.*[a-f])\d[0-9a-f]{6,63}")
_HASH_BEFORE = re.compile(r"\b(?:commit|hash|sha|revision|rev|build|checksum|digest|id|token)(?: is|:)?\s$", re.IGNORECASE)
_SECRET_BEFORE = re.compile(
    r"(?:\b(?:password|passcode|passphrase|pwd|pw|access key|promo code|voucher|coupon(?: code)?)(?: is)?"
    r"|密码|口令|验证码|激活码|兑换码)[是为:]?\s?$",
    re.IGNORECASE,
)
_GROUP = re.compile(r"[A-Za-z]+|\d+")


def _spelled(digits: str) -> str:
    return spell(digits, "en")


def _signs(written: list[str], language: Language) -> str:
    """Returns the letters and digits of groups one by one, with pauses between the groups."""
    groups = [
        join_words([spell(part, language) if part.isdigit() else letters(part) for part in _GROUP.findall(group)])
        for group in written
    ]
    return (", " if language == "en" else "，").join(groups)


def _called(match: Match, language: Language) -> Outcome:
    """911, 112: digit by digit behind a verb of calling or before a caller."""
    digits = match["digits"]
    if CALL_BEFORE.search(before(match, 28)):
        return None if len(digits) == 3 and digits.endswith("00") else _spelled(digits)
    return _spelled(digits) if digits in _COMMON_CALLS and _CALL_AFTER.match(match.string, match.end()) else None


def _code(match: Match, language: Language) -> Outcome:
    """Order 48213907, PIN 0420; of three digits or fewer it is a number."""
    if language != "en" or not CODE_BEFORE.search(before(match, 36)) or COUNTED_AFTER.match(match.string, match.end()):
        return None
    return ", ".join(map(_spelled, match[0].replace("-", " ").split()))


def _numbered(match: Match, language: Language) -> Outcome:
    digits = match["digits"]
    return f"number {_spelled(digits)}" if language == "en" else None


def _card(match: Match, language: Language) -> Outcome:
    comma = ", " if language == "en" else "，"
    return comma.join(spell(group, language) for group in re.split("[ -]", match[0]))


def _named(match: Match, language: Language) -> Outcome:
    """Boeing 747, Room 1408, Section 230, the 405 freeway."""
    if language != "en" or (COUNTED_AFTER.match(match.string, match.end()) and not _RIDDEN.search(before(match, 24))):
        return None
    is_type = match["digits"] in _AIRLINERS and not _UNIT_AFTER.match(match.string, match.end())
    is_airliner = is_type and re.search(r"\b(?:the|a)\s$", before(match, 4), re.IGNORECASE)
    is_named = is_airliner or _NAMED.search(before(match, 24)) or _NAMED_AFTER.match(match.string, match.end())
    return pairs(match["digits"]) if is_named else None


def _house(match: Match, language: Language) -> Outcome:
    digits = match["digits"]
    if language != "en":
        return None
    return pairs(digits) if len(digits) < 5 else _spelled(digits)


def _zip(match: Match, language: Language) -> Outcome:
    return f"{_STATES[match['state']]} {', '.join(map(_spelled, match['zip'].split('-')))}"


def _state(match: Match, language: Language) -> Outcome:
    return _STATES[match["state"]] if language == "en" else None


def _verse(match: Match, language: Language) -> Outcome:
    if language != "en" or not _BOOK_BEFORE.search(before(match, 18)):
        return None
    last = match["last"]
    return f"{integer(match['chapter'], 'en')} {integer(match['verse'], 'en')}" + (f" to {integer(last, 'en')}" if last else "")


def _clause(match: Match, language: Language) -> Outcome:
    """401(k), 501(c)(3)."""
    parts = _GROUP.findall(match["clauses"])
    spoken = [integer(part, language) if part.isdigit() else part.upper() for part in parts]
    number = pairs(match["digits"]) if language == "en" else spell(match["digits"], "zh")
    return join_words([number, *spoken])


def _dated(match: Match, language: Language) -> Outcome:
    """CVE-2021-44228."""
    comma = ", " if language == "en" else "，"
    spoken = join_words([letters(match["name"]), year(match["year"], language)])
    return f"{spoken}{comma}{spell(match['digits'], language)}"


def _mixed(match: Match, language: Language) -> Outcome:
    """1Z999AA10123456784, 3f2a9c1: letters and digits one by one."""
    groups = _GROUP.findall(match[0])
    is_hash = match[0].islower() and bool(_HASH_BEFORE.search(before(match, 20)) or _HASH.fullmatch(match[0]))
    is_code = is_hash or len(groups) >= 4 or any(len(group) > 6 for group in groups if group.isdigit())
    if not is_code and not (len(groups) == 3 and match[0][0].isdigit() and match[0].isupper()):
        return None
    if sum(group.isdigit() for group in groups) < 2 and len(groups) > 2:
        return None
    return _signs([match[0]], language)


def _secret(match: Match, language: Language) -> Outcome:
    """Password: aB3dE9."""
    return (
        _signs([match[0]], language) if len(_GROUP.findall(match[0])) > 2 and _SECRET_BEFORE.search(before(match, 24)) else None
    )


def _identifier(match: Match, language: Language) -> Outcome:
    """3f2504e0-4f89-11d3-9a0c-0305e82c3301, #FF5733: hexadecimal digits one by one."""
    sign = "" if match[0][0] != "#" else "hash" if language == "en" else "井号"
    return join_words([sign, _signs(match[0].lstrip("#").split("-"), language)])


def _hexadecimal(match: Match, language: Language) -> Outcome:
    """0x80070057."""
    return join_words([spell("0", language), "X", _signs([match["digits"]], language)])


def _order(match: Match, language: Language) -> Outcome:
    """The sign of Order #A10-4432, which is no hashtag."""
    return ("number" if language == "en" else Gap.NONE) if CODE_BEFORE.search(before(match, 36)) else None


def _account(match: Match, language: Language) -> Outcome:
    """DE89 3704 0044 0532 0130 00: an IBAN, group by group."""
    return None if " " not in match[0] and len(match[0]) < 15 else _signs(match[0].split(" "), language)


def _norm(match: Match, language: Language) -> Outcome:
    """ISO 9001:2015."""
    digits = spell(match["digits"], "zh") if language == "zh" else integer(match["digits"], "en")
    return join_words([letters(match["name"]), digits, year(match["year"], language)])


def _hardware(match: Match, language: Language) -> Outcome:
    """00:1A:2B:3C:4D:5E."""
    return _signs(match[0].split(":"), language)


def _long(match: Match, language: Language) -> Outcome:
    """A long number without commas that is not round is the name of something."""
    digits = match[0]
    if (
        language != "en"
        or digits.endswith("000")
        or COUNTED_AFTER.match(match.string, match.end())
        or re.match(r"\s?[%°]", after(match, 2))
    ):
        return None
    return _spelled(digits)


_GROUPS = r"\d{3}(?:[- ]\d{3,4}){2,3}|\d{2,5}[- ]\d{4,8}|\d{3}[- ]\d{3}"
_EDGE = r"(?![\dA-Za-z])(?!\s?[%°]|[,.:/-]\d)"
RULES: list[Rule] = [
    numeric("a", r"(?:No|no|Nr)\.(?=\s?\d{2,5}[ -]\d{3,})", ("number", "号")),
    numeric("#", r"#(?=[A-Z]{1,4}-?\d)", _order),
    rule("a", r"(?<=\d{4} )x(?=\d{2,5}(?!\d))", ("extension", "转"), "phone"),
    numeric("a", rf"{NOT_IN_WORD}[A-Z]{{2}}\d\d(?: ?[A-Z0-9]{{4}}){{3,7}}(?: ?[A-Z0-9]{{1,3}})?(?![A-Za-z0-9])", _account),
    numeric("0a", rf"{NOT_IN_WORD}(?:[0-9A-Fa-f]{{2}}:){{5}}[0-9A-Fa-f]{{2}}(?!:?[A-Za-z0-9])", _hardware),
    numeric("0a", rf"{NOT_IN_WORD}[0-9A-Fa-f]{{8}}-(?:[0-9A-Fa-f]{{4}}-){{3}}[0-9A-Fa-f]{{12}}(?![A-Za-z0-9])", _identifier),
    numeric(
        "#", r"#(?=[A-Fa-f]{0,7}\d)(?=\d{0,7}[A-Fa-f])(?:[0-9A-F]{3}|[0-9A-Fa-f]{6}|[0-9A-Fa-f]{8})(?![A-Za-z0-9])", _identifier
    ),
    numeric("0", r"(?<=[A-Za-z\u4e00-\u9fff]_)\d{2,20}(?![\d.,])", lambda match, language: spell(match[0], language)),
    numeric("0", r"0[xX](?P<digits>[0-9A-Fa-f]{1,32})(?![A-Za-z0-9])", _hexadecimal),
    numeric(
        "0", r"(?<!\d)(?<!\d[.,-])(?:\d{4}[ -]){3}\d{4}(?![\d-])|(?<!\d)(?<!\d[.,-])3\d{3}[ -]\d{6}[ -]\d{5}(?![\d-])", _card
    ),
    numeric("a", rf"{NOT_IN_WORD}(?P<name>[A-Z]{{2,6}})-(?P<year>(?:19|20)\d\d)-(?P<digits>\d{{3,7}})(?![\dA-Za-z])", _dated),
    numeric(
        "0a",
        rf"{NOT_IN_WORD}(?=[A-Za-z]{{0,9}}\d)(?=\d{{0,9}}[A-Za-z])(?:[A-Z0-9]{{5,34}}|[a-f0-9]{{6,64}})(?![A-Za-z0-9@]|-\w)",
        _mixed,
    ),
    numeric("0a", rf"{NOT_IN_WORD}(?=[A-Za-z]{{0,9}}\d)(?=\d{{0,9}}[A-Za-z])[A-Za-z0-9]{{5,24}}(?![A-Za-z0-9@])", _secret),
    numeric("a", rf"{NOT_IN_WORD}(?P<name>ISO|IEC|EN|DIN)\s?(?P<digits>\d{{3,5}}):(?P<year>(?:19|20)\d\d)(?!\d)", _norm),
    numeric("0", rf"(?<!\d)(?<!\d[.,-])(?P<digits>\d{{3,6}}){_EDGE}", (_called, None)),
    numeric("0", rf"(?<!\d)(?<!\d[.,-])(?:{_GROUPS}|\d{{4,20}}|0\d{{2}}){_EDGE}", _code),
    numeric("#", rf"#(?P<digits>\d{{4,20}}){_EDGE}", _numbered),
    numeric("0", rf"(?<=[a-z] )101{_EDGE}(?=\s?(?:$|[.,;:!?)]|class|course))", ("one oh one", None)),
    numeric("0", rf"(?<![\d$£€])(?<!\d[.,-])(?P<digits>\d{{3,4}}){_EDGE}", _named),
    numeric(
        "0",
        rf"(?<![\d$£€])(?<!\d[.,/-])(?P<digits>\d{{3,5}})(?=\s(?:[NSEW]\.?\s|North\s|South\s|East\s|West\s)?"
        rf"(?:(?:[A-Z][a-z]{{1,14}}\.?|\d{{1,3}}(?:st|nd|rd|th))\s){{1,3}}(?:{_STREET})\b)",
        _house,
    ),
    numeric("a", rf"(?<=[a-z.], )(?P<state>{alternatives(_STATES)})\.?\s(?P<zip>\d{{5}}(?:-\d{{4}})?){_EDGE}", (_zip, None)),
    rule("a", rf"(?<=[a-z], )(?P<state>{alternatives(_SURE_STATES)})(?![A-Za-z0-9]|\s?\d)", _state),
    rule(
        "a",
        rf"{NOT_IN_WORD}(?P<word>(?:{alternatives(_SHORT_BOOKS)})(?=\.?\s\d{{1,3}}:\d)|Pss?(?=\.\s\d))\.?(?!.{{0,6}}\s?[ap]\.?m)",
        _SHORT_BOOKS,
    ),
    numeric("0", r"(?<=[\w.]\s)(?P<chapter>\d{1,3}):(?P<verse>\d{1,3})(?:[-–](?P<last>\d{1,3}))?(?!:?\d)", _verse),
    numeric("0", r"(?P<digits>\d{3})(?P<clauses>(?:\([a-z0-9]\)){1,3})", _clause),
    numeric("0", rf"(?<!\d)(?<!\d[.,-])\d{{8,15}}{_EDGE}", _long),
]
