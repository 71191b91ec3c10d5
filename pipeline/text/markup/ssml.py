"""SSML: a marked-up text as passages, each in one manner, with exact silence between them.

In:    an SSML document: str
Out:   Document: passages, marks, what could not be honoured
Owns:  nothing
Never: voices' embeddings, tokens, anything outside the document: no DTD, no entities, no files

    speak voice lang p s break prosody(rate, volume) say-as sub phoneme(pinyin, x-homophone) emphasis mark
    mstts:express-as mstts:silence(Leading, Tailing)

What is not in this list is spoken and counted; with `strict` it is refused. Source: W3C SSML 1.1, and Microsoft's
documentation of its `mstts` elements.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from pipeline.errors import InvalidSsml
from pipeline.text.markup.control_tags import neutralise
from pipeline.types import Passage, Pronunciation, PronunciationKind, Prosody

MAX_BYTES = 64 * 1024
MAX_DEPTH = 10
MAX_ELEMENTS = 1000
MAX_TURNS = 50
"""voice and break elements together"""
MAX_BREAK_MS = 10_000

BREAK_MS = {"none": 0, "x-weak": 250, "weak": 500, "medium": 750, "strong": 1000, "x-strong": 1250}
RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.75}
VOLUMES_DB = {"x-soft": -12.0, "soft": -6.0, "medium": 0.0, "default": 0.0, "loud": 3.0, "x-loud": 6.0}
MAX_GAIN_DB = 12.0
MIN_GAIN_DB = -60.0
SILENT_DB = -120.0

STYLES: dict[str, Prosody] = {
    "calm": Prosody(rate=0.9, gain_db=-2.0),
    "cheerful": Prosody(rate=1.08, gain_db=1.0),
    "excited": Prosody(rate=1.15, gain_db=2.0),
    "sad": Prosody(rate=0.85, gain_db=-3.0),
    "serious": Prosody(rate=0.95),
    "gentle": Prosody(rate=0.92, gain_db=-3.0),
    "newscast": Prosody(rate=1.1),
    "chat": Prosody(rate=1.05),
}
"""mstts:express-as: a pace and a loudness; ChatTTS has no other handle on a style"""

SAY_AS = frozenset(
    [
        "date",
        "time",
        "cardinal",
        "number",
        "ordinal",
        "digits",
        "number_digit",
        "characters",
        "spell-out",
        "telephone",
        "currency",
    ]
)

_DURATION = re.compile(r"\+?(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(ms|s)")
_PERCENT = re.compile(r"([+-]?)(\d{1,4}(?:\.\d{0,6})?)%")
_FACTOR = re.compile(r"\d{1,3}(?:\.\d{0,6})?")
_DECIBEL = re.compile(r"([+-]?\d{1,3}(?:\.\d{0,6})?)dB", re.IGNORECASE)
_SPACES = re.compile(r"\s+")
_LANGUAGE_ATTRIBUTE = "{http://www.w3.org/XML/1998/namespace}lang"
_UNSPOKEN = frozenset(["metadata", "meta", "lexicon", "desc"])


@dataclass(frozen=True, slots=True)
class Document:
    """What an SSML document asks for."""

    passages: tuple[Passage, ...]
    marks: tuple[tuple[str, int], ...]
    """name, and how many characters of text stand before it"""
    warnings: tuple[tuple[str, int], ...]
    """code and how often, of everything that could not be honoured"""

    @property
    def text(self) -> str:
        """The text content: what the passages' texts add up to."""
        return "".join(passage.text for passage in self.passages)


def parse(written: str, *, control_tags: bool = False, strict: bool = False) -> Document:
    """Read a document.

    Args:
        control_tags: whether [laugh] and the like in its text are control tags.
        strict: refuse what cannot be honoured instead of counting it.

    Raises:
        InvalidSsml: not well-formed, outside the limits, or strict and with warnings.
    """
    reader = _Reader(control_tags=control_tags)
    reader.read(_tree(written))
    document = reader.document()
    if strict and document.warnings:
        codes = ", ".join(f"{code} x{count}" for code, count in document.warnings)
        raise _invalid(f"strict=1 refuses what cannot be honoured: {codes}")
    return document


def _tree(written: str) -> Element:
    try:
        size = len(written.encode())
        if size > MAX_BYTES:
            raise _invalid(f"the document has {size} bytes; the limit is {MAX_BYTES}")
        root: Element = fromstring(written.encode(), forbid_dtd=True)
    except DefusedXmlException:
        raise _invalid("a DTD and entities are not taken; write characters as they are, or as &amp; &lt; &gt; &#...;") from None
    except ParseError as error:
        line, column = error.position
        raise _invalid(
            f"not well-formed at line {line}, column {column + 1}: every element is closed, & is &amp;, < is &lt;, "
            'and a prefix like mstts is declared (xmlns:mstts="https://www.w3.org/2001/mstts")'
        ) from None
    except (UnicodeError, ValueError, LookupError):
        raise _invalid("the document is not Unicode text, or declares another encoding than UTF-8") from None
    if _name(root) != "speak":
        raise _invalid("the outermost element is not speak")
    return root


class _Reader:
    """Walks the tree once; owns the passages that are being written."""

    def __init__(self, *, control_tags: bool) -> None:
        self._control_tags = control_tags
        self._warnings: Counter[str] = Counter()
        self._passages: list[Passage] = []
        self._text = ""
        self._pronunciations: list[Pronunciation] = []
        self._silence_ms = 0
        self._prosody = Prosody()
        self._language = "auto"
        self._tailing_ms = 0
        self._marks: list[tuple[str, int]] = []
        self._length = 0  # characters in the passages that are finished
        self._elements = 0
        self._turns = 0
        self._elements_of: dict[str, Callable[[Element, Prosody, str, int], None]] = {
            "speak": self._inside,
            "voice": self._voice,
            "lang": self._inside,
            "p": self._sentence,
            "s": self._sentence,
            "break": self._break,
            "prosody": self._prosody_element,
            "say-as": self._say_as,
            "sub": self._sub,
            "phoneme": self._phoneme,
            "emphasis": self._emphasis,
            "mark": self._mark,
            "express-as": self._express_as,
            "silence": self._silence,
        }

    def read(self, root: Element) -> None:
        self._element(root, Prosody(), "auto", 1)
        self._close(Prosody(), "auto")
        self._silence_ms += self._tailing_ms
        if self._silence_ms:
            self._passages.append(Passage("", silence_ms=self._silence_ms))

    def document(self) -> Document:
        return Document(tuple(self._passages), tuple(self._marks), tuple(sorted((+self._warnings).items())))

    # Text and the passages it goes into.

    def _say(self, text: str | None, prosody: Prosody, language: str) -> None:
        if not text:
            return
        if not text.isspace():
            self._turn_to(prosody, language)
        if not self._control_tags:
            text = neutralise(text, allowed=False)
        text = _SPACES.sub(" ", text)
        self._text += text.lstrip() if self._text.endswith((" ", "\n")) else text

    def _turn_to(self, prosody: Prosody, language: str) -> None:
        """What follows is said in this prosody."""
        if (prosody, language) != (self._prosody, self._language):
            self._close(prosody, language)

    def _close(self, prosody: Prosody, language: str) -> None:
        """End the passage; the next one is in another prosody, or after a silence."""
        if self._text.strip():
            self._passages.append(
                Passage(
                    text=self._text,
                    pronunciations=tuple(self._pronunciations),
                    control_tags=True,
                    language=self._language,
                    prosody=self._prosody,
                    silence_ms=self._silence_ms,
                )
            )
            self._length += len(self._text)
            self._silence_ms = 0
        self._text = ""
        self._pronunciations = []
        self._prosody, self._language = prosody, language

    def _pause(self, duration_ms: int) -> None:
        if duration_ms:
            self._close(self._prosody, self._language)
            self._silence_ms += duration_ms

    # Elements.

    def _element(self, element: Element, prosody: Prosody, language: str, depth: int) -> None:
        self._elements += 1
        if depth > MAX_DEPTH:
            raise _invalid(f"elements are nested more than {MAX_DEPTH} deep")
        if self._elements > MAX_ELEMENTS:
            raise _invalid(f"more than {MAX_ELEMENTS} elements")
        name = _name(element)
        if name in ("voice", "break"):
            self._turns += 1
            if self._turns > MAX_TURNS:
                raise _invalid(f"more than {MAX_TURNS} voice and break elements")
        language = self._language_of(element, language)
        if name in _UNSPOKEN:
            self._warnings["unspoken_element"] += 1
        elif name in self._elements_of and (depth == 1 or name != "speak"):
            self._elements_of[name](element, prosody, language, depth)
        else:
            self._warnings["unknown_element"] += 1
            self._inside(element, prosody, language, depth)

    def _inside(self, element: Element, prosody: Prosody, language: str, depth: int) -> None:
        self._say(element.text, prosody, language)
        for child in element:
            self._element(child, prosody, language, depth + 1)
            self._say(child.tail, prosody, language)

    def _sentence(self, element: Element, prosody: Prosody, language: str, depth: int) -> None:
        self._end_line()
        self._inside(element, prosody, language, depth)
        self._end_line()

    def _end_line(self) -> None:
        if self._text.strip():
            self._text = self._text.rstrip() + "\n"

    def _voice(self, element: Element, prosody: Prosody, language: str, depth: int) -> None:
        name = element.get("name")
        if not name:
            raise _invalid('voice has no name; write <voice name="...">, GET /v1/audio/voices lists the names')
        self._inside(element, replace(prosody, voice=name), language, depth)

    def _break(self, element: Element, prosody: Prosody, language: str, depth: int) -> None:
        time, strength = element.get("time"), element.get("strength", "medium")
        if time is None and strength not in BREAK_MS:
            raise _invalid(f"break: strength is one of {', '.join(BREAK_MS)}")
        self._pause(BREAK_MS[strength] if time is None else _milliseconds(time))
        self._inside(element, prosody, language, depth)

    def _silence(self, element: Element, prosody: Prosody, language: str, depth: int) -> None:
        kind = (element.get("type") or "").lower().removesuffix("-exact")
        duration_ms = _milliseconds(element.get("value") or "")
        if kind == "leading" and not self._passages and not self._text.strip():
            self._pause(duration_ms)
        elif kind == "tailing":
            self._tailing_ms = duration_ms
        else:
            self._warnings["unsupported_silence"] += 1
        self._inside(element, prosody, language, depth)

    def _prosody_element(self, element: Element, prosody: Prosody, language: str, depth: int) -> None:
        rate, volume = element.get("rate"), element.get("volume")
        if rate is not None:
            prosody = replace(prosody, rate=prosody.rate * _rate(rate))
        if volume is not None:
            prosody = replace(prosody, gain_db=_gain(volume, prosody.gain_db))
        ignored = set(element.keys()) - {"rate", "volume", _LANGUAGE_ATTRIBUTE}
        self._warnings["unsupported_prosody"] += len(ignored)
        self._inside(element, prosody, language, depth)

    def _express_as(self, element: Element, prosody: Prosody, language: str, depth: int) -> None:
        style = STYLES.get((element.get("style") or "").lower())
        if style is None:
            self._warnings["unknown_style"] += 1
        else:
            prosody = replace(prosody, rate=prosody.rate * style.rate, gain_db=prosody.gain_db + style.gain_db)
        self._inside(element, prosody, language, depth)

    def _emphasis(self, element: Element, prosody: Prosody, language: str, depth: int) -> None:
        # A held breath before the word: a segment of its own would cost the sentence its melody.
        if element.get("level", "moderate") in ("strong", "moderate"):
            self._turn_to(prosody, language)
            self._text += "[uv_break]"
        self._inside(element, prosody, language, depth)

    def _mark(self, element: Element, prosody: Prosody, language: str, depth: int) -> None:
        self._marks.append((element.get("name") or "", self._length + len(self._text)))
        self._inside(element, prosody, language, depth)

    def _say_as(self, element: Element, prosody: Prosody, language: str, depth: int) -> None:
        kind = (element.get("interpret-as") or "").lower()
        if kind not in SAY_AS:
            self._warnings["unknown_say_as"] += 1
            self._inside(element, prosody, language, depth)
            return
        form = (element.get("format") or element.get("detail") or "").lower()
        self._pronounced(element, prosody, language, depth, PronunciationKind.SAY_AS, f"{kind}:{form}" if form else kind)

    def _sub(self, element: Element, prosody: Prosody, language: str, depth: int) -> None:
        alias = element.get("alias")
        if not alias or alias.isspace():
            raise _invalid('sub has no alias; write <sub alias="what is said">what is written</sub>')
        self._pronounced(element, prosody, language, depth, PronunciationKind.ALIAS, alias)

    def _phoneme(self, element: Element, prosody: Prosody, language: str, depth: int) -> None:
        alphabet, sounds = (element.get("alphabet") or "").lower(), element.get("ph") or ""
        kind = {"pinyin": PronunciationKind.PINYIN, "x-homophone": PronunciationKind.ALIAS}.get(alphabet)
        if kind is None or not sounds.strip():
            self._warnings["unsupported_phoneme"] += 1
            self._inside(element, prosody, language, depth)
        else:
            self._pronounced(element, prosody, language, depth, kind, sounds)

    def _pronounced(
        self, element: Element, prosody: Prosody, language: str, depth: int, kind: PronunciationKind, value: str
    ) -> None:
        """The element's text, said as `value` says. Elements inside lose their meaning and keep their text."""
        nested = list(element.iter())[1:]
        if nested:
            self._warnings["nested_element"] += len(nested)
        text = _SPACES.sub(" ", neutralise("".join(element.itertext()), allowed=False)).strip()
        if not text:
            return
        self._turn_to(prosody, language)
        self._pronunciations.append(Pronunciation(len(self._text), len(self._text) + len(text), kind, value))
        self._text += text

    def _language_of(self, element: Element, language: str) -> str:
        asked = element.get(_LANGUAGE_ATTRIBUTE)
        if asked is None:
            return language
        primary = asked.lower().partition("-")[0]
        if primary not in ("zh", "en"):
            self._warnings["unsupported_language"] += 1
            return "auto"
        return primary


def _name(element: Element) -> str:
    """Without its namespace. Comments and processing instructions never get here."""
    tag: Any = element.tag
    return str(tag).rpartition("}")[2]


def _milliseconds(written: str) -> int:
    found = _DURATION.fullmatch(written.strip())
    if not found:
        raise _invalid("a duration is a number and ms or s, as in 250ms or 1.5s")
    duration_ms = round(float(found[1]) * (1000 if found[2] == "s" else 1))
    if duration_ms > MAX_BREAK_MS:
        raise _invalid(f"one break lasts at most {MAX_BREAK_MS} ms")
    return duration_ms


def _rate(written: str) -> float:
    """A factor on the rate: a word, 80% or 1.2 of it, +10% or -10% more or less than it."""
    written = written.strip().lower()
    percent = _PERCENT.fullmatch(written)
    if written in RATES:
        return RATES[written]
    if percent:
        share = float(percent[2]) / 100
        rate = {"": share, "+": 1 + share, "-": 1 - share}[percent[1]]
    elif _FACTOR.fullmatch(written):
        rate = float(written)
    else:
        raise _invalid(f"prosody: rate is one of {', '.join(RATES)}, or a factor like 1.2, 80%, +20% or -20%")
    if not 0.1 <= rate <= 10:
        raise _invalid("prosody: rate is between 10% and 1000%")
    return rate


def _gain(written: str, outer_db: float) -> float:
    """In decibels: a word or 0 .. 100 in place of the outer volume; +6dB, +20% or -20% on top of it."""
    word = written.strip().lower()
    decibel, percent = _DECIBEL.fullmatch(word), _PERCENT.fullmatch(word)
    if word == "silent":
        return SILENT_DB
    if word in VOLUMES_DB:
        gain = VOLUMES_DB[word]
    elif decibel:
        gain = outer_db + float(decibel[1])
    elif percent and percent[1]:
        share = float(percent[2]) / 100
        gain = outer_db + _decibels(1 + share if percent[1] == "+" else max(0.0, 1 - share))
    elif _FACTOR.fullmatch(word) and float(word) <= 100:
        gain = _decibels(float(word) / 100)
    else:
        raise _invalid(f"prosody: volume is silent, one of {', '.join(VOLUMES_DB)}, 0 to 100, or a change like +6dB or -20%")
    return SILENT_DB if gain < MIN_GAIN_DB else min(MAX_GAIN_DB, gain)


def _decibels(factor: float) -> float:
    return 20 * math.log10(factor) if factor > 0 else SILENT_DB


def _invalid(message: str) -> InvalidSsml:
    return InvalidSsml(f"SSML: {message}", param="input")
