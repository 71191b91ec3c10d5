"""Quota reports: what one replica knows of a key's numbers in Redis, and what Redis does not know yet.

In:    answers of Redis; what was counted without it
Out:   floors, which Redis may not fall below; reports, which count once however often they are sent
Owns:  nothing that outlives the process
Never: Redis
"""

import secrets
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """What Redis does not know yet of one key. Sent again until there is an answer; its tokens count once."""

    token: str = field(default_factory=lambda: secrets.token_hex(8))
    audio_s: float = 0.0
    """scaled to the quota"""
    charges: dict[tuple[str, int], int] = field(default_factory=dict)
    """by token and day: characters; below 0: given back"""

    def add(self, day: int, characters: int) -> None:
        """Adds characters that were never sent; charges and refunds are told apart."""
        name = (f"{self.token}{'+' if characters > 0 else '-'}", day)
        self.charges[name] = self.charges.get(name, 0) + characters

    def take_back(self, token: str, day: int, characters: int) -> None:
        """Adds the refund of one charge, which counts once whoever tells it."""
        self.charges[f"{token}-", day] = -characters

    @property
    def values(self) -> list[str | int]:
        """The number of charges; for each its token, day and characters. Refunds come last: none exceeds what is charged."""
        charges = sorted(self.charges.items(), key=lambda charge: charge[1] < 0)
        return [len(charges), *(value for (token, day), characters in charges for value in (token, day, characters))]

    @property
    def is_empty(self) -> bool:
        return not self.audio_s and not self.charges


@dataclass(slots=True)
class Known:
    """What Redis has said about one key."""

    day: int = 0
    charged: int = 0
    refunded: int = 0
    audio_due: float = 0.0
    """monotonic seconds"""

    def learn(self, day: int, charged: int, refunded: int) -> None:
        """Takes over what Redis says. It may have lost some of it: within a day both sums only grow."""
        if day != self.day:
            self.day, self.charged, self.refunded = day, charged, refunded
        self.charged, self.refunded = max(self.charged, charged), max(self.refunded, refunded)

    def learn_audio(self, ahead_s: float) -> None:
        self.audio_due = max(self.audio_due, time.monotonic() + ahead_s)

    @property
    def sums(self) -> list[int]:
        return [self.day, self.charged, self.refunded]

    @property
    def audio_ahead_s(self) -> float:
        return max(0.0, self.audio_due - time.monotonic())
