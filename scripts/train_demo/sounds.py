"""Sounds: a text as the teacher's phones, in units that the demo voice has tokens for.

In:    a text of English words, Chinese characters, and , . ? !
Out:   Unit
Owns:  which lexicon and which reading a word has
Never: audio

English is read by misaki's lexicons (Apache-2.0) as plain tables. `the`, `a` and `to` depend on the next sound. A Chinese
character is read in its word's context by pypinyin, and its syllable written in the teacher's phones by misaki.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files

import rjieba

from scripts.train_demo.phones import STOPS
from scripts.train_demo.syllables import readings, syllables

SPACE = " "
_PIECE = re.compile(rf"[A-Za-z']+|[\u4e00-\u9fff]+|[{STOPS}]")
_VOWELS = "AIOWYaeiouæɑɐɔəɛɜɪʊʌᵊᵻ"
_STRESSES = "ˈˌ"
_BEFORE_A_VOWEL = {"the": "ði", "a": "ɐn", "to": "tʊ"}
_BEFORE_A_CONSONANT = {"the": "ðə", "a": "ɐ", "to": "tə"}


@dataclass(frozen=True, slots=True)
class Unit:
    """A token of the demo voice and the teacher's phones that it stands for.

    An English phone carries its stress: `ˈA`; `##` stands before each but the first of a word. A syllable is pinyin: `zhong4`.
    """

    token: str
    phones: str


def sounds(text: str) -> tuple[Unit, ...] | None:
    """Returns the units of a text; None if a word or a sign of it is in no table."""
    if _PIECE.sub("", text).strip():
        return None
    pieces = _PIECE.findall(text)
    units: list[Unit] = []
    for place, piece in enumerate(pieces):
        own = _piece(piece, _first_sound(pieces[place + 1]) if place + 1 < len(pieces) else "")
        if own is None:
            return None
        if units and piece not in STOPS:
            units.append(Unit(SPACE, SPACE))
        units += own
    return tuple(units)


def _piece(piece: str, next_sound: str) -> list[Unit] | None:
    if piece in STOPS:
        return [Unit(piece, piece)]
    if piece[0] >= "\u4e00":
        return _chinese(piece)
    depends = _BEFORE_A_VOWEL if next_sound and next_sound in _VOWELS else _BEFORE_A_CONSONANT
    phones = depends.get(piece.lower()) or english_phones(piece)
    return _english_units(phones) if phones else None


def _first_sound(piece: str) -> str:
    phones = english_phones(piece) if piece[0].isascii() and piece not in STOPS else None
    return phones.lstrip(_STRESSES)[:1] if phones else ""


def _english_units(phones: str) -> list[Unit]:
    parts = re.findall(rf"[{_STRESSES}]?[^{_STRESSES}]", phones)
    return [Unit(part if place == 0 else f"##{part}", part) for place, part in enumerate(parts)]


def _chinese(run: str) -> list[Unit] | None:
    pinyin = readings(run)
    if len(pinyin) != len(run) or not all(syllable in syllables() for syllable in pinyin):
        return None
    units: list[Unit] = []
    spoken = iter(pinyin)
    for word in rjieba.cut(run):
        units += [Unit(SPACE, SPACE)] if units else []
        units += [Unit(own, _ipa(own)) for _, own in zip(word, spoken, strict=False)]  # the word first: it ends the pairs
    return units


@cache
def _ipa(syllable: str) -> str:
    phones: str = import_module("misaki.zh").ZHG2P.py2ipa(syllable.replace("v", "ü"))
    return phones.replace("\u032f", "")  # the mark of a glide, which the teacher's alphabet lacks


def english_phones(word: str) -> str | None:
    """Returns the phones of a word, with stress marks before vowels; None if no lexicon has it."""
    plain = word.replace("’", "'")
    for written in (plain, plain.lower(), plain.capitalize()):
        if entry := _lexicon().get(written):
            return entry
    for ending, stem in (("'s", plain[:-2]), ("s'", plain[:-1]), ("s", plain[:-1])):
        if plain.lower().endswith(ending) and len(stem) > 2 and (known := english_phones(stem)):
            return known if ending == "s'" else known + _plural(known[-1])
    return None


def _plural(last: str) -> str:
    return "ᵻz" if last in "szʃʒʧʤ" else "s" if last in "ptkfθ" else "z"


@cache
def _lexicon() -> dict[str, str]:
    words: dict[str, str] = {}
    for name in ("us_silver", "us_gold"):
        table = json.loads((files("misaki") / "data" / f"{name}.json").read_text(encoding="utf-8"))
        spoken = {word: entry if isinstance(entry, str) else entry["DEFAULT"] for word, entry in table.items()}
        words |= {word: phones for word, phones in spoken.items() if phones}
    return words
