"""Control tags: the bracketed words of a text that are tags. Everything else is text and loses its brackets.

In:    str
Out:   str in which every bracket belongs to a tag of CONTROL_TAGS
Owns:  nothing
Never: the tokenizer, voices, numbers
"""

import re

from pipeline.spec import CONTROL_TAGS

_TAG = "|".join(re.escape(tag) for tag in sorted(CONTROL_TAGS))
_TAG_OR_BRACKET = re.compile(rf"({_TAG})|[\[\]]")
_TAG_AS_PIECE = re.compile(f"({_TAG})")
_NO_BRACKETS = str.maketrans("[]", "  ")


def neutralise(text: str, *, allowed: bool = True) -> str:
    """Turns every bracket that is not part of a control tag into a space.

    One pass suffices: a dropped bracket leaves a space behind, so what stood around it cannot become a tag
    (`[S[Stts]tts]` ends as the words S, Stts and tts).

    Args:
        allowed: False: no tag is one, every bracket goes.
    """
    if not allowed:
        return text.translate(_NO_BRACKETS)
    return _TAG_OR_BRACKET.sub(lambda found: found[1] or " ", text)


def split_tags(text: str) -> list[str]:
    """Cuts a neutralised text into pieces, in order, each of them one control tag or text without any."""
    return [piece for piece in _TAG_AS_PIECE.split(text) if piece]
