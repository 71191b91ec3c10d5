"""Shadow: the text that rules are matched against: of the same length, in simplified characters, numbers in one spelling.

In:    a written text
Out:   a text of the same length, position by position
Owns:  the spellings of a number that differ from 1,234.50 and 10:30
Never: words, spans

A rule needs one spelling of a word or a number, whoever wrote it: 買了2張 is 买了2张, 12 500 and 12'500 are 12,500,
1.234.567,89 is 1,234,567.89 and 10.30am is 10:30am. The characters themselves are OpenCC's (Apache-2.0), by phrases.
"""

import re

from pipeline.text.normalize.chinese import FIRST, LAST, simplifier
from pipeline.text.normalize.chinese_codes import CODE_BEFORE as CHINESE_CODE_BEFORE
from pipeline.text.normalize.codes import CALL_BEFORE, CODE_BEFORE

_SPELLING = re.compile(
    r"(?<![\d.,:/'A-Za-z])(?<!\d )(?<![\dA-Z.][-–])(?:"
    r"(?P<points>\d{1,3}(?:\.\d{3}){2,5}(?:,\d{1,2})?|\d{1,3}\.\d{3},\d\d?)(?![\d.,]*\d)"
    r"|(?P<apostrophes>\d{1,3}(?:'\d{3}){1,5}(?:\.\d{1,2})?)(?!['.]?\d)"
    r"|(?P<blanks>[1-9]\d{0,2}(?: \d{3}){1,5})(?![\d:/-]| \d|[.,]\d{3,}|-\d)"
    r"|(?P<comma>\d{1,3},\d\d?)(?=\s?(?:kg|km|cm|mm|m|g|l|ml|°C|%|€|EUR|euros?|million|billion|percent|hours?|points?|degrees)(?![A-Za-z0-9]))"
    r"|(?P<span>(?:0?[6-9]|1\d|2[0-3])\.[0-5][05]\s?[-–]\s?(?:0?[6-9]|1\d|2[0-3])\.[0-5][05])"
    r"(?=\s?(?:[.,;:!?)](?!\d)|$|\n|(?:daily|on|every|and|or|each|[MTWFS][a-z]{2})\b))"
    r"|(?P<halves>(?:[01]?\d|2[0-4])\.[0-5]\d\s?(?:[-–]|to|until|and)\s?(?:[01]?\d|2[0-4])\.[0-5]\d)"
    r"(?=\s?(?:[AaPp]\.?[Mm]\b|o'clock|hrs\b))"
    r"|(?P<hours>[01]?\d|2[0-4])(?P<point>\.)(?P<minutes>[0-5]\d)"
    r"(?=\s?(?:[AaPp]\.?[Mm]\b|o'clock|hrs\b|(?:on|this|every) [A-Z][a-z]{2,5}day|tonight|tomorrow|sharp|"
    r"(?:train|bus|flight|ferry|news|show|service|tram|coach|boat|appointment|performance|slot)\b|"
    r"in the (?:morning|afternoon|evening)))"
    r"|(?P<clock>(?:0?[6-9]|1\d|2[0-3])\.[0-5][05])(?=\s?(?:[.,;:!?)](?!\d)|$|\n|(?:and|or|from|on|for|but)\b))"
    r")",
    re.ASCII,
)
_MAY_BE_SPELLING = re.compile(r"\d[ .,']\d")
_IP = re.compile(r"(?:25[0-5]|2[0-4]\d|1\d\d)(?:\.(?:25[0-5]|2[0-4]\d|1\d\d)){3}")
_VERSION = re.compile(r"(?:version|release|build|\bver\.?|\bv)\s?$", re.IGNORECASE)
_TIMED = re.compile(
    r"(?<!price )(?<!shares )(?<!stock )\b(?i:arriv|depart|leav|start|begin|meet|land|dinner|lunch|breakfast|doors|kick-?off|"
    r"train|bus|flight|ferry|tram|coach|film|concert|goes|sail|runs|home|check-?in|wake|woke|(?:opens?|closes?)\b)[^.!?\d]{0,24}\b(?:at|by|until|till|before|after|from|around|about)\s$"
)
"""what stands before 18.45 where it is an hour"""
_COUNTED = re.compile(r"\s?(?:[$€£¥%°]|[a-z]{2,}|[A-Z]{3}\b|[\u4e00-\u9fff]|[mglLtWV]\b)|[,.;]\d{1,2}\b", re.ASCII)
_SIZE = re.compile(r"[ -](?:watt|volt|mg|ml|gram|page|word|year|piece|hp|calorie|foot|inch)\b", re.ASCII)
"""what "3 100 watt bulbs" has behind its second number"""


def shadow(text: str) -> str:
    """Returns a text of the same length for the rules to match."""
    if not text.isascii():
        text = _simplified(text)
    return _SPELLING.sub(_one_spelling, text) if _MAY_BE_SPELLING.search(text) else text


def _simplified(text: str) -> str:
    """Returns the text in simplified characters, of those that the model knows; by phrases, where these keep its length."""
    simple = str(simplifier().convert(text))
    if len(simple) != len(text):
        simple = "".join(converted if len(converted := simplifier().convert(sign)) == 1 else sign for sign in text)
    return "".join(new if FIRST <= new <= LAST else old for old, new in zip(text, simple, strict=True))


def _one_spelling(match: re.Match[str]) -> str:
    written = match[0]
    if match["span"] or match["halves"]:
        return written.replace(".", ":")
    if match["point"]:
        return f"{match['hours']}:{match['minutes']}"
    if match["clock"]:
        return written.replace(".", ":") if _TIMED.search(match.string[max(0, match.start() - 40) : match.start()]) else written
    if match["comma"]:
        return written.replace(",", ".")
    if match["points"]:
        is_name = _IP.fullmatch(written) or _VERSION.search(match.string[max(0, match.start() - 10) : match.start()])
        return written if is_name else written.translate(_SWAPPED)
    if match["apostrophes"]:
        return written.replace("'", ",")
    return written.replace(" ", ",") if _is_count(match) else written


def _is_count(match: re.Match[str]) -> bool:
    """True for 60 000 people and 12 500 dollars; neither a telephone number nor two numbers side by side."""
    text, stop = match.string, match.end()
    before = text[max(0, match.start() - 36) : match.start()]
    if any(pattern.search(before) for pattern in (CALL_BEFORE, CODE_BEFORE, CHINESE_CODE_BEFORE)):
        return False
    groups = match[0].split(" ")
    if len(groups) > 2 or groups[-1] == "000":
        return True
    if len(groups[0]) == 1 and _SIZE.match(text, stop):
        return False
    return bool(_COUNTED.match(text, stop)) or before.endswith(("$", "€", "£", "¥", "CHF "))


_SWAPPED = str.maketrans(".,", ",.")
