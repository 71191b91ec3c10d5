"""Texts: what the corpus says: English, Mandarin, both, with laughs, breaths and three paces.

In:    a random generator
Out:   Drawn
Owns:  the mixture
Never: audio
"""

import random
from dataclasses import dataclass
from typing import Literal

from scripts.train_demo import pieces
from scripts.train_demo.english_texts import english, everyday_words
from scripts.train_demo.mandarin_texts import mandarin
from scripts.train_demo.pieces import Piece

SPEEDS = {"[speed_2]": 0.7, "[speed_5]": 1.0, "[speed_8]": 1.4}  # pace
SPEED_SHARES = (0.06, 0.88, 0.06)
SPEAKER_SHARES = (0.38, 0.38, 0.12, 0.12)
MIXED_SHARE = 0.06
EVENT_SHARE = 0.05  # of laughs, and of breaths


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an utterance in one language, or a sound that is no word."""

    kind: Literal["english", "mandarin", "laugh", "breath"]
    text: str

    def spoken(self, speaker: int, pace: float) -> Piece | None:
        """Returns its sound."""
        if self.kind == "english":
            return pieces.english(self.text, speaker, pace)
        if self.kind == "mandarin":
            return pieces.mandarin(self.text, speaker, pace)
        number = int(self.text)
        return pieces.laugh(speaker, 3 + number % 3) if self.kind == "laugh" else pieces.breath(0.3 + number % 20 / 100, number)


@dataclass(frozen=True, slots=True)
class Drawn:
    """An utterance to be synthesised."""

    parts: tuple[Part, ...]
    speaker: int
    speed: str


def drawn(draw: random.Random, mandarin_share: float) -> Drawn:
    """Returns a random utterance."""
    speaker = draw.choices(range(len(SPEAKER_SHARES)), SPEAKER_SHARES)[0]
    speed = draw.choices(tuple(SPEEDS), SPEED_SHARES)[0]
    main: Literal["english", "mandarin"] = "mandarin" if draw.random() < mandarin_share else "english"
    compose = {"english": english, "mandarin": mandarin}
    found = [Part(main, compose[main](draw))]
    if draw.random() < MIXED_SHARE:
        found = _mixed(draw, main, found[0])
    for kind in ("laugh", "breath"):
        if draw.random() < EVENT_SHARE:
            found = _with_event(draw, Part(kind, str(draw.randrange(1000))), found, Part(main, compose[main](draw)))
    return Drawn(tuple(found), speaker, speed)


def _mixed(draw: random.Random, main: Literal["english", "mandarin"], part: Part) -> list[Part]:
    """Returns words of the other language after a short part, and sometimes more of the first language."""
    if main == "english":
        first, last = (Part("english", everyday_words(draw)) for _ in range(2))
        middle = Part("mandarin", mandarin(draw).rstrip("."))
    else:
        first, last = Part("mandarin", part.text.rstrip(".")), Part("mandarin", mandarin(draw))
        middle = Part("english", everyday_words(draw))
    return [first, middle, last][: draw.randint(2, 3)]


def _with_event(draw: random.Random, event: Part, found: list[Part], more: Part) -> list[Part]:
    """Returns the parts with an event before, after, or before a further part."""
    where = draw.randrange(3)
    if where == 0:
        return [event, *found]
    if where == 1 or sum(len(part.text) for part in (*found, more)) > 110:
        return [*found, event]
    return [*found, event, more]
