"""Teacher phones: the neural teacher's English phones as the project's phone characters.

In:    a string of misaki's American phones, stress marks included
Out:   phone characters, and how many of the teacher's characters belong to each
Owns:  the correspondence of the two alphabets
Never: words, audio

A stress mark belongs to the phone behind it and leaves no trace. A neutral vowel and the r behind it are one sound.
"""

import re
from functools import cache

from scripts.train_demo.phones import SYMBOLS

_NAMES = """
A:ey I:ay O:ow W:aw Y:oy Q:ow a:aa ɑ:aa ɒ:aa ɔ:ao æ:ae ʌ:ah ə:ax ᵊ:ax ɐ:ax ᵻ:ax e:eh ɛ:eh ɪ:ih i:iy u:uw ʊ:uh
ɜɹ:er əɹ:er ɜ:er ɚɹ:er ɝɹ:er ɚ:er ɝ:er b:b d:d f:f h:hh j:y k:k l:l m:m n:n p:p s:s t:t v:v w:w z:z
ɡ:g ŋ:ng ɹ:r ɾ:t T:t ʔ:t x:k ð:dh θ:th ʃ:sh ʒ:zh ʤ:jh ʧ:ch
"""
_SYMBOLS = {phones: SYMBOLS[name] for pair in _NAMES.split() for phones, name in [pair.split(":")]}


def symbols_of(phones: str) -> list[tuple[str, int]]:
    """Returns the phone characters of a word's phones, each with the number of characters of `phones` that it stands for.

    The numbers sum to the length of `phones`. A mark at the end, with no phone behind it, belongs to the last phone.

    Raises:
        ValueError: a phone is not one of the teacher's American ones, which the message names.
    """
    symbols: list[tuple[str, int]] = []
    for match in _pattern().finditer(phones):
        if match["phone"] is None:
            raise ValueError(f"{match['other']!r} in {phones!r} is no phone of the teacher's American English")
        symbols.append((_SYMBOLS[match["phone"]], len(match[0])))
    return symbols


@cache
def _pattern() -> re.Pattern[str]:
    longest_first = sorted(_SYMBOLS, key=len, reverse=True)
    return re.compile(rf"[ˈˌ]*(?:(?P<phone>{'|'.join(longest_first)})(?:[ˈˌ]+$)?|(?P<other>.))", re.DOTALL)
