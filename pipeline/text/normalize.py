"""Normalize: written characters to speakable text.

In:    str of any Unicode, a language: auto, zh or en
Out:   str of CJK characters, Latin letters, spaces, the signs "，。、,." and control tags: what ChatTTS was trained on
Owns:  nothing
May touch: Unicode tables, the number words of inflect and cn2an
Never: tokens, voices
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import cn2an
import inflect

from pipeline.text.markup import CONTROL_TAGS, neutralise, split_tags
from pipeline.text.spoken import Spoken, dropped, whole

Language = Literal["zh", "en"]
LanguageChoice = Literal["auto", "zh", "en"]
LANGUAGE_CHOICES: tuple[LanguageChoice, ...] = ("auto", "zh", "en")

MAX_NUMBER_DIGITS = 15  # longer numbers are read digit by digit; cn2an ends at 16
MAX_WORD_LETTERS = 64  # WordPiece gives up at 100: a longer word would reach the model as one unknown token
MAX_COMBINING = 4  # marks on one character; normalisation sorts a run of them in quadratic time

_ENGLISH = inflect.engine()
_ENGLISH_DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_CHINESE_DIGITS = "零一二三四五六七八九"

_CJK_RANGES = r"\u3400-\u9fff"
_CJK = re.compile(f"[{_CJK_RANGES}]")
_LATIN_WORD = re.compile(r"[A-Za-z]+")
_UNSPEAKABLE = re.compile(rf"[^{_CJK_RANGES}A-Za-z，。、,. ]+")

# Applied before NFKC, which would turn full-width signs into ASCII ones.
# Simplifications as in ChatTTS/norm.py; questions become sentence ends, because the model has no other end.
_FULL_WIDTH_SIGNS = str.maketrans(
    dict.fromkeys("，：；（）【】『』「」《》〈〉〔〕－—―…", "，")
    | dict.fromkeys("。！？｡", "。")
    | {"、": "、", "・": " ", "·": " ", "¥": "¥", "￥": "¥"}
)
_FULL_WIDTH_KEPT = re.compile("[^，。、]+")
_LATIN_LOOKALIKES = str.maketrans(
    {"ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L"}
    | {"đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ı": "i", "ħ": "h", "Ħ": "H"}
    | {"’": "'", "‘": "'", "ʼ": "'", "′": "'", "⁄": "/", "∕": "/", "−": "-", "‐": "-", "‑": "-", "–": "-", "‒": "-"}
)

# What is said for a sign, wherever it stands.
_SIGNS: dict[Language, dict[str, str]] = {
    "en": {"%": "percent", "‰": "per mille", "&": "and", "@": "at", "+": "plus", "=": "equals", "×": "times", "÷": "divided by"}
    | {"$": "dollars", "€": "euros", "£": "pounds", "¥": "yuan", "°": "degrees"},
    "zh": {"%": "百分之", "‰": "千分之", "&": "和", "@": "艾特", "+": "加", "=": "等于", "×": "乘", "÷": "除以"}
    | {"$": "美元", "€": "欧元", "£": "英镑", "¥": "元", "°": "度"},
}
_DEGREES: dict[Language, dict[str, str]] = {
    "en": {"C": "degrees Celsius", "F": "degrees Fahrenheit"},
    "zh": {"C": "摄氏度", "F": "华氏度"},
}
_MINUS: dict[Language, str] = {"en": "minus", "zh": "负"}
_TO: dict[Language, str] = {"en": "to", "zh": "到"}
_POINT: dict[Language, str] = {"en": "point", "zh": "点"}

_NUMBER = r"\d+(?:\.\d+)*"
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_CURRENCY = re.compile(
    rf"([$€£¥])\s?({_NUMBER}(?:\s?(?:thousand|million|billion|trillion|千|万|亿)+)?)(?:\s?(?:元|美元|欧元|英镑))?"
)
_DEGREE = re.compile(r"°\s?([CF])(?![A-Za-z])")
_CHINESE_PERCENT = re.compile(rf"(?<![\d.])({_NUMBER})\s?([%‰])")
_CHINESE_YEAR = re.compile(r"(?<!\d)(\d{4})(?=\s?年)")
_CLOCK = re.compile(r"(?<![\d:])(\d{1,2}):(\d{2})(?![\d:])")
_FRACTION = re.compile(r"(?<![\d/.])(\d{1,4})/(\d{1,4})(?![\d/])")
_RANGE = re.compile(r"(?<![A-Za-z0-9_.-])(\d{1,4})[-~](\d{1,4})(?![A-Za-z0-9_-])")
_NEGATIVE = re.compile(r"(?<![A-Za-z0-9_.)-])-(?=\d)")
_ORDINAL = re.compile(r"(?<![\w.])(\d{1,9})(?:st|nd|rd|th)(?![A-Za-z])")
_ANY_NUMBER = re.compile(_NUMBER)

# Upstream's training text has no apostrophes, so "don't" is the word "dont"; a contraction whose letters
# are another word (I'll, we're, I'd) is written out instead.
_CONTRACTION = re.compile(r"(?<=[A-Za-z])'(ll|re|ve|m)(?![A-Za-z])", re.IGNORECASE)
_CONTRACTED = {"ll": " will", "re": " are", "ve": " have", "m": " am"}
_WOULD = re.compile(r"\b(i|we|she)'d(?![A-Za-z])", re.IGNORECASE)
_APOSTROPHE = re.compile(r"(?<=[A-Za-z])'(?=[A-Za-z])")

_WORD_HYPHEN = re.compile(r"(?<=[A-Za-z])-(?=[A-Za-z])")
_CLAUSE_SIGNS = re.compile(r"[:;()<>|~\-]+")
_SENTENCE_SIGNS = re.compile(r"[!?]|\.{2,}")
_LONG_WORD = re.compile(rf"[A-Za-z]{{{MAX_WORD_LETTERS}}}(?=[A-Za-z])")
_GAP = re.compile(r"[\s，。、,.]+")
_SPACE_RUN = re.compile(r"\s+")
_SPACE_BESIDE_CJK = re.compile(rf"(?<=[{_CJK_RANGES}，。、]) | (?=[{_CJK_RANGES}，。、])")
_TO_FULL_WIDTH = str.maketrans(",.", "，。")
_TO_ASCII = str.maketrans("，。、", ",.,")


@dataclass(frozen=True, slots=True)
class NormalizeOptions:
    """Which kinds of writing are rewritten. What is off is read plainly, sign by sign; nothing is lost either way."""

    numbers: bool = True
    dates: bool = True
    units: bool = True
    urls: bool = True
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
    """Characters [start, stop) of the source are to be said as `spoken`, whatever the rules make of them: a lexicon entry,
    an SSML alias. `spoken` is speakable text, as `normalize` or `read_as` returns it."""

    start: int
    stop: int
    spoken: str


def normalize(
    text: str,
    *,
    language: LanguageChoice = "auto",
    options: NormalizeOptions = NormalizeOptions(),
    control_tags: bool = False,
    readings: Sequence[Reading] = (),
    fallback: Language = "en",
) -> Spoken:
    """Rewrite a text so that the model can say all of it. Never raises: what cannot be said is dropped and counted.

    Args:
        language: what numbers and signs are read in; auto: what the words around them are in.
        control_tags: whether a tag of markup.CONTROL_TAGS is one; else its brackets are punctuation.
        readings: in order, without overlap; each is said as it stands.
        fallback: what auto takes when the text has no words of either language.
    """
    if not text:
        return Spoken()
    neutral = neutralise(_compatible(_visible(text)))
    spoken_in = detect_language(neutral) if language == "auto" else language
    said = "".join(piece if piece in CONTROL_TAGS else _speak(piece, spoken_in) for piece in split_tags(neutral))
    said = _tidy(said, spoken_in)
    return whole(len(text), said) if is_speakable(said) else dropped(len(text), "unspeakable")


def language_runs(text: str) -> list[tuple[int, int, Language]]:
    """The text cut where its language changes: (start, stop, language), in order, all of it."""
    return [(0, len(text), detect_language(text))] if text else []


def detect_language(text: str) -> Language:
    """Chinese when its characters outnumber the Latin words, else English; control tags count as neither."""
    words = [piece for piece in split_tags(text) if piece not in CONTROL_TAGS]
    characters = sum(len(_CJK.findall(piece)) for piece in words)
    latin_words = sum(len(_LATIN_WORD.findall(piece)) for piece in words)
    return "zh" if characters > latin_words else "en"


def is_speakable(text: str) -> bool:
    """Whether anything but control tags, spaces and punctuation is in a text."""
    return any(_CJK.search(piece) or _LATIN_WORD.search(piece) for piece in split_tags(text) if piece not in CONTROL_TAGS)


def _visible(text: str) -> str:
    """Drop what is neither seen nor heard: control, format, private and unassigned characters, lone surrogates, and
    all but the first marks of a run. Digits of every script become 0-9.
    """
    kept: list[str] = []
    marks = 0
    for character in text:
        if character.isascii() and character.isprintable():
            kept.append(character)
            marks = 0
            continue
        category = unicodedata.category(character)
        marks = marks + 1 if category.startswith("M") else 0
        if character in "\t\n\r\v\f\x85\u2028\u2029":
            kept.append("\n" if character != "\t" else " ")
        elif category == "Nd":
            kept.append(str(unicodedata.decimal(character)))
        elif category == "No":
            # NFKC makes 1½ into 11/2 and 10² into 102.
            kept.append(f" {character}" if kept and kept[-1][-1].isdigit() else character)
        elif category[0] != "C" and marks <= MAX_COMBINING:
            kept.append(character)
    return "".join(kept)


def _compatible(text: str) -> str:
    """NFKC for everything but the full-width signs the model knows; Latin letters lose their accents."""
    text = text.translate(_FULL_WIDTH_SIGNS)
    text = _FULL_WIDTH_KEPT.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    # NFKC can bring back signs of the first table, and separate accents from nothing: one more look at both.
    text = unicodedata.normalize("NFD", text.translate(_LATIN_LOOKALIKES))
    return "".join(c for c in text if not unicodedata.category(c).startswith("M"))


def _speak(piece: str, language: Language) -> str:
    """Numbers, signs and contractions of a piece without tags, as words."""
    # Runs of spaces are cut first: several patterns below would look at each of them again and again.
    piece = _SPACE_RUN.sub(lambda found: "\n" if "\n" in found[0] else " ", piece)
    piece = _speak_numbers(piece, language)
    for sign, words in _SIGNS[language].items():
        piece = piece.replace(sign, f" {words} ")
    if language == "en":
        piece = _WOULD.sub(r"\1 would", piece)
        piece = _CONTRACTION.sub(lambda found: _CONTRACTED[found[1].lower()], piece)
    piece = _APOSTROPHE.sub("", piece)
    piece = _WORD_HYPHEN.sub(" ", piece)
    piece = _SENTENCE_SIGNS.sub(".", piece)
    piece = _CLAUSE_SIGNS.sub(",", piece)
    piece = piece.replace("\n", ".")
    return _LONG_WORD.sub(r"\g<0> ", _UNSPEAKABLE.sub(" ", piece))


def _speak_numbers(piece: str, language: Language) -> str:
    """Replace every digit by words. Each rule leaves digits only where a later one takes them up; the last takes all."""
    speak = _speak_number(language)
    piece = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), piece)
    piece = _DEGREE.sub(lambda found: f" {_DEGREES[language][found[1]]} ", piece)
    piece = _CURRENCY.sub(r"\2 \1 ", piece)
    piece = _RANGE.sub(lambda found: _speak_range(found, language), piece)
    if language == "zh":
        piece = _CHINESE_PERCENT.sub(lambda found: f"{_SIGNS['zh'][found[2]]}{found[1]}", piece)
        piece = _CHINESE_YEAR.sub(lambda found: _spell_digits(found[1], "zh"), piece)
        piece = _CLOCK.sub(lambda found: f"{found[1]}点{found[2]}分" if found[2] != "00" else f"{found[1]}点", piece)
        piece = _FRACTION.sub(r"\2分之\1", piece)
    else:
        piece = _CLOCK.sub(lambda found: f"{found[1]} {_english_minutes(found[2])}", piece)
        piece = _FRACTION.sub(r"\1 over \2", piece)
        piece = _ORDINAL.sub(lambda found: f" {_english_ordinal(found[1])} ", piece)
    piece = _NEGATIVE.sub(f" {_MINUS[language]} ", piece)
    return _ANY_NUMBER.sub(lambda found: f" {speak(found[0])} ", piece)


def _speak_number(language: Language) -> Callable[[str], str]:
    """How a number like 42, 3.14 or 1.2.3 is said: the first part as a number, each later part digit by digit."""

    def speak(number: str) -> str:
        whole, *parts = number.split(".")
        words = [_speak_integer(whole, language)]
        for part in parts:
            words += [_POINT[language], _spell_digits(part, language)]
        return " ".join(words) if language == "en" else "".join(words)

    return speak


@lru_cache(maxsize=4096)
def _speak_integer(digits: str, language: Language) -> str:
    is_code = len(digits) > MAX_NUMBER_DIGITS or (len(digits) > 1 and digits[0] == "0")
    if is_code:
        return _spell_digits(digits, language)
    if language == "zh":
        return str(cn2an.an2cn(digits, "low"))
    return _plain_words(_ENGLISH.number_to_words(digits, andword="", comma=""))


def _spell_digits(digits: str, language: Language) -> str:
    if language == "zh":
        return "".join(_CHINESE_DIGITS[int(digit)] for digit in digits)
    return " ".join(_ENGLISH_DIGITS[int(digit)] for digit in digits)


def _english_minutes(minutes: str) -> str:
    if minutes == "00":
        return "o clock"
    return f"oh {minutes[1]}" if minutes[0] == "0" else minutes


@lru_cache(maxsize=4096)
def _english_ordinal(digits: str) -> str:
    return _plain_words(_ENGLISH.number_to_words(_ENGLISH.ordinal(digits), andword="", comma=""))


def _plain_words(words: object) -> str:
    return " ".join(str(words).replace("-", " ").replace(",", " ").split())


def _speak_range(found: re.Match[str], language: Language) -> str:
    low, high = found[1], found[2]
    is_range = int(low) < int(high) and low[0] != "0" and (len(low), len(high)) != (3, 4)  # 555-1234 is a telephone number
    return f"{low} {_TO[language]} {high}" if is_range else f"{low},{high}"


def _tidy(text: str, language: Language) -> str:
    """One stop where several met, none at the beginning, single spaces, signs of the language's own width."""
    text = _GAP.sub(_one_stop, text).strip().lstrip("，。、,. ")
    if language == "zh":
        return _SPACE_BESIDE_CJK.sub("", text.translate(_TO_FULL_WIDTH))
    # Tags keep no room for a stop of their own: "Hello [laugh], you" is fine as it is.
    return text.translate(_TO_ASCII).strip()


def _one_stop(gap: re.Match[str]) -> str:
    """What is left of spaces and stops that follow each other: the stop that lasts longest, or a space."""
    for stop in "。.，,、":
        if stop in gap[0]:
            return f"{stop} "
    return " "
