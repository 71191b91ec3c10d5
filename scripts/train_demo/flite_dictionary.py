"""Flite's dictionary: how it reads an English word that the teacher's lexicon does not have.

In:    a word
Out:   phones
Never: audio
"""

import ctypes
from functools import cache


def dictionary(word: str) -> tuple[str, ...]:
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
