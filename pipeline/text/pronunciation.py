"""Pronunciation: writes words as a checkpoint reads them aloud, where it brings a dictionary.

In:    a text; the checkpoint's asset/pronunciation.txt
Out:   the text with phone characters for English words, and with homophones in Chinese words
Owns:  the dictionary (read-only), the order of its rules
Never: numbers, the vocabulary

asset/pronunciation.txt is this project's file, and optional: ChatTTS's own checkpoint reads letters and has none. Each line
is a word and its phones, or a letter in its context and its phones: `o(u)gh ...`, where # is the border of the word. Of the
rules that fit a letter the widest counts. A Chinese word stands there if one of its characters is read otherwise than alone,
with a character of the same sound in its place: `音乐 音月`. Of the words that begin at a character the longest counts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.checkpoint.layout import PRONUNCIATION_FILE
from pipeline.checkpoint.manifest import read_manifest, read_verified

WINDOWS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (3, 4), (4, 4))
"""letters of context before and after a letter, from narrow to wide"""
BORDER = "#"
LONGEST_CHINESE_WORD = 5
_WORD_OR_TAG = re.compile(r"(\[\w+\])|([\u4e00-\u9fff]+)|[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Pronunciation:
    """Words and rules."""

    words: Mapping[str, str]
    rules: Mapping[str, str]

    def spoken(self, text: str) -> str:
        """Returns a text with phones for its English words and homophones in its Chinese ones; tags stay."""
        return _WORD_OR_TAG.sub(self._written, text)

    def _written(self, match: re.Match[str]) -> str:
        tag, chinese = match.groups()
        return tag or (self._with_homophones(chinese) if chinese else self.of(match[0].lower()))

    def _with_homophones(self, run: str) -> str:
        parts, place = [], 0
        while place < len(run):
            words = (run[place : place + length] for length in range(LONGEST_CHINESE_WORD, 1, -1))
            word = next((word for word in words if word in self.words), run[place])
            parts.append(self.words.get(word, word))
            place += len(word)
        return "".join(parts)

    def places(self, text: str) -> list[tuple[int, int]]:
        """Returns for each character of `spoken(text)` the characters [start, stop) of the text that it stands for."""
        places: list[tuple[int, int]] = []
        end = 0
        for match in _WORD_OR_TAG.finditer(text):
            places += [(at, at + 1) for at in range(end, match.start())]
            places += [match.span()] * len(self.spoken(match[0]))
            end = match.end()
        return places + [(at, at + 1) for at in range(end, len(text))]

    def of(self, word: str) -> str:
        """Returns the phones of a lower-case word."""
        known = self.words.get(word)
        return known if known is not None else "".join(self._sound(word, place) for place in range(len(word)))

    def _sound(self, word: str, place: int) -> str:
        contexts = (context(word, place, width) for width in reversed(range(len(WINDOWS))))
        return next((self.rules[key] for key in contexts if key in self.rules), "")

    def file(self) -> bytes:
        """Returns the content of asset/pronunciation.txt."""
        lines = [f"{key} {phones}" for entries in (self.words, self.rules) for key, phones in sorted(entries.items())]
        return ("\n".join(lines) + "\n").encode()


def context(word: str, place: int, width: int) -> str:
    """Returns a letter of a word within a window, as rules are named."""
    before, after = WINDOWS[width]
    framed = f"{BORDER * before}{word}{BORDER * after}"
    at = place + before
    return f"{framed[at - before : at]}({framed[at]}){framed[at + 1 : at + 1 + after]}"


def read_pronunciation(root: Path) -> Pronunciation | None:
    """Returns the dictionary of the checkpoint in this folder; None if it has none.

    Raises:
        CheckpointError: the file is not the one in the manifest.
    """
    if not (root / PRONUNCIATION_FILE).exists() and PRONUNCIATION_FILE not in (read_manifest(root) or {}):
        return None
    lines = read_verified(root, PRONUNCIATION_FILE).decode().splitlines()
    entries = {key: phones for key, _, phones in (line.partition(" ") for line in lines)}
    rules = {key: phones for key, phones in entries.items() if "(" in key}
    return Pronunciation({key: phones for key, phones in entries.items() if key not in rules}, rules)
