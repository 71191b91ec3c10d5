"""RefineGuard: checks that a refined text still has the words of its source.

In:    a segment's text, and its text after the refine pass
Out:   True if it may be spoken; the difference, word by word
Never: the model, tokens

Words are Chinese characters and Latin words in any case, without punctuation. Control tags and the fillers below may be
added, within limits; no word may be lost, changed or moved.
"""

import difflib
import re

from pipeline.spec import CONTROL_TAGS
from pipeline.text.markup.control_tags import split_tags
from pipeline.text.normalize.tables import word_list
from pipeline.types import Change, Op

# Words for thinking aloud, as ChatTTS's refine pass adds them with [oral_k].
FILLERS = (*word_list("fillers"), "you know", "i mean", "kind of", "sort of")

MOST_COMPARED = 40_000
"""pairs of words; difflib takes some 30 ms for the worst of them"""

_WORD = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]|[A-Za-z]+")
_FILLERS = sorted({tuple(_WORD.findall(filler)) for filler in FILLERS}, key=len, reverse=True)


def accepts(source: str, refined: str) -> bool:
    """True if only control tags and fillers were added, and no more of them than a speaker would use."""
    actual, expected = words(refined), words(source)
    tags = sum(piece in CONTROL_TAGS for piece in split_tags(refined)) - sum(
        piece in CONTROL_TAGS for piece in split_tags(source)
    )
    if tags > len(expected) + 4 or len(actual) > 2 * len(expected) + 4:
        return False
    # reached[i]: how many expected words the first i words may contain. A word may be a filler or an expected one.
    reached: list[set[int]] = [set() for _ in range(len(actual) + 1)]
    reached[0] = {0}
    for position, word in enumerate(actual):
        for matched in reached[position]:
            if matched < len(expected) and expected[matched] == word:
                reached[position + 1].add(matched + 1)
        for filler in _FILLERS:
            if tuple(actual[position : position + len(filler)]) == filler:
                reached[position + len(filler)] |= reached[position]
    return len(expected) in reached[len(actual)]


def diff(source: str, refined: str) -> list[Change]:
    """Returns the differences of the words; control tags count as words here. Of texts too long to compare, all is replaced."""
    before, after = _pieces(source), _pieces(refined)
    if before == after or len(before) * len(after) > MOST_COMPARED:
        op: Op = "equal" if before == after else "replace"
        return [Change(op, _joined(before), _joined(after))] if before or after else []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [Change(op, _joined(before[i:j]), _joined(after[k:m])) for op, i, j, k, m in matcher.get_opcodes()]


def words(text: str) -> list[str]:
    """Returns the Chinese characters and the Latin words in small letters, without tags and punctuation."""
    return [word for piece in split_tags(text) if piece not in CONTROL_TAGS for word in _WORD.findall(piece.lower())]


def _pieces(text: str) -> list[str]:
    pieces: list[str] = []
    for piece in split_tags(text):
        pieces += [piece] if piece in CONTROL_TAGS else _WORD.findall(piece.lower())
    return pieces


def _joined(pieces: list[str]) -> str:
    """Joins pieces, with spaces between Latin words and tags."""
    text = ""
    for piece in pieces:
        text += f" {piece}" if text and not (_is_cjk(text[-1]) and _is_cjk(piece[0])) else piece
    return text


def _is_cjk(character: str) -> bool:
    return "\u3400" <= character <= "\ufaff"
