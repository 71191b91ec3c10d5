"""Similar seeds: searches the speakers of seeds for similar or different ones.

In:    a library, the number of seeds, a voice to resemble or differ from
Out:   seeds, each with its similarity
Owns:  nothing
Never: HTTP, Ray, speech: it compares embeddings
"""

import secrets

import numpy as np
from numpy.typing import NDArray

from pipeline.types import MAX_SEED
from pipeline.voices.library import VoiceLibrary

CANDIDATES = 16  # embeddings compared per seed that is returned


def similar_seeds(
    library: VoiceLibrary, count: int, seed: int | None, like: str | None, unlike: str | None
) -> list[tuple[int, float | None]]:
    """Returns `count` seeds, each with the similarity of its speaker to `like` (or `unlike`), -1 .. 1.

    Without either the next `count` seeds of the counter; with one the best of CANDIDATES times as many.

    Args:
        seed: the first candidate; None: drawn.
    """
    first = secrets.randbelow(MAX_SEED + 1) if seed is None else seed
    reference = like or unlike
    seeds = [(first + index) % (MAX_SEED + 1) for index in range(count if reference is None else CANDIDATES * count)]
    if reference is None:
        return [(each, None) for each in seeds]
    wanted = _direction(library.embedding_of(reference))
    compared = [(each, float(_direction(library.embedding_of(f"seed:{each}")) @ wanted)) for each in seeds]
    best = sorted(compared, key=lambda one: one[1], reverse=like is not None)[:count]
    return [(each, round(similarity, 4)) for each, similarity in best]


def _direction(embedding: NDArray[np.float16]) -> NDArray[np.float64]:
    wide = embedding.astype(np.float64)
    direction: NDArray[np.float64] = wide / np.linalg.norm(wide)
    return direction
