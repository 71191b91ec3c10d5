"""Aligned context: the alignments of the messages of one context, on all sockets.

In:    the parts of a context, and what is told about their audio
Out:   both alignments of each message
Owns:  what the alignments of the messages so far have reached
Never: an alignment that a reader would place wrongly: see `from_start`
"""

from collections.abc import Iterable

from pipeline.text.incremental import Part
from pipeline.types import TimedItem
from serve.http.door import Message
from serve.http.elevenlabs.alignment import Characters, end_ms, in_milliseconds

NAMES = ("alignment", "normalizedAlignment")


class AlignedContext:
    """The times of one context."""

    def __init__(self, *, from_start: bool) -> None:
        """
        Args:
            from_start: times count from the beginning of the context. Else those of a message count from the end of the last
                character of the messages before it: readers without sync_alignment add up these ends.
        """
        self._from_start = from_start
        self._reached_ms = dict.fromkeys(NAMES, 0)
        self._characters = Characters("")
        self._rate, self._from_s, self._sent = 1, 0.0, 0
        self._place = 0  # characters of the context's text before the next part
        self._skipped = ""  # characters that were not told

    def begin(self, part: Part, from_s: float, rate: int) -> None:
        """A part is spoken from now on.

        Args:
            from_s: where it begins in the audio of the context [s].
            rate: of its samples [Hz].
        """
        self.skip(part)
        before = self._skipped.removesuffix(part.text)
        self._characters, self._skipped = Characters(part.text, before=before), ""
        self._rate, self._from_s, self._sent = rate, from_s, 0

    def skip(self, part: Part) -> None:
        """A part has nothing to say: its characters are told with those of the next one. Only white space is between parts."""
        self._skipped += " " * (part.start - self._place) + part.text
        self._place = part.start + len(part.text)

    def add(self, items: Iterable[TimedItem]) -> None:
        """More is known about the audio of the part."""
        self._characters.add(items)

    def finish(self, audio_s: float) -> bool:
        """The part has been spoken. Returns True if there are characters that no message has told."""
        self._characters.finish(round(audio_s * self._rate))
        return self._characters.waits

    def take(self, samples: int = 0) -> Message:
        """Returns the alignments of the next message; null without characters.

        Args:
            samples: of the message's audio. Its last character lasts to their end, so that times that count from the end of a
                message's last character count from the end of its audio too; 0: it lasts as long as it is heard.
        """
        alignments: Message = {}
        self._sent += samples
        for name, told in zip(NAMES, self._characters.take(), strict=True):
            if samples and told:
                character, start, stop = told[-1]
                told[-1] = character, start, max(stop, self._sent)
            base_ms = 0 if self._from_start else self._reached_ms[name]
            alignments[name] = alignment = in_milliseconds(told, self._rate, self._from_s, base_ms)
            if alignment is not None:
                self._reached_ms[name] = base_ms + end_ms(alignment)
        return alignments
