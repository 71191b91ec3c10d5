"""Normalize: turns written characters into speakable text, and records where every one of them went.

In:    str of any Unicode, a language: auto, zh or en
Out:   NormalizedText: Chinese characters, Latin letters, spaces, the signs "，。、,." and, if allowed, control tags:
       what ChatTTS was trained on
Never: tokens, voices

One pass, in reading order: edits (inline markup, ends of lines in sentences), written (Unicode to plain signs, each with its
position), shadow (one spelling of characters and numbers, position by position), languages (the language of each position),
structure (the markup of whole lines), scan (the first matching rule reads the text; its _ORDER names the modules of rules, with
shared tables in words), known (drops what the checkpoint does not know), join (one text and its spans).
Nothing here can write a bracket: only a tag of the source becomes a tag.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from pipeline.spec import CONTROL_TAGS
from pipeline.text.normalize.edits import edits
from pipeline.text.normalize.join import join
from pipeline.text.normalize.known import ANYTHING, UNKNOWN, UNTAUGHT_TAG, Vocabulary, only_known, vocabulary_of
from pipeline.text.normalize.languages import detect_language, language_runs, paint
from pipeline.text.normalize.latin import MAX_WORD_LETTERS
from pipeline.text.normalize.options import LANGUAGE_CHOICES, PLAIN, Language, LanguageChoice, NormalizeOptions, Reading
from pipeline.text.normalize.scan import scan
from pipeline.text.normalize.shadow import shadow
from pipeline.text.normalize.written import Written, write
from pipeline.text.normalized_text import NormalizedText

__all__ = [
    "ANYTHING",
    "LANGUAGE_CHOICES",
    "MAX_WORD_LETTERS",
    "PLAIN",
    "UNKNOWN",
    "UNTAUGHT_TAG",
    "Language",
    "LanguageChoice",
    "NormalizeOptions",
    "Reading",
    "Vocabulary",
    "detect_language",
    "is_speakable",
    "language_runs",
    "normalize",
    "vocabulary_of",
]

_TAG = re.compile("|".join(re.escape(tag) for tag in sorted(CONTROL_TAGS)))
_WORD = re.compile(r"[\u4e00-\u9fffA-Za-zæðŋœɐ-ʯθᴀ-ᴢꜰꜱꭤꭥ]")
"""a word, or phones"""


def normalize(
    text: str,
    *,
    language: LanguageChoice = "auto",
    options: NormalizeOptions = NormalizeOptions(),  # noqa: B008
    control_tags: bool = False,
    readings: Sequence[Reading] = (),
    fallback: Language = "en",
    vocabulary: Vocabulary = ANYTHING,
    behind: str = "",
    ahead: str = "",
) -> NormalizedText:
    """Rewrites a text so that the model can speak all of it. Never raises: what cannot be spoken is dropped and counted.

    Args:
        language: of numbers and signs; auto: the language of the words around them.
        control_tags: True: tags of spec.CONTROL_TAGS are kept; else their brackets are punctuation.
        readings: in order, without overlap; each is spoken as it is.
        fallback: the language of auto for a text without words of either language.
        vocabulary: of the checkpoint; words outside it are dropped and counted too.
        behind, ahead: what is spoken just before and after the text, by itself; it is only looked at.
    """
    source, edge = f"{behind}{text}{ahead}", len(behind)
    tags = [match.span() for match in _TAG.finditer(source)] if control_tags else []
    readings = (
        [replace(reading, start=reading.start + edge, stop=reading.stop + edge) for reading in readings] if edge else readings
    )
    moved = [edit._replace(start=edit.start + edge, stop=edit.stop + edge) for edit in edits(text, options, behind)]
    written = write(source, tags=tags, readings=readings, edits=moved, entities=options.html)
    written = replace(written, text=shadow(written.text))
    painted = paint(written.text, language, fallback)
    inside = _places(written, edge, edge + len(text))
    drops = [drop for drop in written.drops if edge <= drop[0] < edge + len(text)]
    pieces = only_known(scan(written, painted, options, inside), vocabulary)
    spoken = join(replace(written, drops=drops), pieces, source, edge)
    return replace(spoken, text=spoken.text.translate(vocabulary.signs))


def _places(written: Written, start: int, stop: int) -> range:
    """Returns the places that stand for characters [start, stop) of the source."""
    first, last = bisect_left(written.starts, start), bisect_left(written.starts, stop)
    while first < last and written.stops[first] <= start:
        first += 1  # the rest of a character before the text
    while last < len(written.text) and written.stops[last] <= stop:
        last += 1
    return range(first, last)


def is_speakable(text: str) -> bool:
    """True if a text has anything but control tags, spaces and punctuation."""
    return bool(_WORD.search(_TAG.sub("", text)))
