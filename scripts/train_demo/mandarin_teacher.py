"""Mandarin teacher: espeak-ng speaks pinyin and tells when each syllable begins and ends.

In:    pinyin with tone numbers: words, syllables of one word together, commas and full stops
Out:   Utterance
Owns:  the voices
Never: torch, characters

It is called through its C library, because only that returns the times of phonemes. One process, one thread.
Source: espeak-ng, src/include/espeak-ng/speak_lib.h.
"""

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import soxr
from numpy.typing import NDArray

LIBRARY = "libespeak-ng.so.1"
LANGUAGE = "cmn-latn-pinyin"
RATE = 16_000  # the other teacher's: no sound above 8 kHz
ORDINARY_WORDS_PER_MINUTE = 175
_SYNCHRONOUS, _PHONEME_EVENTS, _UTF8 = 2, 1, 1
_PHONEME = 7
_RATE_PARAMETER, _PITCH_PARAMETER, _RANGE_PARAMETER = 1, 3, 4
_SILENCES = frozenset(("_", "_:", ""))
_BREAK = "_|"
_SYLLABLE = re.compile(r"[a-z]+[1-5]")


@dataclass(frozen=True, slots=True)
class MandarinVoice:
    """A variant of espeak-ng's voice, its pitch and its range of pitch, 0 .. 99."""

    variant: str
    pitch: int
    pitch_range: int = 50


MANDARIN_VOICES = (MandarinVoice("", 38), MandarinVoice("+f2", 62), MandarinVoice("+m3", 58), MandarinVoice("+f4", 45))
"""that no recogniser learns from"""


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """Speech: samples (n,) float32 at RATE; each syllable's start, end of its first phoneme, and end [s]; silences between."""

    samples: NDArray[np.float32]
    syllables: tuple[tuple[str, float, float, float], ...]


class _Id(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("string", ctypes.c_char * 8), ("name", ctypes.c_char_p)]


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    ]


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class _Espeak:
    """The library, opened once per process."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise FileNotFoundError("espeak-ng is not installed: install the Debian package espeak-ng") from error
        self._rate = self._library.espeak_Initialize(_SYNCHRONOUS, 0, None, _PHONEME_EVENTS)
        self._samples: list[NDArray[np.float32]] = []
        self._events: list[tuple[str, float]] = []
        self._callback = _CALLBACK(self._receive)  # kept: the library holds only its address
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(
        self, text: str, voice: MandarinVoice, words_per_minute: int
    ) -> tuple[NDArray[np.float32], list[tuple[str, float]]]:
        """Returns samples (n,) at RATE, and every phoneme with its start [s]."""
        self._samples, self._events = [], []
        self._library.espeak_SetVoiceByName(f"{LANGUAGE}{voice.variant}".encode())
        for parameter, value in (
            (_RATE_PARAMETER, words_per_minute),
            (_PITCH_PARAMETER, voice.pitch),
            (_RANGE_PARAMETER, voice.pitch_range),
        ):
            self._library.espeak_SetParameter(parameter, value, 0)
        written = text.encode()
        self._library.espeak_Synth(written, len(written) + 1, 0, 0, 0, _UTF8, None, None)
        samples = np.concatenate(self._samples) if self._samples else np.zeros(0, np.float32)
        return soxr.resample(samples, self._rate, RATE).astype(np.float32), self._events

    def _receive(self, samples: "ctypes._Pointer[ctypes.c_short]", count: int, events: "ctypes._Pointer[_Event]") -> int:
        if samples and count:
            self._samples.append(np.ctypeslib.as_array(samples, (count,)).astype(np.float32) / np.float32(32768))
        index = 0
        while events[index].type:
            if events[index].type == _PHONEME:
                self._events.append((events[index].id.string.decode(errors="replace"), events[index].sample / self._rate))
            index += 1
        return 0


_espeak = cache(_Espeak)


def speak(text: str, voice: MandarinVoice, words_per_minute: int = ORDINARY_WORDS_PER_MINUTE) -> Spoken | None:
    """Synthesises pinyin; returns None if the phonemes are not those of its syllables.

    Raises:
        FileNotFoundError: there is no espeak-ng; the message names the package.
    """
    samples, events = _espeak().speak(text, voice, words_per_minute)
    found = _matched(_SYLLABLE.findall(text), events, len(samples) / RATE)
    return None if found is None else Spoken(samples, tuple(found))


def _matched(
    wanted: Sequence[str], events: Sequence[tuple[str, float]], end: float
) -> list[tuple[str, float, float, float]] | None:
    starts = [start for _, start in events] + [end]
    place, found = 0, []
    for syllable in wanted:
        phonemes = _phonemes(syllable[:-1])
        while place < len(events) and events[place][0] in (*_SILENCES, _BREAK):
            place += 1
        if tuple(name for name, _ in events[place : place + len(phonemes)]) != phonemes:
            return None
        found.append((syllable, starts[place], starts[place + 1], starts[place + len(phonemes)]))
        place += len(phonemes)
    return found if all(name in (*_SILENCES, _BREAK) for name, _ in events[place:]) else None


@cache
def _phonemes(plain: str) -> tuple[str, ...]:
    """Returns the phonemes of a syllable by itself."""
    _, events = _espeak().speak(f"{plain}1", MandarinVoice("", 50), ORDINARY_WORDS_PER_MINUTE)
    return tuple(name for name, _ in events if name not in (*_SILENCES, _BREAK))
