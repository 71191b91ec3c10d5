"""Following: computes which token each step says, beside the engine, for whoever asks.

In:    a prompt and the codes of its speech so far
Out:   Followed
Owns:  a second copy of the model's lower layers, loaded at the first use; a thread; the segments of late
Never: the engine: no code can change, and no step takes longer, for requests that ask for no times

Every answer depends on the prompt and the codes alone: the codes are fed in groups of GROUP steps from the first on, in one
thread. A segment that was followed before goes on where it was; one that is not remembered is fed again from its beginning.
"""

import asyncio
import hashlib
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.capabilities import read_capabilities
from pipeline.checkpoint.weights import Checkpoint
from pipeline.model.text_attention import Fed, PromptAttention
from pipeline.timing.follow import GROUP, Follower
from pipeline.types import Followed, Prompt

REMEMBERED = 64
"""segments that can go on where they were"""


@dataclass(slots=True, eq=False)
class _Session:
    """One segment."""

    fed: Fed
    follower: Follower
    codes: NDArray[np.int64]  # (n, 4): those that were fed
    scores: NDArray[np.float32]  # (heads, 1, prompt): of the first step that is not followed yet


class Following:
    """protocols.TextFollower in this process, for one checkpoint."""

    def __init__(self, checkpoint: Checkpoint, *, positions: int) -> None:
        """
        Args:
            positions: length of the engine's longest sequence, prompt included.

        Raises:
            CheckpointError: taught.json is wrong.
        """
        self._checkpoint = checkpoint
        self._positions = positions
        alignment = read_capabilities(checkpoint.root).alignment
        self._heads = () if alignment is None else alignment.heads
        self._model: PromptAttention | None = None
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "following")

    async def follow(
        self, prompt: Prompt, codes: NDArray[np.int64], tokens: tuple[int, int], *, ended: bool
    ) -> Followed | None:
        """Returns where the model looked, as protocols.TextFollower says; None: no head of the checkpoint follows the text."""
        if not self._heads:
            return None
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._follow, prompt, codes, tokens, ended)

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=False)

    def _follow(self, prompt: Prompt, codes: NDArray[np.int64], tokens: tuple[int, int], ended: bool) -> Followed:
        if self._model is None:
            self._model = PromptAttention(self._checkpoint, self._heads, positions=self._positions)
        first, stop = tokens
        key = _key(prompt, codes, tokens)
        session = self._sessions.pop(key, None)
        if session is None or not np.array_equal(session.codes, codes[: len(session.codes)]):
            fed, scores = self._model.begin(prompt)
            session = _Session(fed, Follower(stop - first), codes[:0], scores)
        while len(codes) - len(session.codes) >= GROUP:
            self._advance(self._model, session, codes[: len(session.codes) + GROUP], tokens)
        follower = session.follower
        if ended:
            if len(codes) > len(session.codes):
                self._advance(self._model, session, codes, tokens)
            follower.finish()
        else:
            self._sessions[key] = session
            while len(self._sessions) > REMEMBERED:
                self._sessions.popitem(last=False)
        return Followed(np.array(follower.path, np.int64) + first, np.array(follower.looked, np.int64) + first)

    @staticmethod
    def _advance(model: PromptAttention, session: _Session, codes: NDArray[np.int64], tokens: tuple[int, int]) -> None:
        """Follows the steps up to the last of `codes`."""
        following = model.extend(session.fed, codes[len(session.codes) :])
        # A step is scored by the code before it.
        scores = np.concatenate([session.scores, following], 1)
        session.follower.add(scores[:, :-1, slice(*tokens)])
        session.scores, session.codes = scores[:, -1:], codes


def _key(prompt: Prompt, codes: NDArray[np.int64], tokens: tuple[int, int]) -> bytes:
    speaker = b"" if prompt.speaker is None else prompt.speaker.tobytes()
    parts = (prompt.ids.tobytes(), speaker, codes[:GROUP].tobytes(), repr((tokens, prompt.speaker_position)).encode())
    return hashlib.sha256(b"|".join(parts)).digest()
