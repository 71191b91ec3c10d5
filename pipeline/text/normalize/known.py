"""Known: drops words that the checkpoint does not know; they are counted instead of spoken as noise.

In:    pieces, Vocabulary
Out:   pieces; unknown words and unsupported tags have become drops
Never: tokens themselves, spans
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from pipeline.spec import CONTROL_TAGS, PAUSE_TAGS
from pipeline.text.normalize.chinese import is_chinese
from pipeline.text.normalize.rule import Drop, Gap
from pipeline.text.normalize.scan import Piece

UNKNOWN = "unknown_to_model"
"""code of words outside the vocabulary"""
UNTAUGHT_TAG = "control_tag_not_taught"

_TWINS = {"。": ".", "，": ",", "、": ",", ".": "。", ",": "，"}
_INTERJECTIONS = dict(zip("嗯噢喔唉欸诶哎啊呃哼", "恩哦哦哎诶哎爱阿额亨", strict=True))
"""sounds that not every checkpoint has a character for -> a character of the same sound"""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words, signs and tags a checkpoint can speak."""

    knows: Callable[[str], bool]
    """True if all of a text becomes tokens"""
    signs: Mapping[int, str]
    """unknown signs -> their twin of the other width if that is known, else a space; unknown interjections -> a known character
    of their sound; for str.translate"""
    control_tags: frozenset[str]
    """those it was trained on"""


def vocabulary_of(knows: Callable[[str], bool], control_tags: Iterable[str]) -> Vocabulary:
    """Returns a checkpoint's vocabulary.

    Args:
        knows: True if all of a text becomes tokens.
        control_tags: those it was trained on.
    """
    unknown = [sign for sign in _TWINS if not knows(sign)]
    signs = {ord(sign): " " if _TWINS[sign] in unknown else _TWINS[sign] for sign in unknown}
    signs |= {ord(sound): same for sound, same in _INTERJECTIONS.items() if not knows(sound) and knows(same)}
    return Vocabulary(knows, signs, frozenset(control_tags))


def _everything(text: str) -> bool:
    return True


ANYTHING = vocabulary_of(_everything, CONTROL_TAGS)


def only_known(pieces: list[Piece], vocabulary: Vocabulary) -> list[Piece]:
    """Returns the pieces; those that the checkpoint does not know are replaced by drops."""
    pieces = [_supported(piece, vocabulary) for piece in pieces]
    words = " ".join(piece.outcome for piece in pieces if isinstance(piece.outcome, str) and not piece.is_control)
    if vocabulary.knows(words.translate(vocabulary.signs)):
        return pieces
    return [part for piece in pieces for part in _known(piece, vocabulary)]


def _supported(piece: Piece, vocabulary: Vocabulary) -> Piece:
    if not piece.is_control or piece.outcome in vocabulary.control_tags:
        return piece
    gap = Gap.COMMA if piece.outcome in PAUSE_TAGS else Gap.NONE
    return piece._replace(outcome=Drop(UNTAUGHT_TAG, gap), is_control=False)


def _known(piece: Piece, vocabulary: Vocabulary) -> Iterator[Piece]:
    """Yields a known piece unchanged, an unknown word as a drop, and a Chinese run with drops for unknown characters."""
    spoken = piece.outcome
    if not isinstance(spoken, str) or piece.is_control or vocabulary.knows(spoken.translate(vocabulary.signs)):
        yield piece
    elif len(spoken) == piece.stop - piece.start and is_chinese(spoken):
        start = piece.start
        for known, run in groupby(spoken, vocabulary.knows):
            part = "".join(run)
            yield piece._replace(start=start, stop=start + len(part), outcome=part if known else Drop(UNKNOWN))
            start += len(part)
    else:
        yield piece._replace(outcome=Drop(UNKNOWN, Gap.SPACE))
