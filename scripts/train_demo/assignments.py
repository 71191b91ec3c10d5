"""Assignments: what the teacher is to read, and who reads it.

In:    a random generator
Out:   Assignment
Owns:  the speakers, their shares, the paces, the laughs and breaths
Never: audio
"""

import random
from dataclasses import dataclass
from itertools import accumulate

from scripts.train_demo.kokoro import MOST_PHONES, alphabet
from scripts.train_demo.prose import Text, text
from scripts.train_demo.sounds import SPACE, Unit, sounds
from scripts.train_demo.tokens import BREATH, LAUGH, SPEEDS

SPEAKERS = (("am_michael", "zm_yunxi"), ("af_heart", "zf_xiaoxiao"), ("bf_isabella", "zf_xiaoni"))
"""voices of English and of Mandarin that are one speaker"""
SPEAKER_SHARES = (0.2, 0.28, 0.16)  # of recordings by one speaker; the others are blends
BLEND_SPREAD, MOST_OPPOSED = 0.5, 0.25  # of the vector that seeds draw; how far behind a speaker a blend may lie
LAUGH_SHARE, BREATH_SHARE = 0.04, 0.05
LAUGHS = ("hˈɑhɑhɑ", "hˈɑhɑ", "hˈæhæhæhæ")
PACE_SHARES = (0.05, 0.9, 0.05)
CHINESE_SHARE, MIXED_SHARE = 0.42, 0.08


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is read, and by whom: the speakers' shares of the voice, which sum to 1."""

    text: Text
    units: tuple[Unit, ...]
    shares: tuple[float, ...]
    speed: str
    """the token of its pace"""

    @property
    def phones(self) -> str:
        """All phones, units one after another."""
        return "".join(unit.phones for unit in self.units)

    @property
    def voices(self) -> list[tuple[str, float]]:
        """The voices of the text's language and their shares."""
        column = 1 if self.text.language == "zh" or "\u4e00" <= self.text.written[0] <= "\u9fff" else 0
        return [(names[column], share) for names, share in zip(SPEAKERS, self.shares, strict=True) if share]


def assignment(draw: random.Random) -> Assignment:
    """Draws a text that the teacher can read, and who reads it."""
    while True:
        drawn = text(draw, CHINESE_SHARE, MIXED_SHARE)
        units = sounds(drawn.written)
        if not units or not all(phone in alphabet() for unit in units for phone in unit.phones):
            continue
        speed = draw.choices(tuple(SPEEDS), PACE_SHARES)[0]
        candidate = Assignment(drawn, _with_events(draw, units), _shares(draw), speed)
        if len(candidate.phones) <= MOST_PHONES:
            return candidate


def _shares(draw: random.Random) -> tuple[float, ...]:
    """Returns one speaker, or a blend as a seed draws it: a normal vector around the middle."""
    pure = draw.random()
    for place, until in enumerate(accumulate(SPEAKER_SHARES)):
        if pure < until:
            return tuple(float(place == other) for other in range(len(SPEAKERS)))
    parts = [max(-MOST_OPPOSED, draw.gauss(len(SPEAKERS) ** -0.5, BLEND_SPREAD)) for _ in SPEAKERS]
    return tuple(round(part / sum(parts), 3) for part in parts) if sum(parts) > 0.7 else _shares(draw)


def _with_events(draw: random.Random, units: tuple[Unit, ...]) -> tuple[Unit, ...]:
    """Returns units with a laugh, or a breath, in place of a space between words, or at an end."""
    for share, token in ((LAUGH_SHARE, LAUGH), (BREATH_SHARE, BREATH)):
        if draw.random() < share:
            phones = f" {draw.choice(LAUGHS)}, " if token == LAUGH else ", "
            spaces = [at for at, unit in enumerate(units) if unit.token == SPACE]
            at = draw.choice([*spaces, len(units)])
            units = (*units[:at], Unit(token, phones), *units[at + 1 :])
    return units
