"""Syllables: the sounds of Mandarin: a syllable is an initial, a final and a tone, and a character has a default one.

In:    pinyin with tone numbers, characters
Out:   parts of syllables
Owns:  the lists of initials, finals and syllables
Never: audio, torch

The syllables are those of the front end's table of homophones, so every reading that it can write is known.
"""

import re
from functools import cache

from pypinyin import Style, lazy_pinyin
from pypinyin.contrib.tone_convert import to_finals, to_initials

from pipeline.text.pinyin import TABLE

TONES = tuple("12345")  # 5: neutral
NOT_TAUGHT = re.compile(r"ê|^(m|n|ng|hm|hng)\d")  # interjections
CHARACTER = re.compile(r"[\u4e00-\u9fff〇]")


@cache
def syllables() -> dict[str, tuple[str, str, str]]:
    """Returns syllable -> initial (may be empty), final, tone: `zhong4` -> `zh`, `ong`, `4`."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    known = {syllable[:-1] for syllable in (line.split()[0] for line in lines) if not NOT_TAUGHT.search(syllable)}
    return {
        f"{plain}{tone}": (to_initials(plain, strict=True), _final(plain), tone) for plain in sorted(known) for tone in TONES
    }


def _final(plain: str) -> str:
    """Returns the final; pinyin writes three sounds as `i`: zhi, zi and ji."""
    final = to_finals(plain, strict=True, v_to_u=False)
    buzzed = {"zh": "i-retroflex", "ch": "i-retroflex", "sh": "i-retroflex", "r": "i-retroflex"}
    return (buzzed | dict.fromkeys("zcs", "i-dental")).get(to_initials(plain, strict=True), final) if final == "i" else final


@cache
def parts() -> tuple[str, ...]:
    """Returns the parts of all syllables, once each: initials, finals, tones."""
    triples = list(syllables().values())
    return (
        *sorted({f"initial:{initial}" for initial, _, _ in triples}),
        *sorted({f"final:{final}" for _, final, _ in triples}),
        *(f"tone:{tone}" for tone in TONES),
    )


def parts_of(syllable: str) -> tuple[str, str, str]:
    """Returns a syllable's initial, final and tone, as named by `parts`."""
    initial, final, tone = syllables()[syllable]
    return f"initial:{initial}", f"final:{final}", f"tone:{tone}"


def readings(text: str) -> list[str]:
    """Returns the syllables of a text of characters, read in its words' context."""
    return [syllable.replace("ü", "v") for syllable in lazy_pinyin(text, style=Style.TONE3, neutral_tone_with_five=True)]


@cache
def default_reading(character: str) -> str | None:
    """Returns the syllable of a character by itself; None if it has none that is taught."""
    candidates = readings(character)
    return candidates[0] if len(candidates) == 1 and candidates[0] in syllables() else None
