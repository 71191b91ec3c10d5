"""Codes: what is read piece by piece: addresses of the web, telephone numbers, versions, names with digits, acronyms, words.

In:    matches of Latin words and of digits that count nothing
Out:   words
Owns:  nothing
Never: quantities, dates
"""

import re

from pipeline.text.normalize.numbers import integer, number, pairs, spell
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.rule import Gap, Match, Outcome, Rule, alternatives, before, rule
from pipeline.text.normalize.words import (
    ABBREVIATIONS,
    CONTRACTIONS,
    DOMAIN_WORDS,
    FILE_ENDINGS,
    GREEK,
    PLAIN_ENDINGS,
    SPELLED_ACRONYMS,
    TOP_LEVEL_DOMAINS,
    WORD_ACRONYMS,
)

MAX_WORD_LETTERS = 64  # WordPiece gives up at 100: a longer word would reach the model as one unknown token

_ADDRESS_SIGNS: dict[str, tuple[str, str]] = {
    ".": ("dot", "点"),
    "/": ("slash", "斜杠"),
    "-": ("dash", "杠"),
    "_": ("underscore", "下划线"),
    "@": ("at", "艾特"),
    ":": ("colon", "冒号"),
    "~": ("tilde", "波浪号"),
    "+": ("plus", "加"),
    "%": ("percent", "百分号"),
    "#": ("hash", "井号"),
    "&": ("and", "和"),
    "=": ("equals", "等于"),
    "?": ("question mark", "问号"),
}
_ADDRESS_PART = re.compile(r"[A-Za-z]+|\d+|[\u4e00-\u9fff]+|[^A-Za-z\d\u4e00-\u9fff]")
_VOWEL = re.compile(r"[AEIOUYaeiouy]")
_CAMEL = re.compile(r"[A-Z]{2,}(?=[A-Z][a-z])|[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]+|[A-Z]")
_CAPITALS = re.compile(r"\b[A-Z]{2,}\b")
_SHOUTING_WORDS = 3
_LONG_WORD = re.compile(rf"[A-Za-z]{{{MAX_WORD_LETTERS}}}(?=[A-Za-z])")
_DOMAIN = rf"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{{0,62}}[A-Za-z0-9])?\.){{1,6}}(?:{alternatives(TOP_LEVEL_DOMAINS)})(?![A-Za-z0-9])"
_PATH = r"(?::\d{1,5})?(?P<path>(?:/[A-Za-z0-9._~%+@-]{0,100}){0,12}?)(?P<rest>/?[?#][^\s\u3000-\uffff\"'<>)]{0,2000}|/)?"


def address_words(written: str, language: Language) -> str:
    """A web address, part by part: example dot com slash docs."""
    said = []
    for part in _ADDRESS_PART.findall(written):
        if part.isdigit():
            said.append(spell(part, language) if len(part) > 2 or part[0] == "0" else integer(part, language))
        elif part.isascii() and part.isalpha():
            said.append(_domain_word(part))
        elif part in _ADDRESS_SIGNS:
            said.append(_ADDRESS_SIGNS[part][language == "zh"])
        elif "\u4e00" <= part[0] <= "\u9fff":
            said.append(part)
    return _join(said)


def _join(words: list[str]) -> str:
    """Latin words apart, Chinese ones not."""
    said = ""
    for word in words:
        if not word:
            continue
        said += f" {word}" if said and said[-1].isascii() and word[0].isascii() else word
    return said


def _domain_word(word: str) -> str:
    if word.lower() in DOMAIN_WORDS or word.lower() in ("http", "https"):
        return word if word.lower() in DOMAIN_WORDS else letters(word)
    if len(word) <= 2 or word.lower() == "www" or not _VOWEL.search(word):
        return letters(word)
    return latin_word(word)


def letters(word: str) -> str:
    """Letter by letter, in capitals, as the package's own examples write T T S."""
    return " ".join(word.upper())


def is_acronym(word: str) -> bool:
    """Whether a word in capitals is said letter by letter."""
    if word in SPELLED_ACRONYMS:
        return True
    if word in WORD_ACRONYMS or not 2 <= len(word) <= 6 or not word.isupper():
        return False
    return (
        len(word) <= 3
        or not _VOWEL.search(word)
        or not re.search(r"[AEIOUY].*[AEIOUY]|^[^AEIOUY]{1,2}[AEIOUY][^AEIOUY]{1,2}$", word)
    )


def latin_word(word: str, *, shouting: bool = False) -> str:
    """A word of Latin letters: acronyms letter by letter, ChatTTS as Chat T T S."""
    if word.isupper():
        said = letters(word) if is_acronym(word) and not shouting else word
    elif re.search(r"[a-z][A-Z]{2,}|^[A-Z]{2,}[a-z]", word):
        said = _camel(word)
    else:
        said = word
    return _LONG_WORD.sub(r"\g<0> ", said)


def _camel(word: str) -> str:
    if re.fullmatch(r"[A-Z]{2,6}s", word):
        return f"{latin_word(word[:-1])} s" if is_acronym(word[:-1]) else word
    return " ".join(letters(part) if part.isupper() and len(part) > 1 else part for part in _CAMEL.findall(word))


def _is_shouting(match: Match) -> bool:
    """Whether a word in capitals stands among others, as in a headline: then it is no acronym."""
    text = match.string[max(0, match.start() - 40) : match.end() + 40]
    words = [word for word in re.findall(r"[A-Za-z]+", text) if len(word) > 1]
    capitals = sum(word.isupper() for word in words)
    return (
        capitals >= _SHOUTING_WORDS and capitals == len(words) and any(word in WORD_ACRONYMS or len(word) > 4 for word in words)
    )


def _url(match: Match, language: Language) -> Outcome:
    host = match["host"].removeprefix("www.")
    path = match["path"] or ""
    return address_words(host + path, language)


def _email(match: Match, language: Language) -> Outcome:
    return address_words(match[0], language)


def _ip(match: Match, language: Language) -> Outcome:
    dot = _ADDRESS_SIGNS["."][language == "zh"]
    parts = [spell(part, language) for part in match["address"].split(".")]
    said = _join([word for part in parts for word in (dot, part)][1:])
    if match["port"]:
        said = _join([said, {"zh": "端口", "en": "port"}[language], spell(match["port"], language)])
    return said


def _file(match: Match, language: Language) -> Outcome:
    name, ending = match["name"], match["ending"]
    said = ending if ending.lower() in PLAIN_ENDINGS else _letters_and_digits(ending, language)
    return _join([address_words(name, language), _ADDRESS_SIGNS["."][language == "zh"], said])


def _letters_and_digits(ending: str, language: Language) -> str:
    return _join(
        [integer(part, language) if part.isdigit() else letters(part) for part in re.findall(r"\d+|[A-Za-z]+", ending)]
    )


def _path(match: Match, language: Language) -> Outcome:
    return address_words(match[0], language)


def _mention(match: Match, language: Language) -> Outcome:
    words = [_camel_words(part) if not part.isdigit() else integer(part, language) for part in _name_parts(match["name"])]
    return _join([_ADDRESS_SIGNS["@"][language == "zh"], *words])


def _hashtag(match: Match, language: Language) -> Outcome:
    words = [_camel_words(part) if not part.isdigit() else integer(part, language) for part in _name_parts(match["name"])]
    return _join(["hashtag" if language == "en" else "话题", *words])


def _name_parts(name: str) -> list[str]:
    return re.findall(r"[A-Za-z]+|\d+|[\u4e00-\u9fff]+", name)


def _camel_words(part: str) -> str:
    if not part.isascii():
        return part
    return " ".join(latin_word(word) for word in _CAMEL.findall(part))


def _telephone(match: Match, language: Language) -> Outcome:
    return telephone_words(match[0], language)


def telephone_words(written: str, language: Language) -> str:
    """In groups with a pause between them: those written, or 3-4-4 for a Chinese mobile."""
    groups = re.findall(r"\d+", written)
    if len(groups) == 1 and len(groups[0]) == 11:
        groups = [groups[0][:3], groups[0][3:7], groups[0][7:]]
    plus = {"zh": "加", "en": "plus "}[language] if written.lstrip("( ").startswith("+") else ""
    comma = {"zh": "，", "en": ", "}[language]
    return plus + comma.join(spell(group, language, telephone=True) for group in groups)


def _telephone_en(match: Match, language: Language) -> Outcome:
    return telephone_words(match[0], "en") if language == "en" else None


def _dotted(match: Match, language: Language) -> Outcome:
    parts = match[0].split(".")
    return (" point " if language == "en" else "点").join(integer(part, language) for part in parts)


def _version(match: Match, language: Language) -> Outcome:
    parts = [integer(part, language) for part in match["number"].split(".")]
    if language == "en":
        return f"version {' point '.join(parts)}"
    return ("V" if len(match["v"]) == 1 else latin_word(match["v"])) + "点".join(parts)


def _model(match: Match, language: Language) -> Outcome:
    """GPT-4o, RTX4090, iPhone15, A320, H2O, PM2.5, COVID-19, B2B."""
    parts = re.findall(r"[A-Za-z]+|\d+(?:\.\d+)?", match[0])
    if "-" in match[0] and len(parts[0]) > 2 and parts[0].islower():
        return None  # mid-1990s, under-18
    if (
        re.fullmatch(r"[A-Za-z][24][A-Za-z]", match[0])
        and language == "en"
        and match[0].upper() in ("B2B", "B2C", "C2C", "P2P", "G2P")
    ):
        return f"{parts[0].upper()} to {parts[2].upper()}"
    said = []
    for index, part in enumerate(parts):
        if part[0].isdigit():
            said.append(_model_number(part, language))
        elif len(part) == 1 or (part.isupper() and (is_acronym(part) or len(parts) > 2)):
            said.append(letters(part) if index == 0 or part.isupper() else part)
        else:
            said.append(latin_word(part))
    return _join(said)


def _model_apart(match: Match, language: Language) -> Outcome:
    """RTX 4090, HTTP 404: a number behind an acronym is its name, not a count."""
    return _model(match, language) if is_acronym(match[0].split()[0]) else None


def _model_number(digits: str, language: Language) -> str:
    if "." in digits:
        return number(digits, language)
    if language == "en":
        return pairs(digits)
    return integer(digits, "zh") if len(digits) <= 2 or digits.endswith("00") else spell(digits, "zh", telephone=False)


def _number_letters(match: Match, language: Language) -> Outcome:
    """5G, 4K, 3D, 1080p, 4o, 2B: a number and the letters on it."""
    digits, tail = match["digits"], match["tail"]
    said = pairs(digits) if language == "en" else (integer(digits, "zh") if len(digits) <= 2 else spell(digits, "zh"))
    if len(digits) > 4 and language == "en":
        said = integer(digits, "en")
    return _join([said, tail.upper() if len(tail) == 1 and tail not in "o" else latin_word(tail)])


def _contraction(match: Match, language: Language) -> Outcome:
    written = match[0]
    known = CONTRACTIONS.get(written.lower())
    if known:
        return known[0].upper() + known[1:] if written[0].isupper() else known
    if written.lower().endswith("'s") and is_acronym(written[:-2]):
        return f"{letters(written[:-2])} s"
    return latin_word(written.replace("'", ""))


def _abbreviation(match: Match, language: Language) -> Outcome:
    return ABBREVIATIONS[match[0]]


def _last_abbreviation(match: Match, language: Language) -> Outcome:
    return "Street" if match[0] == "St" else ABBREVIATIONS[f"{match[0]}."]


def _saint(match: Match, language: Language) -> Outcome:
    return (
        "Saint"
        if re.match(r"\s[A-Z]", match.string[match.end() : match.end() + 2]) and not re.search(r"[A-Z]\w+\s$", before(match))
        else "Street"
    )


def _dotted_letters(match: Match, language: Language) -> Outcome:
    return letters(match[0].replace(".", ""))


def _and_between(match: Match, language: Language) -> Outcome:
    return f"{letters(match['a'])} and {letters(match['b'])}"


def _sharp(match: Match, language: Language) -> Outcome:
    return f"{match[1]} sharp"


def _plus_plus(match: Match, language: Language) -> Outcome:
    return _join([match[1], *([{"zh": "加", "en": "plus"}[language]] * 2)])


def _word(match: Match, language: Language) -> Outcome:
    word = match[0]
    return latin_word(word, shouting=word.isupper() and len(word) > 1 and _is_shouting(match))


def _greek(match: Match, language: Language) -> Outcome:
    sign = match[0].lower()
    return GREEK[sign][language == "zh"]


def _hyphen(match: Match, language: Language) -> Outcome:
    return Gap.SPACE


_NOT_IN_WORD = r"(?<![A-Za-z0-9])"
_ABBREVIATED = alternatives(list(ABBREVIATIONS))
_DOTLESS = alternatives([written[:-1] for written in ABBREVIATIONS if written.endswith(".")])
_LINE_END = r" {0,20}(?:\n|\Z)"
ADDRESSES: list[Rule] = [  # before dates and quantities, which their digits look like
    rule(
        "a",
        rf"{_NOT_IN_WORD}(?:[Hh][Tt][Tt][Pp][Ss]?|[Ff][Tt][Pp])://(?P<host>[A-Za-z0-9.-]{{1,253}}){_PATH}(?![A-Za-z0-9_/~%@-])",
        _url,
        "urls",
    ),
    rule("a0", rf"{_NOT_IN_WORD}[A-Za-z0-9](?:[A-Za-z0-9._%+-]{{0,63}})@{_DOMAIN}", _email, "emails"),
    rule("a0", rf"{_NOT_IN_WORD}(?P<host>{_DOMAIN}){_PATH}(?![A-Za-z0-9_/~%@-])", _url, "urls"),
    rule("0", r"(?P<address>\d{1,3}(?:\.\d{1,3}){3})(?![.\d])(?::(?P<port>\d{1,5})(?!\d))?(?:/\d{1,2}(?!\d))?", _ip, "urls"),
    rule(
        "a0",
        rf"{_NOT_IN_WORD}(?P<name>[A-Za-z0-9][A-Za-z0-9_-]{{0,63}})\.(?P<ending>{alternatives(FILE_ENDINGS)})(?![A-Za-z0-9])",
        _file,
        "urls",
    ),
    rule("/~", r"(?<![\w/.])~?(?:/[A-Za-z0-9._-]{1,64}){2,16}/?", _path, "urls"),
    rule(
        "@",
        r"(?<![A-Za-z0-9])@(?P<name>[A-Za-z0-9_\u4e00-\u9fff][A-Za-z0-9_.-]{0,40}(?<![.-])|[\u4e00-\u9fff]{1,12})",
        _mention,
    ),
    rule("#", r"(?<![A-Za-z0-9&])#(?P<name>[A-Za-z\u4e00-\u9fff][A-Za-z0-9_\u4e00-\u9fff]{0,60})#?", _hashtag),
    rule("0+(", r"(?<![\d.])(?:\+?86[- ]?)?1[3-9]\d(?:[- ]?)\d{4}(?:[- ]?)\d{4}(?![\d.])", _telephone, "phone"),
    rule(
        "0",
        r"(?<![\d.-])(?:0\d{2,3}[- ]\d{7,8}|[48]00[- ]\d{3}[- ]\d{4}|[48]00[- ]\d{4}[- ]\d{3}|0\d{2,3}-\d{4}-\d{4})(?![\d-])",
        _telephone,
        "phone",
    ),
    rule("+", r"\+\d{1,3}(?:[- ]?\(?\d{2,5}\)?){1,6}(?![\d])", _telephone, "phone"),
    rule("(0", r"(?<![\d.-])(?:1[- ])?(?:\(\d{3}\)\s?|\d{3}[-.])\d{3}[-.]\d{4}(?![\d-])", _telephone, "phone"),
    rule("0", r"(?<![\d.-])\d{3}-\d{4}(?![\d-])", _telephone_en, "phone"),
]
GROUPS: list[Rule] = [  # behind dates
    rule("0", r"(?<![\d.-])\d{1,7}(?:-\d{1,7}){2,6}(?![\d-])", _telephone, "phone"),
]
DOTTED: list[Rule] = [rule("0", r"\d{1,5}(?:\.\d{1,5}){2,7}(?!\.?\d)", _dotted, "numbers")]  # behind dates, before decimals
NAMES: list[Rule] = [  # behind them
    rule(
        "a",
        rf"{_NOT_IN_WORD}(?P<v>[vV]|[Vv]er(?:sion)?)\.?\s?(?P<number>\d{{1,5}}(?:\.\d{{1,5}}){{0,5}})(?![\dA-Za-z])",
        _version,
        "numbers",
    ),
    rule(
        "a",
        rf"{_NOT_IN_WORD}[A-Za-z]{{1,16}}[-]?\d{{1,8}}(?:\.\d{{1,4}})?(?:-?[A-Za-z]{{1,8}}(?![A-Za-z]))?(?![A-Za-z]*@)(?!\d)",
        _model,
        "numbers",
    ),
    rule("a", rf"{_NOT_IN_WORD}[A-Z]{{2,5}}\s\d{{3,4}}(?![\dA-Za-z]|[,.:-]\d)", _model_apart, "numbers"),
    rule("0", r"(?P<digits>\d{1,8})(?P<tail>[A-Za-z]{1,3})(?![A-Za-z0-9])", _number_letters, "numbers"),
    # At the end of a line the dot of an abbreviation is a stop as well.
    rule("a", rf"{_NOT_IN_WORD}(?:{_DOTLESS}|St)(?=\.{_LINE_END})", _last_abbreviation),
    rule("a", rf"{_NOT_IN_WORD}(?:[A-Za-z]\.){{1,7}}[A-Za-z](?=\.{_LINE_END})", _dotted_letters),
    rule("a", rf"{_NOT_IN_WORD}(?:{_ABBREVIATED})(?![A-Za-z0-9])", _abbreviation),
    rule("a", rf"{_NOT_IN_WORD}St\.", _saint),
    rule("a", rf"{_NOT_IN_WORD}(?:[A-Za-z]\.){{2,8}}(?![A-Za-z0-9])", _dotted_letters),
    rule("a", rf"{_NOT_IN_WORD}(?P<a>[A-Z]{{1,4}})\s?&\s?(?P<b>[A-Z]{{1,4}})(?![A-Za-z0-9])", _and_between),
    rule("a", rf"{_NOT_IN_WORD}([CF])#(?![A-Za-z0-9#])", _sharp),
    rule("a", rf"{_NOT_IN_WORD}([A-Za-z])\+\+(?![+])", _plus_plus),
    rule("a", r"[A-Za-z]{1,32}(?:'[A-Za-z]{1,10}){1,3}(?![A-Za-z'])", _contraction),
    rule("a", r"[A-Za-z]+", _word),
    rule("g", r"[α-ωΑ-Ω](?![α-ωΑ-Ω])(?<![α-ωΑ-Ω].)", _greek),
    rule("-", r"(?<=[A-Za-z0-9])-(?=[A-Za-z])", _hyphen),
]
