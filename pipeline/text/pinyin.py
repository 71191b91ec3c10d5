"""Pinyin: turns syllables into characters that sound like them.

In:    syllables with tone numbers: `chong2 qing4`, `lv4`, `ma5`
Out:   one common character per syllable
Owns:  the table (read-only)
Never: words, the model (ChatTTS reads characters, so a sound is written as a character that has no other)
"""

import re
from functools import lru_cache
from pathlib import Path

TABLE = Path(__file__).with_name("pinyin.txt")
"""written by scripts/generate/pinyin_table.py"""

SYLLABLE = re.compile(r"[a-zêü]{1,6}[1-5]")


def homophones(written: str) -> str | None:
    """Returns the characters for pinyin syllables; None if one of them is not a syllable of Mandarin.

    It accepts capitals, `u:` and `ü` for `v`, and hyphens or apostrophes between syllables.
    """
    table = _table()
    syllables = re.findall(r"[^\s'’-]+", written.lower().replace("u:", "v").replace("ü", "v"))
    characters = [table.get(syllable) for syllable in syllables]
    known = [character for character in characters if character is not None]
    return "".join(known) if known and len(known) == len(characters) else None


@lru_cache(maxsize=1)
def _table() -> dict[str, str]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return {syllable: character for syllable, _, character in (line.partition(" ") for line in lines)}
