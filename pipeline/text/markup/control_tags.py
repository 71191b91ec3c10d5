"""ControlTags: finds the control tags in a text and drops all other brackets.

In:    str
Out:   str in which every bracket belongs to a tag of CONTROL_TAGS
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

    One pass is enough: a dropped bracket becomes a space, so its neighbours cannot form a new tag
    (`[S[Stts]tts]` ends as the words S, Stts and tts).

    Args:
        allowed: False: control tags are dropped too.
    """
    if not allowed:
        return text.translate(_NO_BRACKETS)
    return _TAG_OR_BRACKET.sub(lambda match: match[1] or " ", text)


def split_tags(text: str) -> list[str]:
    """Cuts a neutralised text into pieces, in order, each of them one control tag or text without any."""
    return [piece for piece in _TAG_AS_PIECE.split(text) if piece]
