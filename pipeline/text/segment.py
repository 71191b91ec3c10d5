"""Segments: cuts speakable text into pieces that are synthesised as one sequence each, and bounds their steps.

In:    str of speakable text, the ranges in it that belong together, lengths in letter weights
Out:   ranges [start, stop) of the text, step caps, predicted steps, least steps a text can be spoken in
Never: the model, voices, tokens

    |<- first clause ->|<----- a sentence or two ----->|<-- ... -->|
     first_clause_chars .. first_segment_chars: it decides the time to the first audio
                         min_segment_chars .. max_segment_chars
"""

import math
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from pipeline.config import EngineConfig
from pipeline.spec import CONTROL_TAGS
from pipeline.text.lines import breath
from pipeline.text.markup.control_tags import split_tags
from pipeline.types import SegmentLength

CJK_WEIGHT = 3  # a CJK character is a syllable, about as long in speech as three letters
TAG_WEIGHT = 3  # a laugh or a pause takes about as long as a syllable

# Conversational speech has about 14 letters or 5 Chinese syllables per second: 46.875 / 14 steps per letter.
STEPS_PER_WEIGHT = 3.3
SHORTEST = 24  # eight Chinese characters, or three words and more: shorter segments lose the melody of the clause

# 47 letters or 16 Chinese characters per second. Of 1,890 takes of the demo voice, four speakers, the quickest had 2.6; of
# 276 others, at temperatures up to 1, it had 2.7.
LEAST_STEPS_PER_WEIGHT = 1.0
LEAST_STEPS_OF_A_WORD = 5  # 107 ms; the shortest of those takes, "A.", had 17
ORDINARY_PACE = 5  # of ChatTTS's [speed_0 .. 9]; token k counts as a pace of k / 5

SENTENCE_ENDS = frozenset(".。")
CLAUSE_ENDS = frozenset(",，、")
ABBREVIATIONS = frozenset(["mr", "mrs", "ms", "dr", "prof", "st", "vs", "jr", "sr"])

Range = tuple[int, int]
"""[start, stop) in characters of the text"""


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """The lengths of segments [characters; a CJK character counts as three], and their step limits."""

    first_clause_chars: int = 24
    """shortest first clause that becomes a segment of its own: the first audio waits for it"""
    first_segment_chars: int = 60
    min_segment_chars: int = 90
    """a segment ends at its last sentence or clause that makes it this long: shorter ones sound chopped"""
    max_segment_chars: int = 150
    """some 10 s: longer ones lose words"""
    least_chars: int = 0
    """no piece of a longer text is shorter"""
    base_steps: int = 64
    steps_per_char: float = 8.0
    """three times the most observed"""
    refine_steps: int = 384
    """of the refine pass: ChatTTS's own max_new_token"""

    def cut_to(self, length: SegmentLength) -> "SegmentLimits":
        """Returns these limits with shorter segments, so that slots become free sooner."""
        if length is SegmentLength.SHORTEST:
            return replace(self, min_segment_chars=SHORTEST, max_segment_chars=2 * SHORTEST, least_chars=SHORTEST)
        if length is SegmentLength.USUAL:
            return self
        return replace(
            self, min_segment_chars=max(1, self.min_segment_chars // 2), max_segment_chars=max(16, self.max_segment_chars // 2)
        )


SPOKEN = SegmentLimits()
MEASURED = SegmentLimits(first_segment_chars=400, max_segment_chars=400, base_steps=1, steps_per_char=3)
"""a text is one segment, and its steps follow from its letters: an even pace of 15 letters per second"""

_SPEED_TAG = re.compile(r"\[speed_(\d)\]")
_CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_WORD_BEFORE_DOT = 6  # letters; longer words are no abbreviations
_JOINERS = "\u200d\ufe0f"  # zero-width joiner, variation selector: they belong to the character before


def letter_weight(text: str) -> int:
    """Returns the length of a text: 1 per letter, sign or space, 3 per CJK character or control tag."""
    return sum(_weight(piece) for piece in split_tags(text))


def limits_of(engine: EngineConfig) -> SegmentLimits:
    """Returns the limits for texts that an engine speaks."""
    return MEASURED if engine.ignore_eos else SPOKEN


def max_steps(text: str, limits: SegmentLimits, engine_max_steps: int) -> int:
    """Returns the step cap of a segment, far more than its text needs, so that only a runaway sequence reaches it."""
    return min(engine_max_steps, limits.base_steps + math.ceil(limits.steps_per_char * letter_weight(text)))


def predicted_steps(text: str) -> int:
    """Returns about how many steps a text takes at an ordinary pace, before any time-stretch."""
    return math.ceil(STEPS_PER_WEIGHT * letter_weight(text))


def least_steps(text: str, speed_token: int) -> int:
    """Returns a number of steps below which a text cannot have been spoken; real sentences take far more.

    Args:
        speed_token: of the prompt; a faster [speed_k] in the text counts in its place.
    """
    pace = max(ORDINARY_PACE, speed_token, *map(int, _SPEED_TAG.findall(text)))
    words = "".join(piece for piece in split_tags(text) if piece not in CONTROL_TAGS)
    weight = sum(CJK_WEIGHT if _CJK.match(letter) else letter.isalpha() for letter in words)
    least = max(LEAST_STEPS_PER_WEIGHT * weight, LEAST_STEPS_OF_A_WORD) if weight else 0.0
    return math.floor(least * ORDINARY_PACE / pace)


def split(text: str, limits: SegmentLimits, *, whole: Iterable[Range] = (), is_first: bool = True) -> list[Range]:
    """Cuts a text where a speaker would breathe: at sentence ends if possible, else at commas, at spaces, or anywhere.

    Never inside a control tag or between a character and its marks. Never inside a range of `whole` either (a number
    that is read out, an address, an abbreviation), unless that range alone is longer than a segment may be.

    Args:
        whole: ranges, in order, that do not overlap.
        is_first: the text begins a request, so its first piece is short.

    Returns:
        ranges without the spaces around them, in order; only spaces are between them.
    """
    atoms = _atoms(text, whole, limits.max_segment_chars)
    pieces = _Pieces(text, atoms, limits.least_chars)
    ranges: list[Range] = []
    start = 0
    while (start := pieces.skip_spaces(start)) < len(atoms):
        if is_first and not ranges:
            stop = pieces.quick_cut(start, limits.first_clause_chars, min(limits.first_segment_chars, limits.max_segment_chars))
        else:
            stop = pieces.cut(start, limits.min_segment_chars, limits.max_segment_chars)
        stop = pieces.with_remainder(stop)
        ranges.append(pieces.trimmed(start, stop))
        start = stop
    return ranges


class _Pieces:
    """One text to be cut: its atoms, their weights, and where a cut is allowed. Positions are counted in atoms."""

    def __init__(self, text: str, atoms: Sequence[Range], least: int) -> None:
        self._text = text
        self._least = least
        self._atoms = atoms
        self._weights = [0, *accumulate(letter_weight(text[start:stop]) for start, stop in atoms)]

    def quick_cut(self, start: int, floor: int, limit: int) -> int:
        """Returns the end of the first clause that is long enough for a segment."""
        reach = self._reach(start, limit)
        if reach == len(self._atoms):
            return reach
        stops = [place for place in self._places(start, reach) if self._ends_sentence(place) or self._ends_clause(place)]
        long_enough = [place for place in stops if self._length(start, place) >= floor]
        return next(iter(long_enough), 0) or max(stops, default=0) or self._space_or_hard_cut(start, reach)

    def cut(self, start: int, floor: int, limit: int) -> int:
        """Returns the best place to end a piece that begins at `start`."""
        remainder = self._weights[-1] - self._weights[start]
        if limit < remainder < limit + floor:
            limit = min(limit, max(floor, remainder - floor))  # otherwise the last piece would be a remainder of a word or two
        reach = self._reach(start, limit)
        if reach == len(self._atoms):
            return reach
        sentences = [place for place in self._places(start, reach) if self._ends_sentence(place)]
        clauses = [place for place in self._places(start, reach) if self._ends_clause(place)]
        last_sentence, last_clause = max(sentences, default=0), max(clauses, default=0)
        for place in (last_sentence, last_clause):
            if place and self._length(start, place) >= floor:
                return place
        return last_sentence or last_clause or self._space_or_hard_cut(start, reach)

    def with_remainder(self, stop: int) -> int:
        """Returns the end of a piece that takes the rest with it, where that is no piece of its own."""
        return len(self._atoms) if self._length(stop, len(self._atoms)) < self._least else stop

    def skip_spaces(self, place: int) -> int:
        while place < len(self._atoms) and self._atom(place).isspace():
            place += 1
        return place

    def trimmed(self, start: int, stop: int) -> Range:
        """Returns the range of atoms [start, stop), without the spaces at their end."""
        first, last = self._atoms[start][0], self._atoms[stop - 1][1]
        return first, first + len(self._text[first:last].rstrip())

    def _atom(self, place: int) -> str:
        start, stop = self._atoms[place]
        return self._text[start:stop]

    def _length(self, start: int, stop: int) -> int:
        return self._weights[stop] - self._weights[start]

    def _reach(self, start: int, limit: int) -> int:
        """Returns the furthest place within the limit, at least one atom and the least length ahead."""
        least = max(start + 1, bisect_left(self._weights, self._weights[start] + self._least))
        return max(min(least, len(self._atoms)), bisect_right(self._weights, self._weights[start] + limit) - 1)

    def _places(self, start: int, reach: int) -> list[int]:
        """Returns where a piece may end, as far as the reach."""
        return [place for place in range(start + 1, reach + 1) if self._length(start, place) >= self._least]

    def _space_or_hard_cut(self, start: int, reach: int) -> int:
        """Returns the best place to breathe in the last third, else at the last space; without one the last place of all."""
        borders = [place for place in self._places(start, reach) if self._is_border(place)]
        late = [place for place in borders if 3 * self._length(start, place) >= 2 * self._length(start, reach)]
        if borders:
            return max(late or borders[-1:], key=lambda place: (self._breath(place), place))
        # A punctuation mark alone would be a segment without a word: it goes with the atom before it.
        place = reach
        while place > start + 1 and self._atom(place) in SENTENCE_ENDS | CLAUSE_ENDS:
            place -= 1
        if self._length(start, place) < self._least:
            place = next((end for end in range(reach, len(self._atoms)) if not self._stop_follows(end)), len(self._atoms))
        return place

    def _is_border(self, place: int) -> bool:
        atom = self._atom(place)
        return atom.isspace() or bool(_CJK.match(atom) and _CJK.match(self._atom(place - 1)[-1]))

    def _breath(self, place: int) -> int:
        at = self._atoms[place][0]
        return breath(self._text[max(0, at - 30) : at], self._text[at : at + 30])

    def _ends_clause(self, place: int) -> bool:
        return self._atom(place - 1) in CLAUSE_ENDS and not self._stop_follows(place)

    def _ends_sentence(self, place: int) -> bool:
        last = self._atom(place - 1)
        if last not in SENTENCE_ENDS or self._stop_follows(place):
            return False
        if last == "。" or place == len(self._atoms):
            return True
        following = self._atom(place)
        if following.isascii() and following.isalnum():
            return False  # the first dot of "U.S."
        word = ""
        before = place - 2
        while before >= 0 and len(word) <= _WORD_BEFORE_DOT and (letter := self._atom(before)).isascii() and letter.isalpha():
            word = letter + word
            before -= 1
        return word.lower() not in ABBREVIATIONS and len(word) != 1

    def _stop_follows(self, place: int) -> bool:
        return place < len(self._atoms) and self._atom(place) in SENTENCE_ENDS | CLAUSE_ENDS


def _atoms(text: str, whole: Iterable[Range], longest: int) -> list[Range]:
    """Returns the ranges that are never cut in two: the ranges of `whole`, control tags, characters with their marks."""
    atoms: list[Range] = []
    position = 0
    for start, stop in whole:
        assert position <= start <= stop <= len(text), "ranges are in order, within the text, and do not overlap"
        atoms += _small_atoms(text, position, start)
        if start < stop and letter_weight(text[start:stop]) <= longest:
            atoms.append((start, stop))
        else:
            atoms += _small_atoms(text, start, stop)
        position = stop
    return atoms + _small_atoms(text, position, len(text))


def _small_atoms(text: str, start: int, stop: int) -> list[Range]:
    atoms: list[Range] = []
    for piece in split_tags(text[start:stop]):
        if piece in CONTROL_TAGS:
            atoms.append((start, start + len(piece)))
        else:
            for index, character in enumerate(piece):
                at = start + index
                if index and (
                    unicodedata.category(character).startswith("M") or character in _JOINERS or text[at - 1] in _JOINERS
                ):
                    atoms[-1] = (atoms[-1][0], at + 1)
                else:
                    atoms.append((at, at + 1))
        start += len(piece)
    return atoms


def _weight(piece: str) -> int:
    if piece in CONTROL_TAGS:
        return TAG_WEIGHT
    return len(piece) + (CJK_WEIGHT - 1) * len(_CJK.findall(piece))
