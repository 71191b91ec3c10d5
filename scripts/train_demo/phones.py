"""Phones: the sounds of flite's American English, one character each, and how written words turn into them.

In:    a word
Out:   a string of phone characters
Owns:  the alphabet, the pronouncing dictionary (lexicon.txt), the letter rules for every other word
Never: audio, torch

Phone characters are capital letters of three alphabets: no text that was lower-cased first contains one.
"""

import re
from functools import cache
from pathlib import Path

LEXICON_FILE = Path(__file__).with_name("lexicon.txt")

_PAIRS = """
aa:A ae:Æ ah:Λ ao:Ɔ aw:Ω ax:Ə ay:Ī b:B ch:C d:D dh:Ð eh:E er:Ɜ ey:Ē
f:F g:G hh:H ih:I iy:Ĩ jh:J k:K l:L m:M n:N ng:Ŋ ow:O oy:Œ p:P
r:R s:S sh:Ʃ t:T th:Θ uh:Ʊ uw:U v:V w:W y:Y z:Z zh:Ʒ
"""
SYMBOLS = {name: symbol for pair in _PAIRS.split() for name, symbol in [pair.split(":")]}
SILENCE = "pau"
STOPS = ".,"

# A word that is in no dictionary is read letter by letter, longest rule first. This is rough, but mostly intelligible.
LETTER_RULES: tuple[tuple[str, str], ...] = (
    (r"tion\b", "ƩƏN"),
    (r"sion\b", "ƷƏN"),
    (r"ight", "ĪT"),
    (r"ough", "Ɔ"),
    (r"\bkn", "N"),
    (r"\bwr", "R"),
    (r"tch", "C"),
    (r"dge", "J"),
    *((letters, sound) for letters, sound in {"ch": "C", "sh": "Ʃ", "th": "Θ", "ph": "F", "wh": "W", "ck": "K"}.items()),
    *((letters, sound) for letters, sound in {"qu": "KW", "ng": "Ŋ", "ee": "Ĩ", "ea": "Ĩ", "oo": "U", "oa": "O"}.items()),
    *((letters, sound) for letters, sound in {"ou": "Ω", "ow": "Ω", "oi": "Œ", "oy": "Œ", "ai": "Ē", "ay": "Ē"}.items()),
    *((letters, sound) for letters, sound in {"ey": "Ĩ", "aw": "Ɔ", "au": "Ɔ", "ar": "AR", "or": "ƆR"}.items()),
    *((f"{letters}(?![aeiouy])", sound) for letters, sound in {"er": "Ɜ", "ir": "Ɜ", "ur": "Ɜ"}.items()),
    *((2 * letter, letter) for letter in "bcdfgklmnprstvz"),
    (r"a(?=[b-df-hj-np-tv-z]e\b)", "Ē"),
    (r"i(?=[b-df-hj-np-tv-z]e\b)", "Ī"),
    (r"o(?=[b-df-hj-np-tv-z]e\b)", "O"),
    (r"u(?=[b-df-hj-np-tv-z]e\b)", "U"),
    (r"(?<=[^\W_])e\b", ""),
    (r"c(?=[eiy])", "S"),
    (r"\by", "Y"),
    (r"y\b", "Ĩ"),
    (r"(?<=[aeiou])s\b", "Z"),
    *((letter, sound) for letter, sound in {"a": "Æ", "b": "B", "c": "K", "d": "D", "e": "E", "f": "F", "g": "G"}.items()),
    *((letter, sound) for letter, sound in {"h": "H", "i": "I", "j": "J", "k": "K", "l": "L", "m": "M", "n": "N"}.items()),
    *((letter, sound) for letter, sound in {"o": "A", "p": "P", "q": "K", "r": "R", "s": "S", "t": "T"}.items()),
    *((letter, sound) for letter, sound in {"u": "Λ", "v": "V", "w": "W", "x": "KS", "y": "I", "z": "Z"}.items()),
)


@cache
def lexicon() -> dict[str, str]:
    """Returns word -> phone characters: the taught words first, then the others, in the file's order."""
    return {word: symbols for _, word, symbols in _entries()}


@cache
def taught_words() -> tuple[str, ...]:
    """Returns the words of the corpus."""
    return tuple(word for mark, word, _ in _entries() if mark == "taught")


def pronounce(word: str) -> str:
    """Returns the phone characters of a lower-case word."""
    if word in lexicon():
        return lexicon()[word]
    for pattern, sound in LETTER_RULES:
        word = re.sub(pattern, sound, word)
    return word


def _entries() -> list[tuple[str, str, str]]:
    """Returns (`taught` or `known`, word, phone characters) for each line."""
    lines = LEXICON_FILE.read_text(encoding="utf-8").splitlines()
    return [(mark, word, symbols) for line in lines for mark, word, symbols in [line.split()]]
