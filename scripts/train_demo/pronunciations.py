"""Pronunciations: the phones of the most frequent English words, as flite says them.

In:    wordfreq's list of words; flite's dictionary
Out:   word -> phone characters
Owns:  which words
Never: audio
"""

import re
from functools import cache

from wordfreq import top_n_list

from scripts.train_demo.phones import SYMBOLS, lexicon
from scripts.train_demo.pieces import dictionary

MOST_FREQUENT = 60_000
# The front end leaves the apostrophe out; flite knows the word only with it.
CONTRACTIONS = (
    "don't can't won't isn't aren't wasn't weren't doesn't didn't hasn't haven't hadn't couldn't wouldn't shouldn't mustn't "
    "that's what's here's there's who's where's how's let's it's he's she's"
)


@cache
def pronunciations() -> dict[str, str]:
    """Returns word -> phone characters."""
    words = [word for word in top_n_list("en", MOST_FREQUENT) if re.fullmatch("[a-z]+", word)]
    found = {word: characters(dictionary(word)) for word in words}
    found |= {word.replace("'", ""): _contracted(word) for word in CONTRACTIONS.split()}
    return {word: phones for word, phones in (found | lexicon()).items() if phones}


def characters(phones: tuple[str, ...]) -> str:
    """Returns phones by flite's names as characters."""
    return "".join(SYMBOLS[phone] for phone in phones)


def _contracted(word: str) -> str:
    stem, _, rest = word.partition("'")
    irregular = {"don't": "d ow n t", "won't": "w ow n t", "can't": "k ae n t", "let's": "l eh t s"}
    if word in irregular:
        return characters(tuple(irregular[word].split()))
    if rest == "t":
        is_one_syllable = stem in ("aren", "weren")
        return characters((*dictionary(stem.removesuffix("n")), *(() if is_one_syllable else ("ax",)), "n", "t"))
    voiceless = dictionary(stem)[-1] in ("p", "t", "k", "f", "th")
    return characters((*dictionary(stem), "s" if voiceless else "z"))
