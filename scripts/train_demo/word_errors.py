"""Word errors: how many words differ between what was expected and what was recognised.

In:    two sequences of words
Out:   the edit distance
Owns:  nothing
Never: audio
"""

from collections.abc import Sequence


def edits(expected: Sequence[str], recognised: Sequence[str]) -> int:
    """Returns the number of words missing, added or replaced."""
    row = list(range(len(recognised) + 1))
    for index, expected_word in enumerate(expected, start=1):
        diagonal, row[0] = row[0], index
        for place, word in enumerate(recognised, start=1):
            diagonal, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, diagonal + (expected_word != word))
    return row[-1]
