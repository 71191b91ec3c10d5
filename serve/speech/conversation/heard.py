"""Heard: how far a listener has come in the audio of a context, and which of its text that is.

In:    parts and the seconds of audio that were sent of each, the clock or what the client says it played
Out:   Heard
Owns:  the play cursor of one context
Never: audio
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.spec import STEPS_PER_SECOND
from pipeline.text.incremental import Part
from pipeline.text.segment import predicted_steps
from serve.observability.reply_stats import PlayCursor

_WORD = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]|[^\s\u3400-\u9fff\uf900-\ufaff]*\w[^\s\u3400-\u9fff\uf900-\ufaff]*")


@dataclass(frozen=True, slots=True)
class Heard:
    """How much of a context was heard before it was interrupted."""

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
class _Sent:
    """What was sent of one part."""

    part: Part
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
        self._sent: list[_Sent] = []

    @property
    def sent_s(self) -> float:
        """Seconds of audio that were sent."""
        return sum(sent.audio_s for sent in self._sent)

    @property
    def lead_s(self) -> float:
        """Seconds of audio that were sent and cannot have been played yet."""
        return min(self.sent_s, self._cursor.left_s(self._clock()))

    def began(self, part: Part) -> None:
        """A part is spoken from now on."""
        self._sent.append(_Sent(part))

    def received(self, audio_s: float) -> None:
        """More audio of the present part was sent [s]."""
        self._sent[-1].audio_s += audio_s
        self._cursor.arrived(self._clock(), audio_s)

    def ended(self) -> None:
        """All audio of the present part was sent."""
        self._sent[-1].is_whole = True

    def heard(self, played_s: float | None, *, speed: float) -> Heard:
        """Returns what was heard.

        Args:
            played_s: audio that the client has played; None: as much as it can have played by the clock [s].
            speed: of the speech, which a part that has not been sent whole is expected to have.
        """
        played_s = self.sent_s - self.lead_s if played_s is None else min(played_s, self.sent_s)
        left_s, text, place, is_exact = played_s, "", 0, True
        for sent in self._sent:
            if sent.is_whole and left_s >= sent.audio_s - 1e-6:
                heard = sent.part.text
            elif left_s <= 0:
                break
            else:
                heard, is_exact = _said(sent, left_s, speed), False
            text += f"{heard} "
            place = sent.part.start + len(heard.rstrip()) if heard.strip() else place
            left_s -= sent.audio_s
        unheard_s = self.sent_s - played_s
        return Heard(played_s, place, len(_WORD.findall(text)), is_exact, round(unheard_s * speed * STEPS_PER_SECOND))


def _said(sent: _Sent, played_s: float, speed: float) -> str:
    """Returns the words of a part that are over after so much of its audio, as if all letters took the same time."""
    text = sent.part.text
    expected_s = sent.audio_s
    if not sent.is_whole:
        expected_s = max(expected_s, predicted_steps(text) / STEPS_PER_SECOND / speed)
    reached = int(len(text) * min(1.0, played_s / expected_s))
    whole = [word.end() for word in _WORD.finditer(text) if word.end() <= reached]
    return text[: whole[-1]] if whole else ""
