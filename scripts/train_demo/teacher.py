"""Teacher: flite, which taught the demo voice that ships: how it speaks a text, and how it reads a word.

In:    a text; a word
Out:   samples; phones
Owns:  one flite process per text, which ends before the function returns
Never: torch
"""

import ctypes
import shutil
import subprocess
import tempfile
import wave
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RATE = 16_000  # Hz
VOICE = "rms"


def speak(text: str) -> NDArray[np.float32]:
    """Synthesises a text: samples (n,) at RATE.

    Raises:
        FileNotFoundError: there is no flite; the message names the package.
    """
    flite = shutil.which("flite")
    if flite is None:
        raise FileNotFoundError("flite is not installed: install the Debian package flite")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spoken.wav"
        subprocess.run([flite, "-voice", VOICE, "-t", text, "-o", str(path)], capture_output=True, check=True)
        with wave.open(str(path)) as file:
            return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / np.float32(32768)


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
