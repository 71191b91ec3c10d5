"""Pronunciation: writes words as a checkpoint reads them aloud, where it brings a dictionary.

In:    a text; the checkpoint's asset/pronunciation.txt
Out:   the text with phone characters for English words, and with homophones in Chinese words
Owns:  the dictionary (read-only), the order of its rules
Never: numbers, the vocabulary

asset/pronunciation.txt is this project's file, and optional: ChatTTS's own checkpoint reads letters and has none. Each line
is a word and its phones, or a letter in its context and its phones: `o(u)gh ...`, where # is the border of the word. Of the
rules that fit a letter the widest counts. A Chinese word stands there if one of its characters is read otherwise than alone,
with a character of the same sound in its place: `音乐 音月`. The words are those of the
segmenter: 没收 is none in 没收到. Of English words that have two sounds (heteronyms.tsv) the words around them choose.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from pipeline.checkpoint.layout import PRONUNCIATION_FILE
from pipeline.checkpoint.manifest import read_manifest, read_verified
from pipeline.text.normalize.chinese import is_word, words_of

WINDOWS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (3, 4), (4, 4))
"""letters of context before and after a letter, from narrow to wide"""
BORDER = "#"
LONGEST_CHINESE_WORD = 5
HETERONYMS = Path(__file__).with_name("heteronyms.tsv")
_WORD_OR_TAG = re.compile(r"(\[\w+\])|([\u4e00-\u9fff]+)|[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Pronunciation:
    """Words and rules."""

    words: Mapping[str, str]
    rules: Mapping[str, str]

    def spoken(self, text: str) -> str:
        """Returns a text with phones for its English words and homophones in its Chinese ones; tags stay."""
        return "".join(spoken for _, _, spoken in self._pieces(text))

    def places(self, text: str) -> list[tuple[int, int]]:
        """Returns for each character of `spoken(text)` the characters [start, stop) of the text that it stands for."""
        return [(start, stop) for start, stop, spoken in self._pieces(text) for _ in spoken]

    def _pieces(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yields the parts of a text, one character or one word, and how each is spoken."""
        end = 0
        matches = list(_WORD_OR_TAG.finditer(text))
        for index, match in enumerate(matches):
            yield from ((at, at + 1, text[at]) for at in range(end, match.start()))
            start, end = match.span()
            tag, run = match.groups()
            if run:
                yield start, end, self._with_homophones(run)
            else:
                beside = (_neighbour(matches, index, -1), _neighbour(matches, index, 1))
                yield start, end, tag or self._in_context(match[0].lower(), *beside)
        yield from ((at, at + 1, text[at]) for at in range(end, len(text)))

    def _in_context(self, word: str, before: str, behind: str) -> str:
        """Returns the phones of a word between two others, which decide where it has two sounds."""
        heteronym = _heteronym(word)
        return heteronym.phones(before, behind) if heteronym else self.of(word)

    def _with_homophones(self, run: str) -> str:
        words = words_of(run)
        return "".join(map(self._chinese_word, words, [*words[1:], ""]))

    def _chinese_word(self, word: str, following: str) -> str:
        """Returns a word of a sentence with homophones; an entry counts as a word, or where it begins or ends one."""
        known = _rows().get(word, [self.words.get(word)])[0]
        if known is not None:
            is_torn = len(word) == 2 and len(following) == 1 and not _stands(word, behind=following)
            return word if is_torn else known
        for length in range(min(LONGEST_CHINESE_WORD, len(word) - 1), 1, -1):
            head, tail = word[:length], word[-length:]
            if head in self.words and _stands(head, behind=word[length:]):
                return self.words[head] + self._chinese_word(word[length:], "")
            if tail in self.words and _stands(tail, before=word[:-length]):
                return word[:-length] + self.words[tail]
        return word

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


def phones_of_ipa(written: str) -> str | None:
    """Returns the phones of a word in the International Phonetic Alphabet; None if one of its sounds is not of English."""
    sounds = dict(pair.split(":") for pair in _rows()["@ipa"][0].split())
    known = re.compile("|".join(sorted(map(re.escape, sounds), key=len, reverse=True)))
    plain = re.sub(r"[/\[\]\s\u0361ˈˌ.]", "", written)
    return known.sub(lambda match: sounds[match[0]], plain) if plain and not known.sub("", plain) else None


@dataclass(frozen=True, slots=True)
class _Heteronym:
    """A word of two sounds."""

    usual: str
    other: str
    kind: str
    """of the other: verb or noun; empty: only the words beside it tell"""
    before: frozenset[str]
    behind: frozenset[str]

    def phones(self, before: str, behind: str) -> str:
        is_other = before in self.before or behind in self.behind
        if not is_other and self.kind == "verb":
            is_other = before in _beside("@verb") or (behind in _beside("@object") and before not in _beside("@noun"))
        if not is_other and self.kind == "noun":
            is_other = before in _beside("@noun")
        return self.other if is_other else self.usual


def _neighbour(matches: list[re.Match[str]], index: int, step: int) -> str:
    """Returns the English word beside another one with only a blank between them; else an empty one."""
    if not 0 <= index + step < len(matches):
        return ""
    first, second = sorted((matches[index], matches[index + step]), key=re.Match.start)
    return matches[index + step][0].lower() if first.string[first.end() : second.start()] == " " else ""


def _stands(entry: str, *, before: str = "", behind: str = "") -> bool:
    """True if an entry is a word of its own beside the rest of its word, or a single character behind it. The tone of 一 and 不
    depends on what follows them alone."""
    if entry[0] in "一不" and not before:
        return True
    sides = ((before, before[-1:] + entry[0]), (behind, entry[-1] + behind[:1]))
    return all(not rest or (is_word(rest) if len(rest) > 1 else not is_word(joint)) for rest, joint in sides)


@cache
def _rows() -> dict[str, list[str]]:
    lines = HETERONYMS.read_text(encoding="utf-8").splitlines()
    return {word: columns for word, *columns in (line.split("\t") for line in lines if not line.startswith("#"))}


@cache
def _beside(kind: str) -> frozenset[str]:
    """Returns the words before a verb (@verb), before a noun (@noun) or behind a verb (@object)."""
    return frozenset(_rows()[kind][0].split())


@lru_cache(maxsize=1024)
def _heteronym(word: str) -> _Heteronym | None:
    columns = _rows().get(word, [])
    if len(columns) < 2:
        return None
    usual, other, kind, before, behind = columns
    return _Heteronym(usual, other, kind, frozenset(before.split()), frozenset(behind.split()))


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
