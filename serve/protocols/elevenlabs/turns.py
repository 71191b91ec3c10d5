"""Turns: when each voice of a dialogue speaks.

In:    the marks that stand before the turns of a dialogue
Out:   voice segments, as ElevenLabs' clients read them
Owns:  the turn that has not ended
Never: audio, HTTP
"""

from collections.abc import Iterable
from typing import Any

from pipeline.types import TimedItem, TimeKind


def mark_of(number: int, voice: str) -> str:
    """Returns the name of the mark before a turn."""
    return f"{number} {voice}"


class Turns:
    """The turns of one dialogue."""

    def __init__(self, text: str) -> None:
        """
        Args:
            text: of all turns, in which the marks count characters.
        """
        self._text = text
        self._marks: list[TimedItem] = []
        self._reported = 0  # turns
        self._end: int | None = None

    def add(self, items: Iterable[TimedItem]) -> None:
        """Takes the marks among the items."""
        self._marks += [item for item in items if item.kind is TimeKind.MARK]

    def finish(self, stop: int) -> None:
        """The last turn ends with the audio, at sample `stop`."""
        self._end = stop

    def take(self, rate: int) -> list[dict[str, Any]]:
        """Returns the turns that have ended since the last time; samples are of `rate` [Hz]."""
        ends = [(mark.start, mark.source[0]) for mark in self._marks[1:]]
        if self._end is not None:
            ends.append((self._end, len(self._text)))
        ended = []
        for mark, (stop, place) in list(zip(self._marks, ends, strict=False))[self._reported :]:
            number, _, voice = mark.reading.partition(" ")
            ended.append(
                {
                    "voice_id": voice,
                    "start_time_seconds": round(mark.start / rate, 6),
                    "end_time_seconds": round(stop / rate, 6),
                    "character_start_index": mark.source[0],
                    "character_end_index": place,
                    "dialogue_input_index": int(number),
                }
            )
        self._reported += len(ended)
        return ended
