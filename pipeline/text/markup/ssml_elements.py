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

from pipeline.text.language_tags import reading_of
from pipeline.text.markup.ssml_reader import LANGUAGE_ATTRIBUTE, Handler, Scope, SsmlReader, attributes
from pipeline.text.pinyin import homophones
from pipeline.text.pronunciation import phones_of_ipa
from pipeline.text.say_as import KINDS
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

VOICES: Mapping[str, tuple[str, ...]] = {
    "male": ("onyx", "ash", "echo", "cedar", "sage", "verse"),
    "female": ("nova", "alloy", "coral", "ballad"),
    "neutral": ("fable", "shimmer", "marin"),
}
"""a gender -> the shipped voices that sound so with the demo checkpoint, for the attribute `variant` to choose from"""
CHOSEN_VOICES = frozenset(voice for voices in VOICES.values() for voice in voices)
"""of them an operator's catalogue may lack some; then the request's own voice speaks"""
PINYIN_ALPHABETS = dict.fromkeys(
    ("pinyin", "x-pinyin", "hanyu-pinyin", "x-amazon-pinyin", "x-microsoft-pinyin", "sapi"), PronunciationKind.PINYIN
)
UNKNOWN_VALUE = "unknown_value"
"""warning: attributes with a value that is not understood; their elements are spoken as if they had none"""

_DURATION = re.compile(r"\+?(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})\s?(ms|s|)", re.IGNORECASE)
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
    name, gender, language = (element.get(key, "") for key in ("name", "gender", "language"))
    voices = VOICES.get(gender.lower(), ())
    variant = element.get("variant", "1")
    if not name and voices:
        name = voices[(int(variant) - 1) % len(voices) if variant.isdecimal() and len(variant) < 4 else 0]
    reading = reading_of(language or element.get("languages", "").split(" ")[0]) if not name else None
    if not (name or reading or element.get(LANGUAGE_ATTRIBUTE)):
        reader.warnings["unknown_voice"] += 1
    scope = replace(scope, language=reading or scope.language)
    reader.read_inside(element, replace(scope, prosody=replace(scope.prosody, voice=name or scope.prosody.voice)))


def _break(reader: SsmlReader, element: Element, scope: Scope) -> None:
    time, strength = element.get("time"), element.get("strength", "medium")
    if time is None and strength not in BREAK_MS:
        reader.warnings[UNKNOWN_VALUE] += 1
    usual_ms = BREAK_MS.get(strength, BREAK_MS["medium"])
    reader.pause(usual_ms if time is None else _milliseconds(reader, time, usual_ms))
    reader.read_inside(element, scope)


def _silence(reader: SsmlReader, element: Element, scope: Scope) -> None:
    kind = (element.get("type") or "").lower().removesuffix("-exact")
    duration_ms = _milliseconds(reader, element.get("value") or "", 0)
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
        factor = _rate(rate)
        reader.warnings[UNKNOWN_VALUE] += factor is None
        prosody = replace(prosody, rate=prosody.rate * (factor or 1.0))
    if volume is not None:
        gain_db = _gain(volume, prosody.gain_db)
        reader.warnings[UNKNOWN_VALUE] += gain_db is None
        prosody = prosody if gain_db is None else replace(prosody, gain_db=gain_db)
    reader.warnings["unsupported_prosody"] += len(attributes(element) - {"rate", "volume"})
    reader.read_inside(element, replace(scope, prosody=prosody))


def _express_as(reader: SsmlReader, element: Element, scope: Scope) -> None:
    prosody, style = scope.prosody, STYLES.get((element.get("style") or "").lower())
    if style is None:
        reader.warnings["unknown_style"] += 1
    else:
        prosody = replace(prosody, rate=prosody.rate * style.rate, gain_db=prosody.gain_db + style.gain_db)
    reader.warnings["unsupported_style"] += len(attributes(element) - {"style"})  # a degree, a role
    reader.read_inside(element, replace(scope, prosody=prosody))


def _emphasis(reader: SsmlReader, element: Element, scope: Scope) -> None:
    # A pause before the word: in a segment of its own it would lose the melody of the sentence.
    level = element.get("level", "moderate")
    if level in ("strong", "moderate"):
        reader.say("" if reader.is_in_word else "[uv_break]", scope)
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
    if kind not in KINDS:
        reader.warnings["unknown_say_as"] += 1
        reader.read_inside(element, scope)
        return
    form = (element.get("format") or "").lower()
    reader.say_pronounced(element, scope, PronunciationKind.SAY_AS, f"{kind}:{form}" if form else kind)


def _sub(reader: SsmlReader, element: Element, scope: Scope) -> None:
    alias = element.get("alias")
    if not alias or alias.isspace():
        reader.warnings[UNKNOWN_VALUE] += 1
        reader.read_inside(element, scope)
    else:
        reader.say_pronounced(element, scope, PronunciationKind.ALIAS, alias)


def _phoneme(reader: SsmlReader, element: Element, scope: Scope) -> None:
    alphabet, sounds = (element.get("alphabet") or "").lower(), element.get("ph") or ""
    kind = PINYIN_ALPHABETS.get(alphabet, PronunciationKind.ALIAS if alphabet == "x-homophone" else None)
    if alphabet == "ipa" and phones_of_ipa(sounds):
        kind, sounds = PronunciationKind.IPA, phones_of_ipa(sounds) or ""
    if kind is None or not sounds.strip() or (kind is PronunciationKind.PINYIN and homophones(sounds) is None):
        reader.warnings["unsupported_phoneme"] += 1
        reader.read_inside(element, scope)
    else:
        reader.say_pronounced(element, scope, kind, sounds)


ELEMENTS: Mapping[str, Handler] = {
    **dict.fromkeys(("speak", "lang"), _inside),
    **dict.fromkeys(("p", "s", "paragraph", "sentence"), _sentence),
    "voice": _voice,
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


def _milliseconds(reader: SsmlReader, written: str, usual_ms: int) -> int:
    """Returns a duration [ms]: of at most MAX_BREAK_MS; the usual one where it is not understood. A number without a unit is
    seconds below 20, else milliseconds. Whatever differs from what is written is counted."""
    match = _DURATION.fullmatch(written.strip())
    if not match or not match[2]:
        reader.warnings[UNKNOWN_VALUE] += 1
    if not match:
        return usual_ms
    number = float(match[1])
    duration_ms = round(number * (1 if match[2].lower() == "ms" or (not match[2] and number >= 20) else 1000))
    reader.warnings["break_shortened"] += duration_ms > MAX_BREAK_MS
    return min(duration_ms, MAX_BREAK_MS)


def _rate(written: str) -> float | None:
    """Returns a factor on the rate, from a word, 80%, 1.2, +10% or -10%; None where it is not understood."""
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
        return None
    return rate if 0.1 <= rate <= 10 else None


def _gain(written: str, outer_db: float) -> float | None:
    """Returns a gain [dB]: a word, 50% or 0 .. 100 replaces the outer volume; +6dB, +20% or -20% changes it; None where it is
    not understood."""
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
    elif _FACTOR.fullmatch(word.removesuffix("%")) and float(word.removesuffix("%")) <= 100:
        gain = _decibels(float(word.removesuffix("%")) / 100)
    else:
        return None
    return SILENT_DB if gain < MIN_GAIN_DB else min(MAX_GAIN_DB, gain)


def _decibels(factor: float) -> float:
    return 20 * math.log10(factor) if factor > 0 else SILENT_DB
