"""Segment: cuts normalised text into pieces that are spoken as one sequence each, and says how long one may take.

In:    str, lengths in letter weights
Out:   list[Segment], step caps
Owns:  nothing
Never: the model, voices, tokens
"""

import math
import re

from pipeline.config import TextConfig
from pipeline.text.markup import CONTROL_TAGS, split_tags
from pipeline.types import Segment

CJK_WEIGHT = 3  # a CJK character is a syllable and takes about as long to say as three letters
TAG_WEIGHT = 3  # a laugh or a pause takes about as long as a syllable

SENTENCE_ENDS = frozenset(".。")
CLAUSE_ENDS = frozenset(",，、")
ABBREVIATIONS = frozenset(["mr", "mrs", "ms", "dr", "prof", "st", "vs", "jr", "sr"])

_CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_WORD_BEFORE_DOT = 6  # letters; longer words are no abbreviations


def letter_weight(text: str) -> int:
    """How long a text is: a letter, sign or space counts 1, a CJK character or a control tag 3."""
    return sum(_atom_weight(atom) for atom in _atoms(text))


def max_steps(text: str, config: TextConfig, engine_max_steps: int) -> int:
    """The step cap of a segment: far above what its text needs, so that only a runaway sequence meets it."""
    return min(engine_max_steps, config.base_steps + math.ceil(config.steps_per_char * letter_weight(text)))


def split(text: str, config: TextConfig) -> list[Segment]:
    """Cut a text into segments: at sentence ends where possible, else at commas, spaces, or anywhere but inside a tag.

    Sentences are merged up to the limit. Joined with spaces the segments are the text, up to whitespace.
    """
    atoms = _atoms(text)
    pieces: list[str] = []
    start = 0
    while (start := _skip_spaces(atoms, start)) < len(atoms):
        limit = config.max_segment_chars if pieces else min(config.first_segment_chars, config.max_segment_chars)
        stop = _cut(atoms, start, limit)
        pieces.append("".join(atoms[start:stop]).rstrip())
        start = stop
    return [Segment(text=piece, index=index, is_last=index == len(pieces) - 1) for index, piece in enumerate(pieces)]


def _atoms(text: str) -> list[str]:
    """What is never cut in two: control tags and single characters."""
    atoms: list[str] = []
    for piece in split_tags(text):
        if piece in CONTROL_TAGS:
            atoms.append(piece)
        else:
            atoms.extend(piece)
    return atoms


def _atom_weight(atom: str) -> int:
    if atom in CONTROL_TAGS:
        return TAG_WEIGHT
    return CJK_WEIGHT if _CJK.match(atom) else 1


def _skip_spaces(atoms: list[str], start: int) -> int:
    while start < len(atoms) and atoms[start].isspace():
        start += 1
    return start


def _cut(atoms: list[str], start: int, limit: int) -> int:
    """The best place to end a segment that begins at `start`: one past its last atom."""
    weight = 0
    reach = start
    while reach < len(atoms) and weight + _atom_weight(atoms[reach]) <= limit:
        weight += _atom_weight(atoms[reach])
        reach += 1
    if reach == len(atoms):
        return reach

    sentence_end = clause_end = space = 0
    for place in range(start + 1, reach + 1):
        if _ends_sentence(atoms, place):
            sentence_end = place
        elif atoms[place - 1] in CLAUSE_ENDS:
            clause_end = place
        elif atoms[place].isspace():
            space = place
    return sentence_end or clause_end or space or _hard_cut(atoms, start, reach)


def _ends_sentence(atoms: list[str], place: int) -> bool:
    last = atoms[place - 1]
    if last not in SENTENCE_ENDS or (place < len(atoms) and atoms[place] in SENTENCE_ENDS | CLAUSE_ENDS):
        return False
    if last == "。" or place == len(atoms):
        return True
    if atoms[place].isascii() and atoms[place].isalnum():
        return False  # the first dot of "U.S."
    word = ""
    while place - 2 >= 0 and len(word) <= _WORD_BEFORE_DOT and atoms[place - 2].isascii() and atoms[place - 2].isalpha():
        word = atoms[place - 2] + word
        place -= 1
    return word.lower() not in ABBREVIATIONS and len(word) != 1


def _hard_cut(atoms: list[str], start: int, reach: int) -> int:
    # A punctuation mark alone would be a segment with nothing to say: it takes one atom along.
    place = reach
    while place > start + 1 and atoms[place] in SENTENCE_ENDS | CLAUSE_ENDS:
        place -= 1
    return place
