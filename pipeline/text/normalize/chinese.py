"""Chinese: runs of characters, simplified, and their misread ones replaced.

In:    a run of Chinese characters
Out:   a run of Chinese characters of the same length, as far as OpenCC keeps it
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
"""characters Cantonese is written with and Mandarin hardly ever"""


@cache
def simplifier() -> opencc.OpenCC:
    """Traditional to simplified, by phrases: 乾隆 stays, 乾脆 becomes 干脆."""
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
    """Traditional characters become simplified ones, then, with `replace_homophones`, rare ones common ones of their sound.

    A run with a Cantonese character in it keeps its rare ones: a Mandarin sound for each would make other words of them.
    """
    simplified = str(simplifier().convert(run))
    if len(simplified) == len(run):  # as every phrase of the table has it
        simplified = "".join(map(_within_reach, run, simplified))
    return simplified if is_cantonese(run) or not replace_homophones else simplified.translate(homophones())


def is_cantonese(run: str) -> bool:
    """Whether a run of Chinese characters is Cantonese, as far as one character tells."""
    return not CANTONESE.isdisjoint(run)


def kept_characters(text: str) -> int:
    """Returns how many rare characters in Cantonese runs of a spoken text were left as they are."""
    runs = re.findall(f"[{FIRST}-{LAST}]+", text)
    return sum(ord(character) in homophones() for run in runs if is_cantonese(run) for character in run)


def is_chinese(text: str) -> bool:
    """Whether a text is a run of Chinese characters and nothing else."""
    return all(FIRST <= character <= LAST for character in text)


def _within_reach(traditional: str, simplified: str) -> str:
    """Returns the simplified form, or the traditional one if the former lies outside the block the model knows."""
    return simplified if FIRST <= simplified <= LAST else traditional
