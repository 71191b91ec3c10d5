"""Held out: the sentences that are judged, by kind, so that no corpus has them.

In:    held_out.txt
Out:   sentences
Owns:  the kinds
Never: audio
"""

import re
from functools import cache
from pathlib import Path
from typing import Literal

FILE = Path(__file__).with_name("held_out.txt")
Kind = Literal["words", "digits", "everyday", "balanced", "names", "mandarin", "mixed"]


@cache
def held_out(kind: Kind) -> tuple[str, ...]:
    """Returns the sentences of a kind."""
    sections = re.split(r"^# ", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = next(section.splitlines() for section in sections if section.splitlines()[:1] == [kind])
    return tuple(line for line in lines[1:] if line)


@cache
def held_out_texts() -> frozenset[tuple[str, ...] | str]:
    """Returns every sentence as its words, or as its characters where it has some."""
    texts = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    characters = ("".join(re.findall(r"[\u4e00-\u9fff]", text)) for text in texts)
    return frozenset(words or tuple(re.findall("[a-z']+", text.lower())) for words, text in zip(characters, texts, strict=True))
