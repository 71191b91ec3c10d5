"""Pronunciations: the phones of the most frequent English words, as the neural teacher says them.

In:    wordfreq's list of words; the teacher's lexicon; flite's dictionary for words that are not in it
Out:   word -> phone characters
Owns:  which words; the sounds of -es, -ed and -ing
Never: audio
"""

import ctypes
import re
from collections.abc import Iterator
from functools import cache

from wordfreq import top_n_list

from scripts.train_demo.phones import SYMBOLS
from scripts.train_demo.sounds import sounds
from scripts.train_demo.teacher_phones import symbols_of

MOST_FREQUENT = 60_000
# The front end leaves the apostrophe out; the lexicon knows the word only with it. Not those that are then another word.
CONTRACTIONS = (
    "don't can't won't isn't aren't wasn't weren't doesn't didn't hasn't haven't hadn't couldn't wouldn't shouldn't mustn't "
    "that's what's here's there's who's where's how's let's it's he's she's i'm i've you're you've you'll you'd we've they're "
    "they've they'll they'd it'll it'd who'd could've might've needn't ain't y'all ma'am o'clock"
)


@cache
def pronunciations() -> dict[str, str]:
    """Returns word -> phone characters."""
    words = {word: word for word in top_n_list("en", MOST_FREQUENT) if re.fullmatch("[a-z]+", word)}
    words |= {word.replace("'", ""): word for word in CONTRACTIONS.split()}
    spoken = {plain: characters(word) for plain, word in words.items()}
    return {plain: phones for plain, phones in spoken.items() if phones}


def characters(word: str) -> str:
    """Returns the phone characters of a word, as it sounds before a consonant."""
    if phones := _phones(word) or next(_inflected(word), ""):
        return "".join(symbol for symbol, _ in symbols_of(phones))
    return "".join(SYMBOLS[phone] for phone in _dictionary(word))


def _phones(word: str) -> str:
    return "".join(unit.phones for unit in sounds(word) or ())


def _inflected(word: str) -> Iterator[str]:
    """Yields the phones of a word as a known one with an ending: `stopped`, `companies`, `making`."""
    for ending in ("es", "ed", "ing"):
        for stem in _stems(word.removesuffix(ending), ending) if word.endswith(ending) else ():
            if len(stem) > 2 and (phones := _phones(stem)):
                yield phones + _sound(ending, phones[-1])


def _stems(rest: str, ending: str) -> Iterator[str]:
    """Yields what a word may be without its ending, likeliest first; a name in -es is none."""
    if ending == "es":
        yield from (rest,) if re.search("[sxz]$|[cs]h$", rest) else ()
    elif re.search("[aeiou]{2}[a-z]$", rest):
        yield from (rest, rest + "e")
    else:
        yield from (rest + "e",) if re.fullmatch("[^aeiou]*[aeiou][bdgklmnprt]", rest) else (rest + "e", rest)
    if re.search(r"([b-df-hj-np-tv-z])\1$", rest):
        yield rest[:-1]
    if rest.endswith("i") and ending != "ing":
        yield rest[:-1] + "y"


def _sound(ending: str, last: str) -> str:
    """Returns the phones of an ending behind a phone."""
    if ending == "ing":
        return "ɪŋ"
    if ending == "ed":
        return "ᵻd" if last in "td" else "t" if last in "pkfθsʃʧ" else "d"
    return "ᵻz" if last in "szʃʒʧʤ" else "z"


def _dictionary(word: str) -> tuple[str, ...]:
    """Returns a word's phones by flite's dictionary, or by its letter-to-sound rules."""
    flite, lexicon = _flite()
    phones, value = [], flite.lex_lookup(lexicon, word.encode(), None, None)
    while value:
        phones.append(flite.val_string(flite.val_car(value)).decode().rstrip("012"))
        value = flite.val_cdr(value)
    return tuple(phones)


@cache
def _flite() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """Returns flite's library and its dictionary. Source: flite, include/cst_lexicon.h, include/cst_val.h."""
    flite = ctypes.CDLL("libflite.so.1", mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL("libflite_usenglish.so.1", mode=ctypes.RTLD_GLOBAL)
    lexicons = ctypes.CDLL("libflite_cmulex.so.1")
    flite.flite_init()
    lexicons.cmu_lex_init.restype = ctypes.c_void_p
    flite.lex_lookup.restype = ctypes.c_void_p
    flite.lex_lookup.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]
    flite.val_string.restype, flite.val_string.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    for name in ("val_car", "val_cdr"):
        getattr(flite, name).restype, getattr(flite, name).argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return flite, lexicons.cmu_lex_init()
