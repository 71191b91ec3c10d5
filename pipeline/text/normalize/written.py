"""Written: rewrites a source text into plain signs for the rules, each character with its source position.

In:    str of any Unicode
Out:   Written: ASCII signs and digits, plain Latin letters, Chinese characters and a few signs with a reading of their own
Never: words, languages
"""

import html
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pipeline.text.normalize.edits import Edit
from pipeline.text.normalize.options import Reading
from pipeline.text.normalize.tables import word_table

OPAQUE = "\ue000"
"""stands for a control tag, a given reading or an emoji; private characters of the source are dropped before"""
UNREADABLE = "\ue001"
"""stands for an unreadable character: a drop with its own position, also in the middle of a word"""
SILENT_CODES = frozenset(["invisible", "mark"])
"""drops that do not interrupt a word"""

_SIGNS = word_table("plain sign") | dict.fromkeys("\n\r\v\f\x85\u2028\u2029", "\n") | {"\t": " "}
SPOKEN_SIGNS = frozenset(
    "²³¹⁰⁴⁵⁶⁷⁸⁹½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩⅪⅫⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹ°′″‰‱±×÷≈≠≤≥≡∞√∛∑∏∫∂∈∩∪∅∀∃∉⊂⊆∧∨¬∝∥⊥∠△⊙≌≅∽★☆∴∵∇π→←↑↓↔⌘⌥⇧⌃⏎↵⌫⎋⇥¶€£¥₩₹₽฿₫₺₿₱₪₴₦₸₾₡₲₵¢§©®™…—–，。、•○"
    "αβγδεζηθικλμνξοπρστυφχψωςΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΡΣΤΥΦΧΨΩ"
)
"""signs that some rule reads; any other that is no letter, digit or ASCII sign is dropped"""

_PLAIN = re.compile(r"[\x20-\x25\x27-\x7e\u4e00-\u9fff，。、]+")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,500}(?:\x07|\x1b\\)|[()][0-9A-B]|[=>78cDEHM])")
"""of a terminal: colours, movements, titles"""
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")

_PICTURE = (
    r"(?:[\U0001f1e6-\U0001f1ff]{2}|[\U0001f000-\U0001f1e5\U0001f200-\U0001faff\u2600-\u26ff\u2700-\u2712\u2714\u2716\u271d"
    r"\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763\u2764\u27b0\u27bf\u2b05-\u2b07\u2b1b\u2b1c"
    r"\u2b50\u2b55\u231a\u231b\u2328\u23cf\u23e9-\u23f3\u23f8-\u23fa\u203c\u2049\u3030\u303d\u3297\u3299])"
)
_ONE = rf"{_PICTURE}\ufe0f?[\U0001f3fb-\U0001f3ff]?(?:[\U000e0020-\U000e007e]{{1,8}}\U000e007f)?"
_EMOJI = re.compile(rf"{_ONE}(?:\u200d{_ONE}){{0,8}}")  # flags, skin tones, families, England


@dataclass(frozen=True, slots=True)
class Written:
    """The rewritten text. Character i stands for source characters [starts[i], stops[i]), which may be none."""

    text: str
    starts: list[int]
    stops: list[int]
    drops: list[tuple[int, int, str]]
    """source ranges that are dropped, and the reason, in order"""
    tags: dict[int, str]
    """place of an OPAQUE -> the control tag it stands for"""
    readings: dict[int, str]
    """place of an OPAQUE -> its spoken text"""
    emoji: dict[int, str]
    """place of an OPAQUE -> the emoji it stands for"""
    unreadable: dict[int, str]
    """place of an UNREADABLE -> the reason why it is dropped"""


def write(
    source: str, *, tags: Sequence[tuple[int, int]], readings: Sequence[Reading], edits: Sequence[Edit] = (), entities: bool
) -> Written:
    """Rewrites a source text for the rules.

    Args:
        tags: where the control tags are, in order.
        readings: given readings, in order; a tag that overlaps one is ignored.
        edits: what is not read as it stands, in order; one that overlaps a reading or a tag is ignored.
        entities: True: &amp; and the like become the characters they name.
    """
    writer = _Writer(source, entities)
    stretches: list[tuple[int, int, str | Edit | None]] = [
        (reading.start, reading.stop, reading.spoken) for reading in readings
    ]
    stretches += [(start, stop, None) for start, stop in tags]
    stretches += [(edit.start, edit.stop, edit) for edit in edits]
    place = 0
    for start, stop, reading in sorted(stretches, key=lambda stretch: stretch[:2]):
        if start >= place:
            writer.copy(place, start)
            writer.edit(reading) if isinstance(reading, Edit) else writer.opaque(start, stop, reading)
            place = stop
    writer.copy(place, len(source))
    return writer.written()


class _Writer:
    """Collects the rewritten text."""

    def __init__(self, source: str, entities: bool) -> None:
        self._source = source
        self._entities = entities
        self._parts: list[str] = []
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._drops: list[tuple[int, int, str]] = []
        self._tags: dict[int, str] = {}
        self._readings: dict[int, str] = {}
        self._emoji: dict[int, str] = {}
        self._unreadable: dict[int, str] = {}

    def written(self) -> Written:
        text = "".join(self._parts)
        assert len(text) == len(self._starts) == len(self._stops)
        notes = (self._drops, self._tags, self._readings, self._emoji, self._unreadable)
        return Written(text, self._starts, self._stops, *notes)

    def opaque(self, start: int, stop: int, reading: str | None) -> None:
        if reading is None:
            self._tags[len(self._starts)] = self._source[start:stop]
        else:
            self._readings[len(self._starts)] = reading
        self._put(OPAQUE, start, stop)

    def edit(self, edit: Edit) -> None:
        if edit.code:
            self._drop(edit.start, edit.stop, edit.code)
            self._put(edit.text, edit.stop, edit.stop)
        elif edit.text:
            self._put(edit.text, edit.start, edit.stop)
        elif self._stops and self._stops[-1] == edit.start:
            self._stops[-1] = edit.stop
        else:
            self._drop(edit.start, edit.stop, "invisible")

    def copy(self, start: int, stop: int) -> None:
        while start < stop:
            start = self._copy_next(start, stop)

    def _copy_next(self, place: int, stop: int) -> int:
        plain = _PLAIN.match(self._source, place, stop)
        if plain:
            self._parts.append(plain[0])
            self._starts.extend(range(place, plain.end()))
            self._stops.extend(range(place + 1, plain.end() + 1))
            return plain.end()
        sign = self._source[place]
        if sign == "&":
            entity = _ENTITY.match(self._source, place, stop) if self._entities else None
            if entity:
                self._character(html.unescape(entity[0])[0], place, entity.end())
                return entity.end()
            self._put("&", place, place + 1)
            return place + 1
        escape = _ESCAPE.match(self._source, place, stop) if sign == "\x1b" else None
        if escape:
            self._drop(place, escape.end(), "terminal_code")
            return escape.end()
        picture = None if sign in _SIGNS else _EMOJI.match(self._source, place, stop)
        if picture:
            self._emoji[len(self._starts)] = picture[0]
            self._put(OPAQUE, place, picture.end())
            return picture.end()
        self._character(sign, place, place + 1)
        return place + 1

    def _put(self, plain: str, start: int, stop: int) -> None:
        if not plain:
            return
        # The first character stands for the whole range, the others for its empty rest.
        self._parts.append(plain)
        self._starts.extend([start] + [stop] * (len(plain) - 1))
        self._stops.extend([stop] * len(plain))

    def _drop(self, start: int, stop: int, code: str) -> None:
        if self._drops and self._drops[-1][1:] == (start, code) and self._stops[-1:] != [start]:
            start = self._drops.pop()[0]
        self._drops.append((start, stop, code))

    def _character(self, character: str, start: int, stop: int) -> None:
        if unicodedata.category(character).startswith("M"):
            if self._stops and self._stops[-1] == start and len(self._stops) - 1 not in self._tags:
                self._stops[-1] = stop  # an accent: part of its letter, which is written without
            else:
                self._drop(start, stop, self._drops[-1][2] if self._drops and self._drops[-1][1] == start else "mark")
            return
        plain, code = _plain(character)
        if code in SILENT_CODES:
            self._drop(start, stop, code)
        elif code:
            self._unreadable[len(self._starts)] = code
            self._put(UNREADABLE, start, stop)
        elif plain[0].isdecimal() and self._parts and self._parts[-1][-1].isdigit() and unicodedata.category(character) != "Nd":
            self._put(f" {plain}", start, stop)  # 1① is not 11
        else:
            self._put(plain, start, stop)


@lru_cache(maxsize=8192)
def _plain(character: str) -> tuple[str, str]:
    """Returns the plain form of a character and "", or "" and the reason why it is dropped."""
    if character in _SIGNS:
        return _SIGNS[character], ""
    if character in SPOKEN_SIGNS or (character.isascii() and character.isprintable()):
        return character, ""
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.decimal(character)), ""
    if category.startswith("Z"):
        return " ", ""
    if category.startswith("C"):
        return "", {"Cs": "surrogate", "Co": "private_use", "Cn": "unassigned"}.get(category, "invisible")
    plain = "".join(_speakable(part) for part in unicodedata.normalize("NFKC", character))
    if plain:
        return plain, ""
    if category.startswith("L"):
        return "", "rare_character" if "CJK" in unicodedata.name(character, "") else "unsupported_script"
    return "", "symbol"


def _speakable(part: str) -> str:
    """Returns a part of a decomposed character without its accents; empty if no rule reads it."""
    if part in _SIGNS:
        return _SIGNS[part]
    base = unicodedata.normalize("NFD", part)[0]
    known = (base.isascii() and base.isprintable()) or base in SPOKEN_SIGNS or "\u4e00" <= base <= "\u9fff"
    return base if known and base != OPAQUE else _SIGNS.get(base, "")
