"""Options: the switches of the normaliser and the readings a caller may give.

Out:   NormalizeOptions, Reading, the names of the languages
Never: rules
"""

from dataclasses import dataclass
from typing import Literal

Language = Literal["zh", "en"]
LanguageChoice = Literal["auto", "zh", "en"]
LANGUAGE_CHOICES: tuple[LanguageChoice, ...] = ("auto", "zh", "en")


@dataclass(frozen=True, slots=True)
class NormalizeOptions:
    """The kinds of writing that are interpreted. A kind that is off is read sign by sign; nothing is lost either way."""

    numbers: bool = True
    """False: every digit is read on its own"""
    dates: bool = True
    """times of day as well"""
    units: bool = True
    urls: bool = True
    """file names and IP addresses as well"""
    emails: bool = True
    phone: bool = True
    markdown: bool = True
    html: bool = True
    emoji: Literal["speak", "drop", "pause"] = "drop"
    homophones: bool = True
    """rare characters ChatTTS misreads become common ones of the same sound"""


PLAIN = NormalizeOptions(
    numbers=False, dates=False, units=False, urls=False, emails=False, phone=False, markdown=False, html=False, homophones=False
)
"""`normalize: false`"""


@dataclass(frozen=True, slots=True)
class Reading:
    """Characters [start, stop) of the source are spoken as `spoken`, before any rule: a lexicon entry,
    an SSML alias. `spoken` is speakable text without control tags, as `normalize` returns it."""

    start: int
    stop: int
    spoken: str
