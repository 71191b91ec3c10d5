"""Played: how far a listener has come in the audio of a context, and which of its text that is.

In:    parts and the seconds of audio that were sent of each, the clock or what the client says it played
Out:   Played
Owns:  the play cursor of one context
Never: audio
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.spec import STEPS_PER_SECOND
from pipeline.text.incremental import Part
from pipeline.text.segment import predicted_steps
from serve.observability.reply_stats import PlayCursor


@dataclass(frozen=True, slots=True)
class Played:
    """How much of a context was played before it was interrupted."""

    played_s: float
    characters: int
    """place in the context's text behind the last word that was heard to its end"""
    words: int
    """words, and Chinese characters, before that place"""
    is_exact: bool
    """True if it is the end of a part; else the place in a part is estimated by its length"""
    unheard_steps: int
    """steps of the model whose audio was sent and not heard"""


@dataclass(slots=True)
class _SentPart:
    """What was sent of one part."""

    part: Part
    words: int
    audio_s: float = 0.0
    is_whole: bool = False


class Listener:
    """Follows what a listener hears who plays the audio of a context at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """
        Args:
            clock: seconds, of any beginning.
        """
        self._clock = clock
        self._cursor = PlayCursor()
        self._parts: list[_SentPart] = []
        self.sent_s = 0.0
        """seconds of audio that were sent"""

    @property
    def lead_s(self) -> float:
        """Seconds of audio that were sent and cannot have been played yet."""
        return min(self.sent_s, self._cursor.left_s(self._clock()))

    def began(self, part: Part) -> None:
        """A part is spoken from now on."""
        self._parts.append(_SentPart(part, sum(1 for _ in word_ends(part.text))))

    def received(self, audio_s: float) -> None:
        """More audio of the present part was sent [s]."""
        self._parts[-1].audio_s += audio_s
        self.sent_s += audio_s
        self._cursor.arrived(self._clock(), audio_s)

    def ended(self) -> None:
        """All audio of the present part was sent."""
        self._parts[-1].is_whole = True

    def played(self, played_s: float | None, *, speed: float) -> Played:
        """Returns what was played.

        Args:
            played_s: audio that the client has played; None: as much as it can have played by the clock [s].
            speed: of the speech, which a part that has not been sent whole is expected to have.
        """
        played_s = self.sent_s - self.lead_s if played_s is None else min(played_s, self.sent_s)
        left_s, words, place, is_exact = played_s, 0, 0, True
        for part in self._parts:
            if part.is_whole and left_s >= part.audio_s - 1e-6:
                text, count = part.part.text, part.words
            elif left_s <= 0:
                break
            else:
                (text, count), is_exact = _words_played(part, left_s, speed), False
            words += count
            place = part.part.start + len(text.rstrip()) if text.strip() else place
            left_s -= part.audio_s
        unheard_s = self.sent_s - played_s
        return Played(played_s, place, words, is_exact, round(unheard_s * speed * STEPS_PER_SECOND))


def _words_played(part: _SentPart, played_s: float, speed: float) -> tuple[str, int]:
    """Returns the words of a part that are over after so much of its audio, as if all letters took the same time, and how
    many they are."""
    text = part.part.text
    expected_s = part.audio_s
    if not part.is_whole:
        expected_s = max(expected_s, predicted_steps(text) / STEPS_PER_SECOND / speed)
    reached = int(len(text) * min(1.0, played_s / expected_s))
    whole = [end for end in word_ends(text) if end <= reached]
    return text[: whole[-1]] if whole else "", len(whole)


def word_ends(text: str) -> Iterator[int]:
    """Yields where each word ends, and each Chinese character: one look at every character, however they are mixed."""
    is_word = False  # what stands behind the last blank or Chinese character has a letter or a digit
    for place, character in enumerate(text):
        is_chinese = "\u3400" <= character <= "\u9fff" or "\uf900" <= character <= "\ufaff"
        if is_chinese or character.isspace():
            if is_word:
                yield place
            if is_chinese:
                yield place + 1
            is_word = False
        elif not is_word:
            is_word = character.isalnum() or character == "_"
    if is_word:
        yield len(text)
