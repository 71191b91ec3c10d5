"""Abbreviations: reads shortened words: titles, streets, weekdays, months, states, everyday ones, and those of messages.

In:    matches of Latin words, most with a dot, some with a digit
Out:   words
Owns:  the tables of abbreviations that depend on the words beside them
Never: acronyms, numbers

The dot belongs to the abbreviation, except at the end of a sentence: there it is a stop as well.
"""

import re

from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import NOT_IN_WORD, SENTENCE_END
from pipeline.text.normalize.rule import Match, Outcome, Rule, after, alternatives, before, rule
from pipeline.text.normalize.tables import word_list, word_table
from pipeline.text.normalize.words import MONTHS, STATES

TITLES = word_table("title")  # before a name; those in _DOTLESS also without a dot
_DOTLESS = ("Mr", "Mrs", "Ms", "Mx", "Messrs", "Dr", "Drs", "Prof", "Capt", "Lt", "Sgt", "St", "Ft", "Mt", "Rev", "Sen", "Gov")
_STREETS = word_table("street")
_BEFORE_NUMBERS = word_table("before number")  # lower or upper case; a number follows
_DOTTED = word_table("dotted")  # with a dot, in this spelling or with a capital letter
_SURE = word_table("sure")
_NO_CAPITAL = ("max", "cont", "est")
_WEEKDAYS = word_table("weekday")
_SURE_DAYS = [day for day in _WEEKDAYS if day not in ("Sat", "Sun")]
_SHORT_MONTHS = {name[:3]: name for name in MONTHS if len(name) > 3} | {"Sept": "September"}
_SIDES = {"N": "North", "S": "South", "E": "East", "W": "West"}
_REGIONS = alternatives(word_list("regions"))
_TIME_WORD = r"(?:\d|[Aa]t\b|noon|midnight|morning|afternoon|evening|night|and\b|to\b|through\b|or\b|&)"

_NAMED_BEFORE = re.compile(r"(?:\b[A-Z][a-z]+(?:'s)?|\d(?:st|nd|rd|th)|\bof the \w+)\s$")
_STREET_BEFORE = re.compile(
    r"(?:\b\d{1,5}[A-Z]?\s(?:[A-Z][a-z]*\.?\s){0,2}|\b(?:on|at|to|along|down|off|near|of|from|and)\s)[A-Z][a-z]+\s$"
)
_UNIT_BEFORE = re.compile(r"\d\s?$")

_SOUNDS = word_table("sound")  # a digit stands for its sound
_SHORT = word_table("short")
_PAIRS = word_table("pair")
_CASELESS = frozenset(["gr8", "l8r", "2nite", "2day", "pls", "plz", "thx", "btw", "idk", "tbh", "brb", "nvm", "ppl", "msg"])
_LATER_AFTER = re.compile(r" (?:l8r|later|soon|then|there|tom|tmr|tonight|at|on|in|next|guys|all|around)")
_YOU_AFTER = re.compile(
    r" (?:are|r|can|have|got|owe|want|know|see|guys|think|need|should|could|were|did|gonna|wanna)\b", re.ASCII
)
_AMOUNT_BEFORE = re.compile(r"(?:\d|\b(?:thousand|million|billion|trillion))\s?$", re.ASCII)


def _keeps_capital(match: Match, spoken: str) -> str:
    return spoken[0].upper() + spoken[1:] if match["word"][0].isupper() else spoken


def _street(match: Match, language: Language) -> Outcome:
    """St and Dr are also titles: a street has a name before it and none behind it."""
    word = match["word"]
    context = before(match, 40)
    if not _NAMED_BEFORE.search(context):
        return None
    is_title = word in TITLES and re.match(r"\.?\s[A-Z]", match.string[match.end("word") : match.end("word") + 3])
    if is_title and not _STREET_BEFORE.search(context):
        return None
    return _STREETS[word]


def _before_number(match: Match, language: Language) -> Outcome:
    is_unit = match["word"].lower() != "ext" and _UNIT_BEFORE.search(before(match, 3))
    return None if is_unit else _keeps_capital(match, _BEFORE_NUMBERS[match["word"].lower()])


def _dotted(match: Match, language: Language) -> Outcome:
    return _keeps_capital(match, _DOTTED[match["word"].lower()])


def _care_of(match: Match, language: Language) -> Outcome:
    return {"c/o": "care of", "w/out": "without", "w/o": "without", "n/a": "not applicable", "y/o": "year old"}[
        match[0].lower()
    ]


def _cups(match: Match, language: Language) -> Outcome:
    """The c. of 3 c. flour, the T. and t. of spoons."""
    is_one = re.search(r"(?:(?<!\d )\b\d{1,2}/\d{1,2}|(?<![\d.])1|(?<!\d)(?<!\d )[½⅓⅔¼¾])\s$", before(match, 9))
    return {"c": "cup", "T": "tablespoon", "t": "teaspoon"}[match[0][0]] + ("" if is_one else "s")


def _known(match: Match, language: Language) -> Outcome:
    """Returns the words of a shortened one; in capitals it may be a name: M8 is a screw."""
    written = match[0]
    if written.endswith(" U") or (written == "C u" and not _LATER_AFTER.match(after(match, 9))):
        return None  # the letters R U
    if language != "en" or not (written.islower() or written.lower() in _CASELESS or written.lower() in _PAIRS):
        return None
    if written.startswith(("wk", "yr")) and _AMOUNT_BEFORE.search(before(match, 10)):
        return None  # 2 yrs: a unit
    words = (_SOUNDS | _SHORT | _PAIRS)[written.lower()]
    return words[0].upper() + words[1:] if written[0].isupper() else words


def _you(match: Match, language: Language) -> Outcome:
    """The u of "u owe me", not that of a formula."""
    return "you" if language == "en" and _YOU_AFTER.match(after(match, 8)) else None


def _cased(words: dict[str, str]) -> str:
    capitals = [word.capitalize() for word in words if word not in _NO_CAPITAL]
    return alternatives([*words, *capitals])


# The dot is consumed unless it ends the sentence.
_DOT = rf"(?:(?=\.{SENTENCE_END})|\.)"
_INNER_DOT = r"(?:\.(?=[,;:)-]|\s[a-z\d&(-]))?"
"""a dot that is certainly no stop"""
_WORD_EDGE = r"(?![A-Za-z0-9'])"
_CHAT_END = r"(?![A-Za-z0-9@_]|[-'.][A-Za-z0-9])"
CHAT: list[Rule] = [
    rule("0a", rf"{NOT_IN_WORD}(?<![@#_./-])(?i:{alternatives(_SOUNDS)}){_CHAT_END}", _known),
    rule("a", rf"{NOT_IN_WORD}(?<![@#_./-])(?i:{alternatives(_PAIRS)}){_CHAT_END}", _known),
    rule("a", rf"{NOT_IN_WORD}(?<![@#_./-])(?i:{alternatives(_SHORT)}){_CHAT_END}", _known),
    rule("a", rf"{NOT_IN_WORD}u{_CHAT_END}", _you),
]
_LETTER = r"(?:[B-HJ-Z]|A(?! [a-z]))(?![A-Za-z']|\.[A-Za-z]|\.\s[A-Z])"
"""that numbers an appendix: an A or I may begin a sentence"""
RULES: list[Rule] = [
    rule("a", r"(?:(?<=\d\s)|(?<=[½⅓⅔¼¾]\s))[cTt]\.(?=\s[a-z(])", _cups),
    rule("a", r"(?<=[\d)a-z] )inc\.(?=\s(?:GST|VAT|[a-z]))", ("including", None)),
    rule("a", r"(?:(?<=\d\s)|(?<=\d))ea\.?(?=\s?[,;.)]|\s[a-z]|$)", ("each", "each")),
    rule(
        "a", r"(?<=[a-z]\s)no\.(?=\s(?:is|was|of|on|for|in|and|or|to|will|has|must)\b|:|\s[A-Z]{1,4}-?\d)", ("number", "number")
    ),
    rule("a", r"(?<=[a-z.] )v\.(?= [A-Z])", ("versus", "诉")),
    rule("a", rf"{NOT_IN_WORD}(?i:vs)\.?(?![A-Za-z0-9])", (None, "对")),
    rule("a", r"(?<=\d )(?P<word>est)\.?(?=\s?[),;]|\s*$)", _SURE),
    rule("a", r"(?<=[+-])(?P<word>Del|Esc|Ins|Opt)(?![A-Za-z])", _SURE),
    rule("a", r"(?<=not )(?P<word>incl)(?![A-Za-z])(?:\.(?=[,;:)]|\s[a-z]))?", _SURE),
    rule("a", rf"{NOT_IN_WORD}(?P<word>AVE|BLVD|PKWY)(?!'?[A-Za-z0-9])(?:\.(?=,|\s[A-Z0-9]))?", _SURE),
    rule("a", rf"{NOT_IN_WORD}(?P<word>[Ll]at|[Ll]ong?)\.?(?=:?\s-?\d{{1,3}}(?:\.\d{{1,9}})?\s?°)", _SURE),
    rule("a", rf"{NOT_IN_WORD}(?P<word>Max|Min|Est|Cont)\.(?=\s[a-z])", _SURE),
    rule("a", rf"{NOT_IN_WORD}(?P<word>Hwy|HWY|Rte|Rt)\.?(?=\s\d)", _SURE),
    rule(
        "a",
        r"(?<=(?<=\d)(?:st|nd|rd|th) )(?P<word>[Ff]lr?|edn?|gen|qtr|cent|st|ave)(?![A-Za-z])(?:\.(?=[,;)]|\s[a-z(]))?",
        _SURE,
    ),
    rule("a", r"(?<![A-Za-z0-9])(?<![A-Za-z0-9][ '])(?P<word>Sat|Sun)(?=:\s)", _WEEKDAYS),
    rule("a", rf"{NOT_IN_WORD}(?i:c/o|w/out|w/o|n/a|y/o)(?![A-Za-z0-9])", _care_of),
    rule("a", rf"{NOT_IN_WORD}(?P<word>{alternatives(_STREETS)}){_WORD_EDGE}{_INNER_DOT}", _street),
    rule("a", rf"{NOT_IN_WORD}(?P<word>{alternatives(_DOTLESS)})\.?(?=\s[A-Z][a-z'.]|\s(?:and|&)\s(?:Mrs?|Ms|Dr)\b)", TITLES),
    rule("a", rf"{NOT_IN_WORD}(?P<word>{alternatives(TITLES)})\.(?=\s?[A-Z])", TITLES),
    rule("a", rf"{NOT_IN_WORD}(?P<word>{_cased(_BEFORE_NUMBERS)})\.(?=\s?\(?\d|(?<=[a-z]{{2}}\.) {_LETTER})", _before_number),
    rule("a", rf"{NOT_IN_WORD}(?<!-)(?P<word>p|pp|ch|fig|ext|apt|rm|nos|tel|Ext|Apt|Rm|Fig|Tel)\s(?=#?\d)", _before_number),
    rule("a", rf"{NOT_IN_WORD}(?P<word>{_cased(_DOTTED)}){_DOT}", _dotted),
    rule("a", rf"{NOT_IN_WORD}(?P<word>[Aa]ttn|[Tt]emp|[Qq]ty)(?=:)", _dotted),
    rule("a", rf"{NOT_IN_WORD}(?P<word>Co|Fig){_DOT}", _SURE),
    rule("a", rf"(?<=, )(?P<word>{alternatives(STATES)})(?:\.?(?=,)|{_INNER_DOT}(?<=\.)|(?=\.))", STATES),
    rule("a", rf"{NOT_IN_WORD}(?P<word>{alternatives(_SURE_DAYS)})(?:{_WORD_EDGE}{_DOT}?)", _WEEKDAYS),
    rule("a", rf"{NOT_IN_WORD}(?P<word>Sat|Sun)(?:\.(?=,|\s?[-–/]|\s{_TIME_WORD})|(?=,?\s\d|,?\s?(?:at|noon)\b))", _WEEKDAYS),
    rule(
        "a",
        rf"(?:(?<=on )|(?<=and )|(?<=or )|(?<=to )|(?<=, )|(?<=[-–/&])|(?<=& ))(?P<word>Sat|Sun)(?:{_INNER_DOT}(?<=\.)|(?=\.))",
        _WEEKDAYS,
    ),
    rule("a", rf"{NOT_IN_WORD}(?P<word>{alternatives(_SHORT_MONTHS)})(?:{_DOT}|(?=,?\s?(?:19|20)\d\d\b))", _SHORT_MONTHS),
    rule("a", rf"{NOT_IN_WORD}(?P<word>Feb|Aug|Sept|Oct|Nov|Dec){_WORD_EDGE}", _SHORT_MONTHS),
    rule(
        "a",
        r"(?:(?<=\bin )|(?<=early )|(?<=late )|(?<=mid )|(?<=mid-)|(?<=by )|(?<=since )|(?<=until )|(?<=last )|(?<=next ))"
        r"(?P<word>Jan)(?![A-Za-z])",
        _SHORT_MONTHS,
    ),
    rule("a", rf"{NOT_IN_WORD}(?P<word>[NSEW])\.?(?=\s(?:{_REGIONS})\b)", _SIDES),
    rule(
        "a",
        rf"{NOT_IN_WORD}(?P<word>[NSEW])\.?(?=\s(?:\d{{1,3}}(?:st|nd|rd|th)|[A-Z][a-z]+)\s(?:{alternatives(_STREETS)}|Street|Avenue|Road|Drive)\b)",
        _SIDES,
    ),
]
