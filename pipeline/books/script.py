"""Script: a long text as it is spoken: chapters, and the parts that are spoken one by one.

In:    chapters and parts, the fields of a request that all parts share
Out:   Script, as JSON too; the body and the key of each part
Never: audio; a key that depends on anything but what is asked for

A part is one request for speech. Its key is the hash of that request: equal requests are one piece of audio, and audio that was
made for a key is never made again.
"""

import hashlib
import html
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from pipeline.spec import SAMPLE_RATE, SAMPLES_PER_STEP
from pipeline.text.segment import predicted_steps

KEY_LETTERS = 32  # of a SHA-256

_BEGINNING = '{"parts":['  # of a script as JSON
_DECODER = json.JSONDecoder()
_TAG = re.compile(r"<[^>]*>")


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a long text that is synthesised as one request."""

    text: str
    chapter: int = 0
    """index of its chapter"""
    pause_ms: int = 0
    """silence before it"""
    own: Mapping[str, Any] = field(default_factory=dict)
    """fields of the request that differ from those of the script, such as a voice or a seed"""
    speaker: str = ""
    """who says it in a dialogue; empty: called by the voice"""


@dataclass(frozen=True)
class Script:
    """A long text with all that its audio follows from."""

    parts: tuple[Part, ...]
    chapters: tuple[str, ...] = ("",)
    """titles, in order; empty: it has none"""
    title: str = ""
    author: str = ""
    language: str = ""
    """of the text, as the document names it; empty: not named"""
    cover: str = ""
    """hash of its picture; empty: it has none"""
    speech: Mapping[str, Any] = field(default_factory=dict)
    """fields of a request that all parts share"""

    def body_of(self, number: int) -> dict[str, Any]:
        """Returns the fields of the request for a part."""
        part = self.parts[number]
        return {**self.speech, **part.own, "input": part.text}

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The key of each part, in order."""
        return tuple(content_hash(self.body_of(number)) for number in range(len(self.parts)))

    @cached_property
    def predicted_s(self) -> tuple[float, ...]:
        """About how long each part will be, with the silence before it [s]."""
        return tuple(self._predicted_s(part) for part in self.parts)

    @property
    def characters(self) -> int:
        """Number of characters that are spoken."""
        return sum(map(self.characters_of, range(len(self.parts))))

    def characters_of(self, number: int) -> int:
        """Returns how many characters of a part are spoken."""
        return len(self._spoken(self.parts[number]))

    def with_part(self, number: int, part: Part) -> "Script":
        """Returns the script with another part in a place."""
        return replace(self, parts=(*self.parts[:number], part, *self.parts[number + 1 :]))

    def to_json(self) -> bytes:
        """Returns the script as JSON."""
        parts = ",".join(_json(asdict(part)) for part in self.parts)  # one by one: other threads get the interpreter in between
        return f"{_BEGINNING}{parts}{_json(asdict(replace(self, parts=())))[len(_BEGINNING) :]}".encode()

    def _predicted_s(self, part: Part) -> float:
        speed = float({**self.speech, **part.own}.get("speed", 1.0))
        return part.pause_ms / 1000 + predicted_steps(self._spoken(part)) * SAMPLES_PER_STEP / SAMPLE_RATE / speed

    def _spoken(self, part: Part) -> str:
        """Returns the text of a part, without its markup."""
        if {**self.speech, **part.own}.get("input_type") != "ssml":
            return part.text
        return " ".join(html.unescape(_TAG.sub(" ", part.text)).split())


def read_script(content: bytes) -> Script:
    """Returns the script of its JSON.

    Raises:
        ValueError: it is none, or one of another release.
    """
    try:
        return _script_of(content.decode())
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"no script of this release: {type(error).__name__}") from None


def _script_of(text: str) -> Script:
    place, parts = len(_BEGINNING), list[Part]()
    while text[place] != "]":
        part, place = _DECODER.raw_decode(text, place)
        parts.append(Part(**part))
        place += text[place] == ","
    fields = json.loads(_BEGINNING + text[place:])
    fields.pop("lines", None)  # of batches, which an earlier build had
    return Script(**{**fields, "parts": tuple(parts), "chapters": tuple(fields["chapters"])})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def content_hash(value: Any) -> str:
    """Returns a name for a value of JSON, which no other value has."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:KEY_LETTERS]


def samples_of(ms: int, sample_rate: int) -> int:
    """Returns how many samples a silence has."""
    return math.floor(ms * sample_rate / 1000)
