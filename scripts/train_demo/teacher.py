"""Teacher: flite, which synthesises a sentence and prints the end time of each phone.

In:    text, a voice, a pace
Out:   Utterance
Owns:  one flite process per sentence, which ends before the function returns
Never: torch

The voices rms and slt, each also shifted towards the other: synthesised slower or faster and played at another rate. That
moves pitch and formants together and keeps the pace. The four voices lie on a line from deep to high.
"""

import ctypes
import shutil
import subprocess
import tempfile
import wave
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RATE = 16_000  # flite's


@dataclass(frozen=True, slots=True)
class Speaker:
    """A teacher's voice and its place on the line from rms (-1) to slt (+1)."""

    name: str
    flite_voice: str
    shift: float  # of pitch and formants
    place: float


SPEAKERS = (
    Speaker("rms", "rms", 1.0, -1.0),
    Speaker("slt", "slt", 1.0, 1.0),
    Speaker("rms-high", "rms", 1.19, -0.33),
    Speaker("slt-low", "slt", 0.85, 0.33),
)


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """Speech of flite: samples (n,) float32 at `rate`, and every phone with its end [s], silences included."""

    samples: NDArray[np.float32]
    rate: int
    phones: tuple[tuple[str, float], ...]


def speak(text: str, speaker: Speaker, pace: float = 1.0) -> Utterance:
    """Synthesises a text with a speaker's voice; a pace of 2 is twice as fast as the ordinary one.

    Raises:
        FileNotFoundError: there is no flite; the message names the package.
    """
    flite = shutil.which("flite")
    if flite is None:
        raise FileNotFoundError("flite is not installed: install the Debian package flite")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spoken.wav"
        stretch = speaker.shift / pace
        slower = ("--setf", f"duration_stretch={stretch}") if stretch != 1.0 else ()
        command = [flite, "-voice", speaker.flite_voice, *slower, "-psdur", "-t", text, "-o", str(path)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        with wave.open(str(path)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / np.float32(32768)
    ends = (entry.rsplit(":", 1) for entry in printed.split())
    phones = tuple((name, float(end) / speaker.shift) for name, end in ends)
    return Utterance(samples, round(RATE * speaker.shift), phones)


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
