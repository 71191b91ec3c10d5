"""Chinese: runs of characters, simplified, and their misread ones replaced.

In:    a run of Chinese characters
Out:   a run of Chinese characters
Owns:  OpenCC's tables and the package's homophones, read once
Never: numbers, signs
"""

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import opencc

FIRST, LAST = "一", "\u9fff"  # of the block ChatTTS was trained on


@cache
def simplifier() -> opencc.OpenCC:
    """Traditional to simplified, by phrases: 乾隆 stays, 乾脆 becomes 干脆."""
    return opencc.OpenCC("t2s")


@cache
def homophones() -> dict[int, str]:
    """Characters ChatTTS misreads -> a common one of the same sound.

    Source: ChatTTS/res/homophones_map.json, read from the installed package without importing it, which loads torch.
    """
    spec = find_spec("ChatTTS")
    assert spec is not None, "the ChatTTS package is a dependency of this one"
    assert spec.origin is not None
    table = json.loads((Path(spec.origin).parent / "res" / "homophones_map.json").read_text(encoding="utf-8"))
    return {ord(rare): common for rare, common in table.items()}


def plain_chinese(run: str, *, replace_homophones: bool) -> str:
    """Traditional characters become simplified ones, then, when asked, rare ones become common ones of their sound."""
    simplified = str(simplifier().convert(run))
    if len(simplified) == len(run):  # as every phrase of the table has it
        simplified = "".join(map(_within_reach, run, simplified))
    return simplified.translate(homophones()) if replace_homophones else simplified


def _within_reach(traditional: str, simplified: str) -> str:
    """Some simplified forms lie outside the block the model knows: these stay as they are written."""
    return simplified if FIRST <= simplified <= LAST else traditional
