"""Known: drops words the checkpoint does not know, so that they are counted instead of spoken as noise.

In:    pieces, Vocabulary
Out:   pieces: words of which a part is no token, and tags that were not taught, are drops
Owns:  nothing
Never: tokens themselves, spans
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from pipeline.spec import CONTROL_TAGS, PAUSE_TAGS
from pipeline.text.normalize.chinese import is_chinese
from pipeline.text.normalize.rule import Drop, Gap
from pipeline.text.normalize.scan import Piece

UNKNOWN = "unknown_to_model"
"""code of words the vocabulary does not hold"""
UNTAUGHT_TAG = "control_tag_not_taught"

_TWINS = {"。": ".", "，": ",", "、": ",", ".": "。", ",": "，"}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words, signs and tags a checkpoint can speak."""

    knows: Callable[[str], bool]
    """whether a text becomes tokens, all of it"""
    signs: Mapping[int, str]
    """signs it does not know -> their twin of the other width, where it knows that, else a space; for str.translate"""
    control_tags: frozenset[str]
    """those it was taught"""


def vocabulary_of(knows: Callable[[str], bool], control_tags: Iterable[str]) -> Vocabulary:
    """Returns a checkpoint's vocabulary.

    Args:
        knows: whether a text becomes tokens, all of it.
        control_tags: those it was taught.
    """
    unknown = [sign for sign in _TWINS if not knows(sign)]
    signs = {ord(sign): " " if _TWINS[sign] in unknown else _TWINS[sign] for sign in unknown}
    return Vocabulary(knows, signs, frozenset(control_tags))


def _everything(text: str) -> bool:
    return True


ANYTHING = vocabulary_of(_everything, CONTROL_TAGS)


def only_known(pieces: list[Piece], vocabulary: Vocabulary) -> list[Piece]:
    """Returns the pieces, with a drop in place of each that the checkpoint does not know."""
    pieces = [_taught(piece, vocabulary) for piece in pieces]
    words = " ".join(piece.outcome for piece in pieces if isinstance(piece.outcome, str) and not piece.is_control)
    if vocabulary.knows(words.translate(vocabulary.signs)):
        return pieces
    return [part for piece in pieces for part in _known(piece, vocabulary)]


def _taught(piece: Piece, vocabulary: Vocabulary) -> Piece:
    if not piece.is_control or piece.outcome in vocabulary.control_tags:
        return piece
    gap = Gap.COMMA if piece.outcome in PAUSE_TAGS else Gap.NONE
    return replace(piece, outcome=Drop(UNTAUGHT_TAG, gap), is_control=False)


def _known(piece: Piece, vocabulary: Vocabulary) -> Iterator[Piece]:
    """Yields a piece as it is, an unknown word as a drop, and of a run of Chinese characters the unknown ones as drops."""
    said = piece.outcome
    if not isinstance(said, str) or piece.is_control or vocabulary.knows(said.translate(vocabulary.signs)):
        yield piece
    elif len(said) == piece.stop - piece.start and is_chinese(said):
        start = piece.start
        for known, run in groupby(said, vocabulary.knows):
            part = "".join(run)
            yield replace(piece, start=start, stop=start + len(part), outcome=part if known else Drop(UNKNOWN))
            start += len(part)
    else:
        yield replace(piece, outcome=Drop(UNKNOWN, Gap.SPACE))
