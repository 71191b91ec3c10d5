"""Guard: whether a refined text still says what it was made from.

In:    a segment's text, what the refine pass wrote
Out:   whether it may be spoken; the difference, word by word
Owns:  nothing
Never: the model, tokens

Words are Chinese characters and Latin words in any case; punctuation is none. Control tags and the fillers below may be
added, in bounds; no word may be lost, changed or moved.
"""

import difflib
import re

from pipeline.spec import CONTROL_TAGS
from pipeline.text.markup.control_tags import split_tags
from pipeline.types import Change

# What people say while they think, as ChatTTS's refine pass adds it with [oral_k].
FILLERS: tuple[str, ...] = (
    *(
        "嗯",
        "啊",
        "呃",
        "额",
        "哦",
        "噢",
        "哎",
        "诶",
        "呀",
        "哈",
        "吧",
        "呢",
        "嘛",
        "那",
        "这",
        "就",
        "那个",
        "这个",
        "就是",
        "然后",
    ),
    *("对", "其实", "的话", "就是说", "怎么说呢", "你知道"),
    *("um", "uh", "er", "hmm", "mm", "oh", "ah", "well", "like", "so", "you know", "i mean", "kind of", "sort of"),
)

_WORD = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]|[A-Za-z]+")
_FILLERS = sorted({tuple(_WORD.findall(filler)) for filler in FILLERS}, key=len, reverse=True)


def accepts(source: str, refined: str) -> bool:
    """True if only control tags and fillers were added, and no more of them than a speaker would use."""
    said, meant = words(refined), words(source)
    tags = sum(piece in CONTROL_TAGS for piece in split_tags(refined)) - sum(
        piece in CONTROL_TAGS for piece in split_tags(source)
    )
    if tags > len(meant) + 4 or len(said) > 2 * len(meant) + 4:
        return False
    # Every number of meant words that can be behind us, as `said` is read: a word may be both a filler and a meant one.
    reached: list[set[int]] = [set() for _ in range(len(said) + 1)]
    reached[0] = {0}
    for place, word in enumerate(said):
        for behind in reached[place]:
            if behind < len(meant) and meant[behind] == word:
                reached[place + 1].add(behind + 1)
        for filler in _FILLERS:
            if tuple(said[place : place + len(filler)]) == filler:
                reached[place + len(filler)] |= reached[place]
    return len(meant) in reached[len(said)]


def diff(source: str, refined: str) -> list[Change]:
    """Returns the differences of the words; control tags count as words here."""
    before, after = _pieces(source), _pieces(refined)
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
    """With spaces where Latin words and tags meet."""
    text = ""
    for piece in pieces:
        text += f" {piece}" if text and not (_is_cjk(text[-1]) and _is_cjk(piece[0])) else piece
    return text


def _is_cjk(character: str) -> bool:
    return "\u3400" <= character <= "\ufaff"
