"""Phones: the sounds of flite's American English, one character each, and how written words turn into them.

In:    a word
Out:   a string of phone characters
Owns:  the alphabet, the pronouncing dictionary (lexicon.txt), the letter rules for every other word
Never: audio, torch

Phone characters are small capitals and letters of the phonetic alphabet: no English text contains one, and lower-casing
keeps them.
"""

import re
from functools import cache
from pathlib import Path

LEXICON_FILE = Path(__file__).with_name("lexicon.txt")

_PAIRS = """
aa:ᴀ ae:æ ah:ʌ ao:ɔ aw:ꭥ ax:ə ay:ꭤ b:ʙ ch:ᴄ d:ᴅ dh:ð eh:ᴇ er:ɜ ey:ɛ
f:ꜰ g:ɢ hh:ʜ ih:ɪ iy:ɨ jh:ᴊ k:ᴋ l:ʟ m:ᴍ n:ɴ ng:ŋ ow:ᴏ oy:œ p:ᴘ
r:ʀ s:ꜱ sh:ʃ t:ᴛ th:θ uh:ʊ uw:ᴜ v:ᴠ w:ᴡ y:ʏ z:ᴢ zh:ʒ
"""
SYMBOLS = {name: symbol for pair in _PAIRS.split() for name, symbol in [pair.split(":")]}
STOPS = ".,?!"

# A word that is in no dictionary is read letter by letter, longest rule first. This is rough, but mostly intelligible.
LETTER_RULES: tuple[tuple[str, str], ...] = (
    (r"tion\b", "ʃəɴ"),
    (r"sion\b", "ʒəɴ"),
    (r"ight", "ꭤᴛ"),
    (r"ough", "ɔ"),
    (r"\bkn", "ɴ"),
    (r"\bwr", "ʀ"),
    (r"tch", "ᴄ"),
    (r"dge", "ᴊ"),
    *((letters, sound) for letters, sound in {"ch": "ᴄ", "sh": "ʃ", "th": "θ", "ph": "ꜰ", "wh": "ᴡ", "ck": "ᴋ"}.items()),
    *((letters, sound) for letters, sound in {"qu": "ᴋᴡ", "ng": "ŋ", "ee": "ɨ", "ea": "ɨ", "oo": "ᴜ", "oa": "ᴏ"}.items()),
    *((letters, sound) for letters, sound in {"ou": "ꭥ", "ow": "ꭥ", "oi": "œ", "oy": "œ", "ai": "ɛ", "ay": "ɛ"}.items()),
    *((letters, sound) for letters, sound in {"ey": "ɨ", "aw": "ɔ", "au": "ɔ", "ar": "ᴀʀ", "or": "ɔʀ"}.items()),
    *((f"{letters}(?![aeiouy])", sound) for letters, sound in {"er": "ɜ", "ir": "ɜ", "ur": "ɜ"}.items()),
    *((2 * letter, letter) for letter in "bcdfgklmnprstvz"),
    (r"a(?=[b-df-hj-np-tv-z]e\b)", "ɛ"),
    (r"i(?=[b-df-hj-np-tv-z]e\b)", "ꭤ"),
    (r"o(?=[b-df-hj-np-tv-z]e\b)", "ᴏ"),
    (r"u(?=[b-df-hj-np-tv-z]e\b)", "ᴜ"),
    (r"(?<=[^\W_])e\b", ""),
    (r"c(?=[eiy])", "ꜱ"),
    (r"\by", "ʏ"),
    (r"y\b", "ɨ"),
    (r"(?<=[aeiou])s\b", "ᴢ"),
    *((letter, sound) for letter, sound in {"a": "æ", "b": "ʙ", "c": "ᴋ", "d": "ᴅ", "e": "ᴇ", "f": "ꜰ", "g": "ɢ"}.items()),
    *((letter, sound) for letter, sound in {"h": "ʜ", "i": "ɪ", "j": "ᴊ", "k": "ᴋ", "l": "ʟ", "m": "ᴍ", "n": "ɴ"}.items()),
    *((letter, sound) for letter, sound in {"o": "ᴀ", "p": "ᴘ", "q": "ᴋ", "r": "ʀ", "s": "ꜱ", "t": "ᴛ"}.items()),
    *((letter, sound) for letter, sound in {"u": "ʌ", "v": "ᴠ", "w": "ᴡ", "x": "ᴋꜱ", "y": "ɪ", "z": "ᴢ"}.items()),
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
