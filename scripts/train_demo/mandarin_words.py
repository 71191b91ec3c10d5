"""Mandarin words: the frequent words in which a character is read otherwise than by itself.

In:    wordfreq's list of words, pypinyin's readings of words
Out:   word -> the same word in characters that are read so by themselves
Owns:  nothing
Never: audio, the checkpoint's files
"""

import re

from wordfreq import top_n_list

from pipeline.text.pinyin import homophones
from pipeline.text.pronunciation import LONGEST_CHINESE_WORD
from scripts.train_demo.syllables import CHARACTER, default_reading, readings

FREQUENT_WORDS = 60_000


def homophones_in_words() -> dict[str, str]:
    """Returns word -> its spelling with homophones, for words of two to LONGEST_CHINESE_WORD characters."""
    words = top_n_list("zh", FREQUENT_WORDS)
    spelled = {
        word: _spelled(word) for word in words if re.fullmatch(rf"{CHARACTER.pattern}{{2,{LONGEST_CHINESE_WORD}}}", word)
    }
    return {word: reading for word, reading in spelled.items() if reading != word}


def _spelled(word: str) -> str:
    spelled = []
    for character, reading in zip(word, readings(word), strict=True):
        same = character if default_reading(character) == reading else homophones(reading)
        spelled.append(same if same is not None and default_reading(same) == reading else character)
    return "".join(spelled)
