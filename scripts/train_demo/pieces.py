"""Pieces: parts of an utterance, each with its sound, its tokens, and the time of every token.

In:    English text, pinyin, a speaker, a pace
Out:   Piece
Owns:  how words get tokens: of English the phones that flite really spoke, of Mandarin one token per syllable
Never: mel frames, the corpus's files
"""

import ctypes
import re
from dataclasses import dataclass
from functools import cache

import numpy as np
import soxr
from numpy.typing import NDArray

from scripts.train_demo import mandarin_teacher, teacher
from scripts.train_demo.mandarin_teacher import MandarinVoice
from scripts.train_demo.phones import SILENCE, STOPS, SYMBOLS
from scripts.train_demo.syllables import parts_of
from scripts.train_demo.teacher import SPEAKERS

RATE = mandarin_teacher.RATE
LOUDNESS = 0.13  # root mean square of flite's speech; espeak-ng's is brought to it
MOST_DIFFERENT = 0.3  # phones of a sentence that are not the dictionary's; beyond it the words cannot be found
MANDARIN_VOICES = (MandarinVoice("", 38), MandarinVoice("+f2", 62), MandarinVoice("+m3", 58), MandarinVoice("+f4", 45))
"""of SPEAKERS, in their order"""


@dataclass(frozen=True, slots=True)
class Span:
    """A sound: start and end [s], the index of its token, the row of the vocabulary that the model must name."""

    start: float
    end: float
    place: int
    sound: str


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Samples (n,) float32 at RATE, tokens, and the sounds in order, without gaps."""

    samples: NDArray[np.float32]
    tokens: tuple[str, ...]
    spans: tuple[Span, ...]


def english(text: str, speaker: int, pace: float = 1.0) -> Piece | None:
    """Returns flite's speech; None if its phones are not those of the words."""
    utterance = teacher.speak(text, SPEAKERS[speaker], pace)
    words = re.findall(rf"[a-z']+|[{STOPS}]", text)
    spoken = [name for name, _ in utterance.phones if name != SILENCE]
    marked = _marked(words, spoken)
    if marked is None:
        return None
    tokens, places = marked
    spans: list[Span] = []
    start, next_ = 0.0, 0
    for name, end in utterance.phones:
        if name == SILENCE:
            after = places[next_ - 1] + 1 if next_ else 0
            place = after if after < len(tokens) and tokens[after] in STOPS else max(after - 1, 0)
            spans.append(Span(start, end, place, tokens[place]))
        else:
            spans.append(Span(start, end, places[next_], tokens[places[next_]]))
            next_ += 1
        start = end
    samples = soxr.resample(utterance.samples, utterance.rate, RATE).astype(np.float32)
    return Piece(samples, tuple(tokens), tuple(spans))


def _marked(words: list[str], spoken: list[str]) -> tuple[list[str], list[int]] | None:
    """Returns tokens with stops and marks within words, and the place of each spoken phone."""
    expected = [(index, phone) for index, word in enumerate(words) if word not in STOPS for phone in dictionary(word)]
    owners = _owners(expected, spoken)
    if owners is None:
        return None
    tokens: list[str] = []
    places: list[int] = []
    for index, word in enumerate(words):
        own = [phone for phone, owner in zip(spoken, owners, strict=True) if owner == index]
        if word in STOPS:
            tokens.append(word)
        elif not own:
            return None
        for number, phone in enumerate(own):
            places.append(len(tokens))
            tokens.append(f"##{SYMBOLS[phone]}" if number else SYMBOLS[phone])
    return tokens, places


def _owners(expected: list[tuple[int, str]], spoken: list[str]) -> list[int] | None:
    """Returns the word of each spoken phone, along the shortest edit from the dictionary's phones."""
    rows, columns = len(expected), len(spoken)
    cost = [[float(column) for column in range(columns + 1)]]
    for row, (_, phone) in enumerate(expected, start=1):
        above, line = cost[-1], [float(row)]
        for column, other in enumerate(spoken, start=1):
            line.append(min(above[column] + 1, line[-1] + 1, above[column - 1] + _difference(phone, other)))
        cost.append(line)
    if rows == 0 or cost[rows][columns] > MOST_DIFFERENT * max(rows, columns):
        return None
    owners = [0] * columns
    i, j = rows, columns
    while j:
        if i and cost[i][j] == cost[i - 1][j - 1] + _difference(expected[i - 1][1], spoken[j - 1]):
            i, j = i - 1, j - 1
            owners[j] = expected[i][0]
        elif i and cost[i][j] == cost[i - 1][j] + 1:
            i -= 1
        else:
            j -= 1
            owners[j] = expected[max(i - 1, 0)][0]
    return owners


@cache
def _difference(first: str, second: str) -> float:
    both_vowels = first[0] in "aeiou" and second[0] in "aeiou"
    return 0.0 if first == second else 0.5 if both_vowels else 1.0


@cache
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


def mandarin(pinyin: str, speaker: int, pace: float = 1.0) -> Piece | None:
    """Returns espeak-ng's speech; None if its phonemes are not those of the syllables."""
    words_per_minute = round(mandarin_teacher.ORDINARY_WORDS_PER_MINUTE * pace)
    spoken = mandarin_teacher.speak(pinyin, MANDARIN_VOICES[speaker], words_per_minute)
    if spoken is None:
        return None
    tokens = re.findall(rf"[a-z]+[1-5]|[{STOPS}]", pinyin)
    spans: list[Span] = []
    at = 0.0
    syllables = iter(spoken.syllables)
    for place, token in enumerate(tokens):
        if token in STOPS:
            continue
        _, start, inner, end = next(syllables)
        if start > at:  # silence belongs to the stop before, if there is one
            before = max(place - 1, 0)
            spans.append(Span(at, start, before, tokens[before] if tokens[before] in STOPS else STOPS[1]))
        initial, final, _ = parts_of(token)
        if initial != "initial:" and inner < end:
            spans += [Span(start, inner, place, initial), Span(inner, end, place, final)]
        else:
            spans.append(Span(start, end, place, final))
        at = end
    length = len(spoken.samples) / RATE
    if length > at:
        last = len(tokens) - 1
        spans.append(Span(at, length, last, tokens[last] if tokens[last] in STOPS else STOPS[1]))
    return Piece(_levelled(spoken.samples), tuple(tokens), tuple(spans))


def laugh(speaker: int, syllables: int) -> Piece | None:
    """Returns a laugh: short syllables in the speaker's voice."""
    utterance = teacher.speak(" ".join(["ha"] * syllables), SPEAKERS[speaker], 1.9)
    voiced = [index for index, (name, _) in enumerate(utterance.phones) if name != SILENCE]
    begin = utterance.phones[voiced[0] - 1][1] if voiced[0] else 0.0
    end = utterance.phones[voiced[-1]][1]
    samples = utterance.samples[int(begin * utterance.rate) : int(end * utterance.rate)]
    sounded = soxr.resample(samples, utterance.rate, RATE).astype(np.float32)
    return Piece(sounded, ("[laugh]",), (Span(0.0, len(sounded) / RATE, 0, "[laugh]"),))


def breath(seconds: float, seed: int) -> Piece:
    """Returns a pause with a breath: soft noise that swells and fades."""
    count = int(seconds * RATE)
    noise = np.random.default_rng(seed).standard_normal(count)
    shaped = np.convolve(noise, np.hanning(7) / np.hanning(7).sum(), "same")
    swell = np.clip(np.sin(np.linspace(0, np.pi, count)), 0, 1) ** 4
    samples = (0.012 * shaped * swell).astype(np.float32)
    return Piece(samples, ("[uv_break]",), (Span(0.0, count / RATE, 0, "[uv_break]"),))


def joined(pieces: list[Piece]) -> Piece:
    """Returns the pieces one after another."""
    samples: list[NDArray[np.float32]] = []
    tokens: list[str] = []
    spans: list[Span] = []
    for piece in pieces:
        shift, first = sum(len(one) for one in samples) / RATE, len(tokens)
        spans += [Span(one.start + shift, one.end + shift, one.place + first, one.sound) for one in piece.spans]
        samples.append(piece.samples)
        tokens += piece.tokens
    return Piece(np.concatenate(samples), tuple(tokens), tuple(spans))


def trimmed(piece: Piece, lead: float, trail: float) -> Piece:
    """Returns the piece with at most so much silence [s] before its first sound and after its last."""
    sounding = [one for one in piece.spans if one.sound not in STOPS]
    begin = max(0.0, sounding[0].start - lead)
    end = min(sounding[-1].end + trail, len(piece.samples) / RATE)
    spans = [
        Span(max(one.start, begin) - begin, min(one.end, end) - begin, one.place, one.sound)
        for one in piece.spans
        if one.end > begin and one.start < end
    ]
    return Piece(piece.samples[int(begin * RATE) : int(end * RATE)], piece.tokens, tuple(spans))


def _levelled(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    loud = samples[np.abs(samples) > 0.01]
    level = float(np.sqrt(np.mean(loud**2))) if len(loud) else 1.0
    clipped: NDArray[np.float32] = np.clip(samples * np.float32(LOUDNESS / level), -1, 1)
    return clipped
