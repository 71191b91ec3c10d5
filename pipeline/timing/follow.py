"""Follow: which token of the text each step of speech says.

In:    scores of attention (heads, n, tokens), in groups of any size
Out:   the token of each step, which never goes back
Owns:  the path of one segment
Never: the model; audio; a decision that depends on how the steps were grouped

The path is the best one through the scores (Viterbi): each step stays at its token or goes on. To skip a token costs something,
so that swallowed words are skipped and noise is not. A step is decided once LAG later ones are known.
"""

import numpy as np
from numpy.typing import NDArray

GROUP = 16
"""steps that are followed together"""
LAG = 4
"""steps that must be known behind a step before it is decided; with 16 no word of the demo voice begins elsewhere"""
_SKIP_COST = 2.0  # per token that no step is at [nats]


class Follower:
    """The path of one segment."""

    def __init__(self, tokens: int) -> None:
        """
        Args:
            tokens: how many tokens the text has.
        """
        self.path: list[int] = []
        """the token of each step that is decided"""
        self.looked: list[int] = []
        """the token that each step looks at most, whatever its neighbours do"""
        self._places = np.arange(tokens)
        self._total = np.zeros(tokens)  # of the best path to each token at the last step
        self._from: list[NDArray[np.int64]] = []  # of every step: the token before, on the best path to each token

    def add(self, scores: NDArray[np.float32]) -> None:
        """Takes the scores (heads, n, tokens) of the next steps."""
        relative = scores - scores.max(-1, keepdims=True)
        likely = (relative - np.log(np.exp(relative).sum(-1, keepdims=True))).mean(0).astype(np.float64)
        for row in likely:
            self._step(row)
            self._decide(len(self._from) - LAG)

    def finish(self) -> None:
        """Decides the last steps."""
        self._decide(len(self._from))

    def _step(self, row: NDArray[np.float64]) -> None:
        places = self._places
        self.looked.append(int(row.argmax()))
        if not self._from:
            # The first step may be at any token, as if the ones before had been skipped.
            self._from.append(places)
            self._total = row - _SKIP_COST * places
            return
        # Going on from token i to j > i costs _SKIP_COST for each token between: the best i is a running maximum.
        lifted = self._total + _SKIP_COST * places
        best = np.maximum.accumulate(lifted)
        source = np.maximum.accumulate(np.where(lifted == best, places, 0))
        moved = np.full(len(places), -np.inf)
        moved[1:] = best[:-1] - _SKIP_COST * (places[1:] - 1)
        stays = self._total >= moved
        self._from.append(np.where(stays, places, np.concatenate([[0], source[:-1]])))
        self._total = np.where(stays, self._total, moved) + row

    def _decide(self, stop: int) -> None:
        """Decides the steps up to `stop` on the path that is best now; those before stay as they are."""
        if stop <= len(self.path):
            return
        place = int(self._total.argmax())
        way = [place]
        for before in reversed(self._from[len(self.path) + 1 :]):
            place = int(before[place])
            way.append(place)
        way.reverse()
        least = self.path[-1] if self.path else 0
        for token in way[: stop - len(self.path)]:
            least = max(least, token)
            self.path.append(least)
