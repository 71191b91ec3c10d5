"""Normalize: turns written characters into speakable text, and records where every one of them went.

In:    str of any Unicode, a language: auto, zh or en
Out:   NormalizedText: Chinese characters, Latin letters, spaces, the signs "，。、,." and, if allowed, control tags:
       what ChatTTS was trained on
Never: tokens, voices

One pass, in reading order: written (Unicode to plain signs, each with its position), shadow (one spelling of characters and
numbers, position by position), languages (the language of each
position), structure (the markup of whole lines), scan (the first matching rule reads the text; its _ORDER names the modules
of rules, whose shared tables are in units and words), known (drops what the checkpoint does not know), join (one text and its
spans). Nothing here can write a bracket: only a tag of the source becomes a tag.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from pipeline.spec import CONTROL_TAGS
from pipeline.text.normalize.join import join
from pipeline.text.normalize.known import ANYTHING, UNKNOWN, UNTAUGHT_TAG, Vocabulary, only_known, vocabulary_of
from pipeline.text.normalize.languages import detect_language, language_runs, paint
from pipeline.text.normalize.latin import MAX_WORD_LETTERS
from pipeline.text.normalize.options import LANGUAGE_CHOICES, PLAIN, Language, LanguageChoice, NormalizeOptions, Reading
from pipeline.text.normalize.scan import scan
from pipeline.text.normalize.shadow import shadow
from pipeline.text.normalize.written import write
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
_WORD = re.compile(r"[\u4e00-\u9fffA-Za-z]")


def normalize(
    text: str,
    *,
    language: LanguageChoice = "auto",
    options: NormalizeOptions = NormalizeOptions(),  # noqa: B008
    control_tags: bool = False,
    readings: Sequence[Reading] = (),
    fallback: Language = "en",
    vocabulary: Vocabulary = ANYTHING,
) -> NormalizedText:
    """Rewrites a text so that the model can speak all of it. Never raises: what cannot be spoken is dropped and counted.

    Args:
        language: of numbers and signs; auto: the language of the words around them.
        control_tags: True: tags of spec.CONTROL_TAGS are kept; else their brackets are punctuation.
        readings: in order, without overlap; each is spoken as it is.
        fallback: the language of auto for a text without words of either language.
        vocabulary: of the checkpoint; words outside it are dropped and counted too.
    """
    tags = [match.span() for match in _TAG.finditer(text)] if control_tags else []
    written = write(text, tags=tags, readings=readings, entities=options.html)
    written = replace(written, text=shadow(written.text))
    painted = paint(written.text, language, fallback)
    spoken = join(written, only_known(scan(written, painted, options), vocabulary), text)
    return replace(spoken, text=spoken.text.translate(vocabulary.signs))


def is_speakable(text: str) -> bool:
    """True if a text has anything but control tags, spaces and punctuation."""
    return bool(_WORD.search(_TAG.sub("", text)))
