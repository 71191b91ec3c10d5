"""Chinese: simplifies runs of characters and replaces those that ChatTTS misreads.

In:    a run of Chinese characters
Out:   a run of Chinese characters, of the same length if OpenCC keeps it
Owns:  OpenCC's tables and the package's homophones, read once
Never: numbers, signs
"""

import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import opencc

FIRST, LAST = "一", "\u9fff"  # of the block ChatTTS was trained on
CANTONESE = frozenset("佢哋喺嘢唔冇嘅咗啲嚟睇冚嗰噉咁喎啱瞓諗嘥攞嗮唞踎孭啩")
"""characters of written Cantonese that Mandarin hardly ever uses"""


@cache
def simplifier() -> opencc.OpenCC:
    """Returns the converter of traditional to simplified characters, by phrases: 乾隆 stays, 乾脆 becomes 干脆."""
    return opencc.OpenCC("t2s")


@cache
def homophones() -> dict[int, str]:
    """Returns the characters ChatTTS misreads, each with a common one of the same sound.

    Source: ChatTTS/res/homophones_map.json, read from the installed package without importing it, which loads torch.
    """
    spec = find_spec("ChatTTS")
    assert spec is not None, "the ChatTTS package is a dependency of this one"
    assert spec.origin is not None
    table = json.loads((Path(spec.origin).parent / "res" / "homophones_map.json").read_text(encoding="utf-8"))
    return {ord(rare): common for rare, common in table.items()}


def plain_chinese(run: str, *, replace_homophones: bool) -> str:
    """Returns the run in simplified characters; with `replace_homophones`, rare ones become common ones of the same sound.

    A run with a Cantonese character keeps its rare ones: a Mandarin sound for each would give other words.
    """
    simplified = str(simplifier().convert(run))
    if len(simplified) == len(run):  # true for every phrase of the table
        simplified = "".join(map(_within_reach, run, simplified))
    return simplified if is_cantonese(run) or not replace_homophones else simplified.translate(homophones())


def is_cantonese(run: str) -> bool:
    """True if a run of Chinese characters has a character that only Cantonese uses."""
    return not CANTONESE.isdisjoint(run)


def kept_characters(text: str) -> int:
    """Returns the number of rare characters that were left in Cantonese runs of a spoken text."""
    runs = re.findall(f"[{FIRST}-{LAST}]+", text)
    return sum(ord(character) in homophones() for run in runs if is_cantonese(run) for character in run)


def is_chinese(text: str) -> bool:
    """True if all characters of a text are Chinese."""
    return all(FIRST <= character <= LAST for character in text)


def _within_reach(traditional: str, simplified: str) -> str:
    """Returns the simplified form, or the traditional one if that is outside the block the model knows."""
    return simplified if FIRST <= simplified <= LAST else traditional
