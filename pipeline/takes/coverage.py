"""Coverage: which words of a segment were swallowed, and which were said again.

In:    the words, and the token that each step looks at
Out:   Coverage
Never: the path, which never goes back and so hides a repetition
"""

from collections.abc import Sequence

import numpy as np

from pipeline.types import Coverage, Followed, SpokenWord

SURE = 3
"""steps in a row at one word that are no slip of the eye: 64 ms"""


def coverage_of(words: Sequence[SpokenWord], followed: Followed) -> Coverage:
    """Counts the words that no step looks at, and those that SURE steps go back to after SURE steps at a later word."""
    starts = np.array([word.tokens[0] for word in words])
    stops = np.array([word.tokens[1] for word in words])
    at = np.searchsorted(starts, followed.looked, side="right") - 1
    inside = (at >= 0) & (followed.looked < stops[at])
    furthest, again, present, steps = -1, set(), -1, 0
    for word, is_inside in zip(at.tolist(), inside.tolist(), strict=True):
        steps = steps + 1 if is_inside and word == present else int(is_inside)
        present = word if is_inside else -1
        if steps == SURE:
            if word < furthest:
                again.add(word)
            furthest = max(furthest, word)
    spoken = set(at[inside].tolist())
    return Coverage(len(words), len(words) - len(spoken), len(again))
