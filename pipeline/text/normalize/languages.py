"""Languages: finds the language in which each part of a text is read.

In:    str
Out:   runs (start, stop, language) that cover it
Never: number words, tables of words

Chinese characters are always Chinese, Latin words always English. Everything else (digits, signs, spaces) is read in the
language of its sentence, except inside a longer stretch of the other language: in 他说 I have 2 cats 就走了 the 2 is "two",
in 我用 iPhone 15 拍照 the 15 is 十五.

A sentence ends at a line or a stop, but a list item, a table row or a name is no sentence: without a Chinese character and
without English prose it has the language of the sentences around it. Markup (tags, addresses, commands) is no word.
"""

import re
from itertools import pairwise

from pipeline.text.normalize.options import Language, LanguageChoice
from pipeline.text.normalize.words import FUNCTION_WORDS

STRETCH_WORDS = 3
"""Latin words in a row that form a stretch of English in a Chinese sentence, unless they are a name: iPhone 16 Pro Max"""
PROSE_WORDS = 4
"""words that form an English sentence even without one such as "the", if at most one of them has a capital"""
_PROSE = re.compile(r"[a-z]{2,}")

_TOKEN = re.compile(
    r"(?P<zh>[\u3400-\u9fff\uf900-\ufaff]+)|(?P<en>[A-Za-zÀ-ÖØ-öø-ɏＡ-Ｚａ-ｚ](?:[A-Za-zÀ-ÖØ-öø-ɏＡ-Ｚａ-ｚ0-9_.@:/+'’&-]*[A-Za-zÀ-ÖØ-öø-ɏＡ-Ｚａ-ｚ0-9])?)|(?P<end>[。！？!?\n|]+|\.(?=\s|$))|(?P<mark>[，、；：])"
)
_MAY_BE_MARKUP = frozenset("<\\/]`$")
_MARKUP = re.compile(
    r"```[\s\S]{0,5000}?```|`[^`\n\u3400-\u9fff]{1,200}`|\$(?=\S)(?=[^$\n]{0,300}[\\^_=<>+])[^$\n]{1,300}(?<=\S)\$(?!\d)"
    r"|</?[A-Za-z][\w:-]{0,40}(?:\s[^<>]{0,500})?/?>|<!--[^<>]{0,500}-->|\\[A-Za-z]{1,20}"
    r"|\b(?:https?|ftp)://[^\s\u3000-\uffff]{1,2000}|\]\([^()\s]{1,500}\)",
    re.IGNORECASE,
)
_CHINESE_MARKS = frozenset("，。、")
"""marks of Chinese text; a text of numbers and signs with one of them is Chinese"""
_RUN = re.compile(rb"z+|e+")
_PAINT: dict[Language, bytes] = {"zh": b"z", "en": b"e"}
_ZH = ord("z")
# A number that hangs on the last word of a stretch belongs to it: "born in 1990", 3月5.
_TAIL: dict[Language, re.Pattern[str]] = {
    "en": re.compile(r" ?[\d$€£][\d.,:%]{0,20}(?![\u3400-\u9fff])|(?=)"),
    "zh": re.compile(r"\d[\d.,:%]{0,20}|(?=)"),
}
_HEAD_ZH = re.compile(r"[\d.,:%]{0,20}\d$")
_MEASURE = "个月年日号点分秒岁元块只条张位名件次天周人万亿千百"
_NUMBER_BEFORE = re.compile(r"\d ?$")
_NAME = re.compile(r"(?![IAa]$)(?:[A-Z0-9._-]+|[A-Za-z](?:[:+/-][A-Za-z0-9]{1,2}){0,4})")
"""acronyms, single letters and the a+b of formulas, which occur in both languages; they count as a quarter of a word"""


def language_runs(text: str) -> list[tuple[int, int, Language]]:
    """Returns the whole text cut where its language changes: (start, stop, language), in order."""
    painted = paint(text, "auto", "en", own=True)
    return [(run.start(), run.end(), language_at(painted, run.start())) for run in _RUN.finditer(painted)]


def detect_language(text: str, fallback: Language = "en") -> Language:
    """Returns zh if Chinese characters outnumber Latin words, else en; the fallback if there are neither."""
    return _majority(list(_TOKEN.finditer(_without_markup(text))), fallback)


def language_at(painted: bytes | bytearray, place: int) -> Language:
    return "zh" if painted[place] == _ZH else "en"


def paint(text: str, neutral: LanguageChoice, fallback: Language, *, own: bool = False) -> bytes:
    """Returns the language each character is read in, one letter per character: z or e.

    Args:
        neutral: the language of digits, signs and spaces; auto: that of the words around them.
        fallback: the language of auto for a text without words.
        own: True: words keep their own language, so "iPhone" in a Chinese sentence is English.
    """
    tokens = list(_TOKEN.finditer(_without_markup(text)))
    if neutral == "auto" and not _CHINESE_MARKS.isdisjoint(text):
        fallback = "zh"
    whole = _majority(tokens, fallback) if neutral == "auto" else neutral
    canvas = bytearray(_PAINT[whole] * len(text))

    def fill(start: int, stop: int, language: Language) -> None:
        canvas[start:stop] = _PAINT[language] * (stop - start)

    sentences = _sentences(tokens) if neutral == "auto" else []
    edges = [0, *(sentence[-1].end() for sentence in sentences)]
    for (start, stop), sentence, base in zip(pairwise(edges), sentences, _bases(sentences, whole), strict=True):
        fill(start, stop, base)
        for place, end in _stretches(text, sentence, "en" if base == "zh" else "zh"):
            fill(place, end, "en" if base == "zh" else "zh")
    if sentences:
        fill(edges[-1], len(text), language_at(canvas, edges[-1] - 1))
    for token in tokens if own else []:
        if token["zh"] or token["en"]:
            fill(token.start(), token.end(), "zh" if token["zh"] else "en")
    return bytes(canvas)


def _without_markup(text: str) -> str:
    """Returns a text of the same length with spaces in place of markup, the content of which is no prose."""
    if _MAY_BE_MARKUP.isdisjoint(text):
        return text
    return _MARKUP.sub(lambda match: " " * len(match[0]), text)


def _bases(sentences: list[list[re.Match[str]]], whole: Language) -> list[Language]:
    """Returns the language of each sentence; one that has none of its own has that of its neighbours."""
    own = [_own_language(sentence) for sentence in sentences]
    before = _carried(own)
    behind = _carried(own[::-1])[::-1]
    return [
        language or (prior if prior and prior == later else whole if prior and later else prior or later or whole)
        for language, prior, later in zip(own, before, behind, strict=True)
    ]


def _carried(own: list[Language | None]) -> list[Language | None]:
    """Returns for each sentence the language of the last one before it that has one."""
    carried: list[Language | None] = []
    last: Language | None = None
    for language in own:
        carried.append(last)
        last = language or last
    return carried


def _own_language(sentence: list[re.Match[str]]) -> Language | None:
    """Returns the language of a sentence by its own words; None if it has neither Chinese nor English prose."""
    if any(token["zh"] for token in sentence):
        return _majority(sentence, "zh")
    words = [token["en"] for token in sentence if token["en"]]
    return "en" if _is_prose(words) else None


def _is_prose(words: list[str]) -> bool:
    """True if Latin words form a sentence, not a name or a label."""
    small = sum(bool(_PROSE.fullmatch(word)) for word in words)
    return (small >= PROSE_WORDS - 1 and len(words) >= PROSE_WORDS) or (
        len(words) > 1 and any(map(_is_function_word, words)) and any(len(word) > 1 for word in words)
    )


def _is_function_word(word: str) -> bool:
    return word.lower() in FUNCTION_WORDS if len(word) > 1 else word in ("a", "I")


def _sentences(tokens: list[re.Match[str]]) -> list[list[re.Match[str]]]:
    sentences: list[list[re.Match[str]]] = [[]]
    for token in tokens:
        sentences[-1].append(token)
        if token["end"]:
            sentences.append([])
    return [sentence for sentence in sentences if sentence]


def _majority(tokens: list[re.Match[str]], fallback: Language) -> Language:
    characters = sum(len(token["zh"]) for token in tokens if token["zh"])
    words = sum(0.25 if _NAME.fullmatch(token["en"]) or _is_unit(token) else 1 for token in tokens if token["en"])
    if characters == words:
        strong = [token for token in tokens if token["zh"] or token["en"]]
        has_prose = any(token["en"] and _PROSE.fullmatch(token["en"]) for token in strong)
        first: Language = "zh" if strong and (strong[0]["zh"] or not has_prose) else "en"
        return first if strong else fallback
    return "zh" if characters > words else "en"


def _is_unit(token: re.Match[str]) -> bool:
    """True for letters behind a number, as in 5 kg, and for the a of a:b, which occur in both languages."""
    start = token.start()
    if token["en"] == "a" and not token.string.startswith(" ", token.end()):
        return True
    return token.end() - start <= 4 and bool(_NUMBER_BEFORE.search(token.string, max(0, start - 2), start))


def _stretches(text: str, sentence: list[re.Match[str]], other: Language) -> list[tuple[int, int]]:
    """Returns the stretches [start, stop) of a sentence in its other language, with the numbers that belong to them."""
    ranges = []
    first = 0
    while first < len(sentence):
        last = first
        while last < len(sentence) and sentence[last][other]:
            last += 1
        words = [token["en"] for token in sentence[first:last]]
        is_stretch = last > first if other == "zh" else len(words) >= STRETCH_WORDS and _is_prose(words)
        if is_stretch:
            start, end = sentence[first].start(), sentence[last - 1].end()
            tail = _TAIL[other].match(text, end)
            stop = tail.end() if tail else end
            if other == "zh" and text[start] in _MEASURE:
                head = _HEAD_ZH.search(text, max(0, start - 20), start)
                start = head.start() if head else start
            ranges.append((start, min(stop, sentence[last].start()) if last < len(sentence) else stop))
        first = max(last, first + 1)
    return ranges
