"""The slow twins: obviously correct, never fast. Each fast path has one test that holds it against its twin here."""

import math

import numpy as np
from numpy.typing import NDArray


def filter_logits(
    logits: list[float], recent: list[int], *, temperature: float, top_p: float, top_k: int, penalty: float, keep: int = 3
) -> list[float]:
    """Temperature, repetition penalty, top-p, top-k over one row, one number at a time."""
    values = [value / temperature for value in logits]
    for token in set(recent):
        factor = penalty ** recent.count(token)
        values[token] = values[token] * factor if values[token] < 0 else values[token] / factor
    order = sorted(range(len(values)), key=lambda token: values[token])  # ascending
    largest = max(values)
    mass = [math.exp(values[token] - largest) for token in order]
    total, cumulated = sum(mass), 0.0
    allowed = set(order)
    for place, token in enumerate(order):
        cumulated += mass[place] / total
        if cumulated <= 1 - top_p and place < len(order) - keep:
            allowed.discard(token)
    for token in order[: max(len(order) - max(top_k, keep), 0)]:
        allowed.discard(token)
    return [value if token in allowed else -math.inf for token, value in enumerate(values)]


def draw_by_uniform(probabilities: list[float], uniform: float) -> int:
    """The token whose share of the line holds the uniform."""
    total, cumulated = sum(probabilities), 0.0
    for token, probability in enumerate(probabilities):
        cumulated += probability
        if probability > 0 and uniform * total < cumulated:
            return token
    raise AssertionError("the shares cover the line")


def rotate(vector: NDArray[np.float64], position: int, theta: float = 10_000.0) -> NDArray[np.float64]:
    """Rotary embedding of one head's numbers, halves as Llama pairs them."""
    half = len(vector) // 2
    turned = vector.copy()
    for pair in range(half):
        angle = position / theta ** (pair / half)
        first, other = vector[pair], vector[pair + half]
        turned[pair] = first * math.cos(angle) - other * math.sin(angle)
        turned[pair + half] = other * math.cos(angle) + first * math.sin(angle)
    return turned


def attend(query: NDArray[np.float64], keys: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """One head's softmax(q k) v over the positions there are: (d,), (n, d), (n, d)."""
    scores = [float(key @ query) / math.sqrt(len(query)) for key in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    attended: NDArray[np.float64] = np.asarray(weights) @ values / sum(weights)
    return attended
