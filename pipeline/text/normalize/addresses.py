"""Addresses: reads web and e-mail addresses, files, paths, mentions and hashtags, part by part.

In:    matches of addresses
Out:   words
Never: quantities, dates, telephone numbers
"""

import re

from pipeline.text.normalize.latin import VOWEL, camel_words, join_words, latin_word, letters
from pipeline.text.normalize.numbers import integer, spell
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import NOT_IN_WORD
from pipeline.text.normalize.rule import Match, Outcome, Rule, alternatives, before, rule
from pipeline.text.normalize.tables import row_table, word_list
from pipeline.text.normalize.words import DOMAIN_WORDS, FILE_ENDINGS, PLAIN_ENDINGS, TOP_LEVEL_DOMAINS

ADDRESS_SIGNS = row_table("address sign")
_ADDRESS_PART = re.compile(r"[A-Za-z]+|\d+|[\u4e00-\u9fff]+|[^A-Za-z\d\u4e00-\u9fff]")
_DOMAIN = rf"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{{0,62}}[A-Za-z0-9])?\.){{1,6}}(?:{alternatives(TOP_LEVEL_DOMAINS)})(?![A-Za-z0-9])"
_PATH = (
    r"(?::(?P<port>\d{1,5})(?!\d))?(?P<path>(?:/[A-Za-z0-9._~%+@/-]{0,2000}(?<![./]))?)"
    r"(?P<rest>/?[?#][^\s\u3000-\uffff\"'<>)|`\]]{1,2000}(?<![.,;:!?*_~])|/)?"
)


def address_words(written: str, language: Language) -> str:
    """Returns the words of a web address, part by part: example dot com slash docs."""
    spoken = []
    for part in _ADDRESS_PART.findall(written):
        if part.isdigit():
            spoken.append(spell(part, language) if len(part) > 2 or part[0] == "0" else integer(part, language))
        elif part.isascii() and part.isalpha():
            spoken.append(_domain_word(part))
        elif part in ADDRESS_SIGNS:
            spoken.append(ADDRESS_SIGNS[part][language == "zh"])
        elif "\u4e00" <= part[0] <= "\u9fff":
            spoken.append(part)
    return join_words(spoken)


def _domain_word(word: str) -> str:
    if word.lower() in DOMAIN_WORDS or word.lower() in ("http", "https"):
        return word if word.lower() in DOMAIN_WORDS else letters(word)
    if len(word) <= 2 or word.lower() == "www" or not VOWEL.search(word):
        return letters(word)
    return latin_word(word)


def _url(match: Match, language: Language) -> Outcome:
    host = match["host"].removeprefix("www.")
    rest = match["rest"] or ""
    spoken = address_words(host, language)
    if match["port"]:
        spoken = join_words([spoken, ADDRESS_SIGNS[":"][language == "zh"], spell(match["port"], language)])
    return join_words([spoken, address_words((match["path"] or "") + ("" if rest == "/" else rest), language)])


def _address(match: Match, language: Language) -> Outcome:
    return address_words(match[0], language)


def _ip(match: Match, language: Language) -> Outcome:
    dot = ADDRESS_SIGNS["."][language == "zh"]
    parts = [spell(part, language) for part in match["address"].split(".")]
    spoken = join_words([word for part in parts for word in (dot, part)][1:])
    if match["port"]:
        spoken = join_words([spoken, {"zh": "端口", "en": "port"}[language], spell(match["port"], language)])
    return spoken


def _file(match: Match, language: Language) -> Outcome:
    return join_words([address_words(match["name"], language), str(_ending(match, language))])


def _ending(match: Match, language: Language) -> Outcome:
    """The .xlsx of 表格.xlsx."""
    ending = match["ending"]
    spoken = ending if ending.lower() in PLAIN_ENDINGS else _letters_and_digits(ending, language)
    return join_words([ADDRESS_SIGNS["."][language == "zh"], spoken])


def _letters_and_digits(ending: str, language: Language) -> str:
    return join_words(
        [integer(part, language) if part.isdigit() else letters(part) for part in re.findall(r"\d+|[A-Za-z]+", ending)]
    )


_COLOUR = re.compile(r"#(?=.*\d)(?:[0-9A-F]{3}|[0-9A-Fa-f]{6}|[0-9A-Fa-f]{8})")
_NUMBERED_BEFORE = re.compile(rf"\b(?:{alternatives(word_list('ordered'))})(?: no\.?| number|:)?\s?$", re.IGNORECASE | re.ASCII)


def _mention(match: Match, language: Language) -> Outcome:
    return join_words([ADDRESS_SIGNS["@"][language == "zh"], *_name_words(match["name"], language)])


def _hashtag(match: Match, language: Language) -> Outcome:
    if _COLOUR.fullmatch(match[0]) or match["name"].startswith(("键", "号键")) or before(match, 1) == "按":
        return None  # a colour; a key of a telephone
    if _NUMBERED_BEFORE.search(before(match, 16)) and re.match(r"[A-Z]{1,4}(?:\d|$)", match["name"]):
        return None  # Order #A10
    return join_words(["hashtag" if language == "en" else "话题", *_name_words(match["name"], language)])


def _name_words(name: str, language: Language) -> list[str]:
    words = []
    for part in re.findall(r"[A-Za-z]+|\d+|[\u4e00-\u9fff]+", name):
        if part.isdigit():
            words.append(integer(part, language))
        else:
            words.append(camel_words(part) if part.isascii() else part)
    return words


ADDRESSES: list[Rule] = [  # before dates and quantities, which look similar
    rule(
        "a",
        rf"{NOT_IN_WORD}(?:[Hh][Tt][Tt][Pp][Ss]?|[Ff][Tt][Pp])://(?P<host>[A-Za-z0-9.-]{{1,253}}(?<![.-])){_PATH}(?![A-Za-z0-9_/~%@-])",
        _url,
        "urls",
    ),
    rule("a0", rf"{NOT_IN_WORD}[A-Za-z0-9](?:[A-Za-z0-9._%+-]{{0,63}})@{_DOMAIN}", _address, "emails"),
    rule("a0", rf"{NOT_IN_WORD}(?P<host>{_DOMAIN}|localhost(?=[:/]\w)){_PATH}(?![A-Za-z0-9_/~%@-])", _url, "urls"),
    rule("0", r"(?P<address>\d{1,3}(?:\.\d{1,3}){3})(?!\.?\d)(?::(?P<port>\d{1,5})(?!\d))?(?:/\d{1,2}(?!\d))?", _ip, "urls"),
    rule(
        "a0",
        rf"{NOT_IN_WORD}(?P<name>(?:[A-Za-z0-9_.-]{{1,40}}/){{0,8}}[A-Za-z0-9][A-Za-z0-9_-]{{0,63}}(?:\.[A-Za-z0-9_-]{{1,20}}){{0,4}})\.(?P<ending>{alternatives(FILE_ENDINGS)})(?![A-Za-z0-9])",
        _file,
        "urls",
    ),
    rule(".", rf"(?<=[\u4e00-\u9fff)_])\.(?P<ending>{alternatives(FILE_ENDINGS)})(?![A-Za-z0-9])", _ending, "urls"),
    rule("/~", r"(?<![\w/.])~?(?:/[A-Za-z0-9._-]{1,64}){2,16}(?<!\.)/?", _address, "urls"),
    rule(
        "@",
        r"(?<![A-Za-z0-9])@(?P<name>[A-Za-z0-9_\u4e00-\u9fff][A-Za-z0-9_.-]{0,40}(?<![.-])|[\u4e00-\u9fff]{1,12})",
        _mention,
    ),
    rule(
        "#",
        r"(?<![A-Za-z0-9&])#(?P<name>(?:\d{1,4}(?=[A-Za-z]{3})|[A-Za-z\u4e00-\u9fff])[A-Za-z0-9_\u4e00-\u9fff]{0,60})#?",
        _hashtag,
    ),
]
