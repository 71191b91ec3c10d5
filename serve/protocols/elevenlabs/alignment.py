"""Alignment: when each character is heard, as ElevenLabs' clients read it.

In:    TimedItems of words and segments
Out:   characters of the text as written and as spoken, each exactly once and in order, with their times
Owns:  how far both texts have been told
Never: a time between two words that is not shared evenly by the characters there
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.spec import CONTROL_TAGS
from pipeline.types import TimedItem, TimeKind
from serve.speech.times import even

_TAGS = re.compile("|".join(map(re.escape, sorted(CONTROL_TAGS))))

Timed = tuple[str, int, int]
"""a character, where it begins, where it ends [samples]"""


@dataclass(slots=True)
class _Line:
    """One of the two texts."""

    until: int = 0
    """where its last character ends [samples]"""
    timings: list[Timed] = field(default_factory=list)

    def say(self, characters: str, start: int, stop: int) -> None:
        """Tells characters that share a time evenly; none of them begins before the one before it ends."""
        start = max(start, self.until)
        stop = max(start, stop)
        edges = even(start, stop, len(characters))
        self.timings += [(character, *edges[index : index + 2]) for index, character in enumerate(characters)]  # type: ignore[misc]
        self.until = stop if characters else self.until

    def take(self) -> list[Timed]:
        """Returns what was told since the last time."""
        timings, self.timings = self.timings, []
        return timings


class Characters:
    """Both texts of one job."""

    def __init__(self, text: str, *, before: str = "") -> None:
        """
        Args:
            text: as it is written.
            before: characters before it that were not told.
        """
        self._text = text
        self._place = 0  # characters of the text that were told
        self._read = 0  # characters of the present segment as it is spoken that were told
        self._written, self._spoken = _Line(), _Line()
        self._written.say(before, 0, 0)

    def add(self, items: Iterable[TimedItem]) -> None:
        """Tells what the items say."""
        for item in items:
            if item.kind is TimeKind.WORD:
                self._write(item.source[0], item.start)
                self._write(item.source[1], item.stop)
                self._speak(item.before, item.start)
                self._speak(item.reading, item.stop)
                self._read += len(item.before) + len(item.reading)
            elif item.kind is TimeKind.SEGMENT:
                self._write(item.source[1], item.stop)
                self._speak(item.reading[self._read :] + ("" if item.reading[-1:] > "\u2e80" else " "), item.stop)
                self._read = 0

    def finish(self, stop: int) -> None:
        """Tells the rest of the text; the audio ends at sample `stop`. Nothing is told of a text without any time."""
        if self._place:
            self._write(len(self._text), stop)

    @property
    def waits(self) -> bool:
        """True if characters were told that have not been taken."""
        return bool(self._written.timings or self._spoken.timings)

    def take(self) -> tuple[list[Timed], list[Timed]]:
        """Returns the characters as written and as spoken that were told since the last time."""
        return self._written.take(), self._spoken.take()

    def _write(self, until: int, stop: int) -> None:
        self._written.say(self._text[self._place : until], self._written.until, stop)
        self._place = max(self._place, until)

    def _speak(self, characters: str, stop: int) -> None:
        self._spoken.say(_TAGS.sub("", characters), self._spoken.until, stop)


def in_seconds(timings: Sequence[Timed], rate: int) -> dict[str, list[Any]] | None:
    """Returns an alignment as the HTTP routes have it; None without characters."""
    if not timings:
        return None
    return {
        "characters": [character for character, _, _ in timings],
        "character_start_times_seconds": [round(start / rate, 6) for _, start, _ in timings],
        "character_end_times_seconds": [round(stop / rate, 6) for _, _, stop in timings],
    }


def in_milliseconds(timings: Sequence[Timed], rate: int, from_s: float, base_ms: int) -> dict[str, list[Any]] | None:
    """Returns an alignment as the sockets have it; None without characters.

    Args:
        from_s: where the first sample is in the audio of the context [s].
        base_ms: what counts as zero there; no character begins before it [ms].
    """
    if not timings:
        return None
    starts = [max(base_ms, _ms(start, rate, from_s)) for _, start, _ in timings]
    return {
        "chars": [character for character, _, _ in timings],
        "charStartTimesMs": [start - base_ms for start in starts],
        "charDurationsMs": [
            max(0, _ms(stop, rate, from_s) - start) for (_, _, stop), start in zip(timings, starts, strict=True)
        ],
    }


def end_ms(alignment: dict[str, list[Any]]) -> int:
    """Returns where the last character of an alignment ends, in its own counting [ms]."""
    ends: int = alignment["charStartTimesMs"][-1] + alignment["charDurationsMs"][-1]
    return ends


def _ms(sample: int, rate: int, from_s: float) -> int:
    return round(1000 * (from_s + sample / rate))
