"""Dialogue parts: what several speakers say, as parts.

In:    turns, with the fields in which each differs from the others
Out:   Parts
Never: a part of two speakers
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.books.cutting import cut_paragraph
from pipeline.books.script import Part

TURN_MS = 250
"""silence before a turn"""


@dataclass(frozen=True, slots=True)
class PartsOfTurn:
    """What is said at a time, and how."""

    text: str
    own: Mapping[str, Any] = field(default_factory=dict)
    """fields of the request for it"""
    speaker: str = ""
    gap_ms: int | None = None
    """silence before it; None: TURN_MS, none before the first [ms]"""


def dialogue_parts(turns: Iterable[PartsOfTurn]) -> Iterator[Part]:
    """Yields the parts of a dialogue."""
    for number, turn in enumerate(turns):
        pause_ms = (TURN_MS if number else 0) if turn.gap_ms is None else turn.gap_ms
        for text in cut_paragraph(turn.text):
            yield Part(text, pause_ms=pause_ms, own=turn.own, speaker=turn.speaker)
            pause_ms = 0
