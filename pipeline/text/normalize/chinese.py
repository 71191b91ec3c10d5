"""Chinese: cuts runs of characters into words, replaces those that ChatTTS misreads, and recognises what is not Mandarin.

In:    a run of simplified characters
Out:   its words, of the same length together
Owns:  OpenCC's tables and ChatTTS's homophones, read once
Never: numbers, signs
"""

import json
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import opencc

HOMOPHONES = Path(__file__).resolve().parents[1] / "homophones_map.json"
FIRST, LAST = "一", "\u9fff"  # of the block ChatTTS was trained on
DIALECT_WORD = re.compile(
    f"唔(?=[{FIRST}-{LAST}])|[佢哋喺嘢冇嘅咗啲嚟睇冚嗰噉咁喎啱瞓諗谂嘥攞嗮唞踎孭啩乜畀揾搵餸劏揸攰冧叻嗌嗱奀嚿掟閪覅朆伓嘸]"
)
"""a character that Cantonese or another Chinese language uses, and Mandarin hardly ever"""
SENTENCE = re.compile(r"[^。！？!?\n]+")


@cache
def _segmenter() -> ModuleType:
    """Returns jieba in Rust. Importing it reads the dictionary: 0.4 s and 33 MB, for processes that read Chinese."""
    return import_module("rjieba")


def words_of(run: str) -> list[str]:
    """Returns the words of a run; together they are the run."""
    return list(_segmenter().cut(run)) if len(run) > 1 else [run]


def is_word(text: str) -> bool:
    """True if the segmenter's dictionary has it."""
    return bool(_segmenter().has_word(text))


@cache
def simplifier() -> opencc.OpenCC:
    """Returns the converter of traditional to simplified characters, by phrases: 乾隆 stays, 乾脆 becomes 干脆."""
    return opencc.OpenCC("t2s")


@cache
def homophones() -> dict[int, str]:
    """Returns the characters ChatTTS misreads, each with a common one of the same sound.

    Source: ChatTTS/res/homophones_map.json of the ChatTTS package, unchanged.
    """
    table = json.loads(HOMOPHONES.read_text(encoding="utf-8"))
    return {ord(rare): common for rare, common in table.items()}


def chinese_words(run: str, *, replace_homophones: bool) -> list[str]:
    """Returns the words of a run in simplified characters; with `replace_homophones`, rare characters become common ones."""
    words = words_of(run)
    return [word.translate(homophones()) for word in words] if replace_homophones else words


def dialect_sentences(text: str) -> list[tuple[int, int]]:
    """Returns the sentences [start, stop) with a word that is not Mandarin. They keep their rare characters: the table has
    Mandarin sounds, which would make other words of them."""
    return [match.span() for match in SENTENCE.finditer(text) if DIALECT_WORD.search(match[0])]


def is_chinese(text: str) -> bool:
    """True if all characters of a text are Chinese."""
    return all(FIRST <= character <= LAST for character in text)
