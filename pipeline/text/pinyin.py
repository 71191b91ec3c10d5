"""Pinyin: turns syllables into characters that sound like them.

In:    syllables with tone numbers: `chong2 qing4`, `lv4`, `ma5`
Out:   one common character per syllable
Owns:  the table (read-only)
Never: words, the model (ChatTTS reads characters, so a sound is written as a character that has no other)
"""

import re
import unicodedata
from functools import lru_cache
from pathlib import Path

TABLE = Path(__file__).with_name("pinyin.txt")
"""written by scripts/generate/pinyin_table.py"""

SYLLABLE = re.compile(r"[a-zêü]{1,6}[1-5]")
_TONES = {"\u0304": "1", "\u0301": "2", "\u030c": "3", "\u0300": "4"}
"""accents of chóng qìng"""


def homophones(written: str) -> str | None:
    """Returns the characters for pinyin syllables; None if one of them is not a syllable of Mandarin.

    It accepts capitals, `u:` and `ü` for `v`, hyphens, apostrophes and stops between syllables, blanks before a tone,
    the tone 0 for 5, and accents in place of numbers.
    """
    table = _table()
    plain = re.sub(
        r"\s+(?=[0-5](?!\S*[a-z]))", "", written.lower().replace("u:", "v").replace("u\u0308", "ü").replace("ü", "v")
    )
    syllables = [_with_number(syllable) for syllable in re.findall(r"[^\s'’.,·_0-9-]+[0-9]?", plain)]
    characters = [table.get(syllable) for syllable in syllables]
    known = [character for character in characters if character is not None]
    return "".join(known) if known and len(known) == len(characters) else None


def _with_number(syllable: str) -> str:
    """Returns a syllable with its tone behind it: chong2 of chóng, ma5 of ma0."""
    letters = unicodedata.normalize("NFD", syllable).replace("u\u0308", "v")
    tone = next((_TONES[sign] for sign in letters if sign in _TONES), "")
    plain = "".join(sign for sign in letters if sign not in _TONES)
    return f"{plain[:-1]}5" if plain.endswith("0") else plain + tone


@lru_cache(maxsize=1)
def _table() -> dict[str, str]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return {syllable: character for syllable, _, character in (line.partition(" ") for line in lines)}
