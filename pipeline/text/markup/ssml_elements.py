"""SSML elements: one function per element, and the words its attributes may have.

In:    an element and its scope
Out:   calls of the reader: text, pauses, marks, warnings
Never: the order of the document, passages
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from xml.etree.ElementTree import Element

from pipeline.text.markup.ssml_reader import LANGUAGE_ATTRIBUTE, Handler, Scope, SsmlReader, invalid
from pipeline.types import PronunciationKind, Prosody

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
"""mstts:express-as: a pace and a loudness; ChatTTS has no other control over style"""

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


def _inside(reader: SsmlReader, element: Element, scope: Scope) -> None:
    reader.read_inside(element, scope)


def _sentence(reader: SsmlReader, element: Element, scope: Scope) -> None:
    reader.end_line()
    reader.read_inside(element, scope)
    reader.end_line()


def _voice(reader: SsmlReader, element: Element, scope: Scope) -> None:
    name = element.get("name")
    if not name:
        raise invalid('voice has no name; write <voice name="...">, GET /v1/audio/voices lists the names')
    reader.read_inside(element, replace(scope, prosody=replace(scope.prosody, voice=name)))


def _break(reader: SsmlReader, element: Element, scope: Scope) -> None:
    time, strength = element.get("time"), element.get("strength", "medium")
    if time is None and strength not in BREAK_MS:
        raise invalid(f"break: strength is one of {', '.join(BREAK_MS)}")
    reader.pause(BREAK_MS[strength] if time is None else _milliseconds(time))
    reader.read_inside(element, scope)


def _silence(reader: SsmlReader, element: Element, scope: Scope) -> None:
    kind = (element.get("type") or "").lower().removesuffix("-exact")
    duration_ms = _milliseconds(element.get("value") or "")
    if kind == "leading" and reader.is_at_start:
        reader.pause(duration_ms)
    elif kind == "tailing":
        reader.tailing_ms = duration_ms
    else:
        reader.warnings["unsupported_silence"] += 1
    reader.read_inside(element, scope)


def _prosody(reader: SsmlReader, element: Element, scope: Scope) -> None:
    prosody = scope.prosody
    rate, volume = element.get("rate"), element.get("volume")
    if rate is not None:
        prosody = replace(prosody, rate=prosody.rate * _rate(rate))
    if volume is not None:
        prosody = replace(prosody, gain_db=_gain(volume, prosody.gain_db))
    ignored = set(element.keys()) - {"rate", "volume", LANGUAGE_ATTRIBUTE}
    reader.warnings["unsupported_prosody"] += len(ignored)
    reader.read_inside(element, replace(scope, prosody=prosody))


def _express_as(reader: SsmlReader, element: Element, scope: Scope) -> None:
    prosody, style = scope.prosody, STYLES.get((element.get("style") or "").lower())
    if style is None:
        reader.warnings["unknown_style"] += 1
    else:
        prosody = replace(prosody, rate=prosody.rate * style.rate, gain_db=prosody.gain_db + style.gain_db)
    reader.warnings["unsupported_style"] += len(set(element.keys()) - {"style", LANGUAGE_ATTRIBUTE})  # a degree, a role
    reader.read_inside(element, replace(scope, prosody=prosody))


def _emphasis(reader: SsmlReader, element: Element, scope: Scope) -> None:
    # A pause before the word: in a segment of its own it would lose the melody of the sentence.
    level = element.get("level", "moderate")
    if level in ("strong", "moderate"):
        reader.say("[uv_break]", scope)
    elif level != "none":
        reader.warnings["unsupported_emphasis"] += 1
    reader.read_inside(element, scope)


def _laugh(reader: SsmlReader, element: Element, scope: Scope) -> None:
    reader.say(" [laugh] ", scope)
    reader.read_inside(element, scope)


def _mark(reader: SsmlReader, element: Element, scope: Scope) -> None:
    reader.mark(element.get("name") or "")
    reader.read_inside(element, scope)


def _say_as(reader: SsmlReader, element: Element, scope: Scope) -> None:
    kind = (element.get("interpret-as") or "").lower()
    if kind not in SAY_AS:
        reader.warnings["unknown_say_as"] += 1
        reader.read_inside(element, scope)
        return
    form = (element.get("format") or element.get("detail") or "").lower()
    reader.say_pronounced(element, scope, PronunciationKind.SAY_AS, f"{kind}:{form}" if form else kind)


def _sub(reader: SsmlReader, element: Element, scope: Scope) -> None:
    alias = element.get("alias")
    if not alias or alias.isspace():
        raise invalid('sub has no alias; write <sub alias="spoken text">written text</sub>')
    reader.say_pronounced(element, scope, PronunciationKind.ALIAS, alias)


def _phoneme(reader: SsmlReader, element: Element, scope: Scope) -> None:
    alphabet, sounds = (element.get("alphabet") or "").lower(), element.get("ph") or ""
    kind = {"pinyin": PronunciationKind.PINYIN, "x-homophone": PronunciationKind.ALIAS}.get(alphabet)
    if kind is None or not sounds.strip():
        reader.warnings["unsupported_phoneme"] += 1
        reader.read_inside(element, scope)
    else:
        reader.say_pronounced(element, scope, kind, sounds)


ELEMENTS: Mapping[str, Handler] = {
    "speak": _inside,
    "voice": _voice,
    "lang": _inside,
    "p": _sentence,
    "s": _sentence,
    "break": _break,
    "prosody": _prosody,
    "say-as": _say_as,
    "sub": _sub,
    "phoneme": _phoneme,
    "emphasis": _emphasis,
    "laugh": _laugh,
    "mark": _mark,
    "express-as": _express_as,
    "silence": _silence,
}
"""the handler of each element, by its name without a namespace"""


def _milliseconds(written: str) -> int:
    match = _DURATION.fullmatch(written.strip())
    if not match:
        raise invalid("a duration is a number and ms or s, as in 250ms or 1.5s")
    duration_ms = round(float(match[1]) * (1000 if match[2] == "s" else 1))
    if duration_ms > MAX_BREAK_MS:
        raise invalid(f"one break lasts at most {MAX_BREAK_MS} ms")
    return duration_ms


def _rate(written: str) -> float:
    """Returns a factor on the rate, from a word, 80%, 1.2, +10% or -10%."""
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
        raise invalid(f"prosody: rate is one of {', '.join(RATES)}, or a factor like 1.2, 80%, +20% or -20%")
    if not 0.1 <= rate <= 10:
        raise invalid("prosody: rate is between 10% and 1000%")
    return rate


def _gain(written: str, outer_db: float) -> float:
    """Returns a gain [dB]: a word or 0 .. 100 replaces the outer volume; +6dB, +20% or -20% changes it."""
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
        raise invalid(f"prosody: volume is silent, one of {', '.join(VOLUMES_DB)}, 0 to 100, or a change like +6dB or -20%")
    return SILENT_DB if gain < MIN_GAIN_DB else min(MAX_GAIN_DB, gain)


def _decibels(factor: float) -> float:
    return 20 * math.log10(factor) if factor > 0 else SILENT_DB
