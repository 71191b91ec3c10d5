"""Speech text: normalises the passages of a request, cuts them into segments and counts everything dropped.

In:    SynthesisRequest, the vocabulary and languages of the checkpoint
Out:   SpeechText
Never: tokens, voices, the model
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from pipeline.errors import InvalidLexicon, InvalidSsml, NoSpeakableText, PartlyUnspeakable
from pipeline.spec import SPEED_TAGS
from pipeline.text.incremental import BESIDE
from pipeline.text.language_tags import DIALECT
from pipeline.text.lexicon.matching import find
from pipeline.text.markup.ssml_elements import MAX_BREAK_MS
from pipeline.text.markup.ssml_reader import MAX_TURNS
from pipeline.text.normalize import (
    ANYTHING,
    UNKNOWN,
    UNTAUGHT_TAG,
    Language,
    LanguageChoice,
    NormalizeOptions,
    Reading,
    Vocabulary,
    detect_language,
    is_speakable,
    normalize,
)
from pipeline.text.normalize.chinese import dialect_sentences, is_chinese
from pipeline.text.normalized_text import NormalizedText, TextWarning
from pipeline.text.pinyin import homophones
from pipeline.text.say_as import spoken_as
from pipeline.text.segment import SPOKEN, Range, SegmentLimits, split
from pipeline.text.whole import whole_ranges, whole_words
from pipeline.types import SPEED, Passage, Pronunciation, PronunciationKind, Segment, Span, SpeechText, SynthesisRequest

AS_MANDARIN = "spoken_as_mandarin"
"""warning: characters of Cantonese or another Chinese language, spoken in their Mandarin reading"""
WITHOUT_WORDS = "without_words"
"""warning: tags and signs of a passage with no word in it"""
UNSUPPORTED_LANGUAGE = "unsupported_language"
"""warning: passages in a language that the checkpoint does not speak"""
NOT_AS_SAID = "not_as_said"
"""warning: texts that are nothing of the kind that say-as names; they are read as plain text"""
REFUSED_WHEN_STRICT = (UNKNOWN, UNTAUGHT_TAG, UNSUPPORTED_LANGUAGE, NOT_AS_SAID)

_STOPS = " ,.，。、"
_PAUSE = re.compile(
    r"(?:<break\b[^<>]{0,40}\btime\s?=\s?[\"']?|<#|\[\[slnc |\[(?:pause|break|silence|wait)[:= ]\s?)"
    r"(?P<number>\d{1,5}(?:\.\d{1,3})?)\s?(?P<unit>ms|s)?(?:(?<=s)(?:ec|econds)|[\"']\s?[^<>]{0,40})?(?:/?>|#>|\]{1,2})"
)


def build_speech_text(
    request: SynthesisRequest,
    limits: SegmentLimits = SPOKEN,
    vocabulary: Vocabulary = ANYTHING,
    languages: tuple[Language, ...] = ("zh", "en"),
) -> SpeechText:
    """Builds the spoken text of a request.

    Args:
        vocabulary: of the checkpoint; words outside it are dropped and counted.
        languages: of the checkpoint; numbers and signs are read in one of them.

    Raises:
        NoSpeakableText: it has neither a word nor a silence, or the checkpoint knows none of its words.
        PartlyUnspeakable: the request is strict, and the checkpoint does not know all of it, or not its language.
        InvalidLexicon, InvalidSsml: pinyin with unknown syllables.
    """
    if not request.keep_control_tags:
        vocabulary = replace(vocabulary, control_tags=frozenset())
    elif not request.keep_expression:
        vocabulary = replace(vocabulary, control_tags=vocabulary.control_tags & SPEED_TAGS)
    builder = _Builder(request, limits.cut_to(request.segment_length), vocabulary, languages)
    passages = whole_words(request.passages) or list(_at_pauses(request))
    for index, passage in enumerate(passages):
        behind = _beside(passages, index, -1)[-BESIDE:] if index else request.behind
        builder.add(passage, behind, _beside(passages, index, 1)[:BESIDE])
    return builder.finish()


def _at_pauses(request: SynthesisRequest) -> Iterator[Passage]:
    """Yields a plain text, cut behind marks of pauses with a length: <break time="1s"/>, <#1.5#>, [pause:500ms]."""
    passage = Passage("", control_tags=request.control_tags, language=request.language)
    place = silence_ms = 0
    marks = islice(_PAUSE.finditer(request.text), MAX_TURNS) if dict(request.normalize).get("html", True) else ()
    for mark in marks:
        yield replace(passage, text=request.text[place : mark.end()], silence_ms=silence_ms)
        is_ms = mark["unit"] == "ms" or (not mark["unit"] and (float(mark["number"]) >= 20 or mark[0].startswith("[[")))
        place, silence_ms = mark.end(), min(round(float(mark["number"]) * (1 if is_ms else 1000)), MAX_BREAK_MS)
    yield replace(passage, text=request.text[place:], silence_ms=silence_ms)


def _beside(passages: Sequence[Passage], index: int, step: int) -> str:
    """Returns the text before (step -1) or behind (1) a passage, of one voice and language, as words of their own."""
    own, text, edge = passages[index], "", passages[index].text
    while 0 <= (index := index + step) < len(passages) and len(text) < BESIDE:
        passage = passages[index]
        if (passage.prosody.voice, passage.language) != (own.prosody.voice, own.language):
            break
        sides = (passage.text, edge) if step < 0 else (edge, passage.text)
        gap = "" if not all(sides) or sides[0][-1].isspace() or sides[1][0].isspace() else " "
        text = f"{passage.text}{gap}{text}" if step < 0 else f"{text}{gap}{passage.text}"
        edge = passage.text or edge
    return text


class _Builder:
    """Collects the segments, spans and warnings of one request, passage by passage."""

    def __init__(
        self, request: SynthesisRequest, limits: SegmentLimits, vocabulary: Vocabulary, languages: tuple[Language, ...]
    ) -> None:
        self._request = request
        self._limits = limits
        self._options = replace(NormalizeOptions(), **dict(request.normalize))  # type: ignore[arg-type]  # validated before
        self._vocabulary = vocabulary
        self._languages = languages
        self._segments: list[Segment] = []
        self._spans: list[tuple[Span, ...]] = []
        self._dropped: list[Range] = []
        self._warnings: Counter[str] = Counter(dict(request.warnings))
        self._silence_ms = 0  # since the last segment
        self._offset = 0  # characters of the passages before

    def add(self, passage: Passage, behind: str = "", ahead: str = "") -> None:
        """Normalises a passage between what stands behind and ahead of it, and appends its segments."""
        self._silence_ms += passage.silence_ms
        if passage.language == DIALECT and self._request.strict:
            raise PartlyUnspeakable(
                "strict=1 refuses Chinese languages other than Mandarin; leave the language out, or strict, to have the text "
                "spoken in its Mandarin reading",
                param="input" if self._request.passages else "language",
            )
        if _own(passage.language) not in ("auto", *self._languages):
            self._warnings[UNSUPPORTED_LANGUAGE] += 1
        spoken = self._normalized(passage, behind, ahead)
        if not is_speakable(spoken.text):
            spoken = _all_dropped(spoken)
        self._count(passage, spoken)
        if spoken.text:
            if not SPEED.least <= self._request.speed * passage.prosody.rate <= SPEED.most:
                self._warnings["rate_bounded"] += 1
            for segment, spans in _cut(passage, spoken, self._limits, self._offset, first=len(self._segments)):
                self._segments.append(replace(segment, silence_ms=self._silence_ms))
                self._spans.append(spans)
                self._silence_ms = 0
        self._offset += len(passage.text)

    def finish(self) -> SpeechText:
        """Returns the text of all passages; raises as build_speech_text says."""
        if not self._segments and (not self._silence_ms or self._warnings[UNKNOWN]):
            raise NoSpeakableText(
                "the text has nothing to say: without emoji, control characters, punctuation and what the checkpoint does not "
                f"know, no word is left; it speaks {', '.join(self._languages)}: send some words of that",
                param="input",
            )
        if self._request.strict:
            _refuse(self._warnings)
        if self._segments:
            self._segments[-1] = replace(self._segments[-1], is_last=True)
        warnings = tuple(sorted(self._warnings.items()))
        return SpeechText(tuple(self._segments), tuple(self._spans), self._silence_ms, warnings, tuple(_joined(self._dropped)))

    def _count(self, passage: Passage, spoken: NormalizedText) -> None:
        """Counts the warnings of a passage, and its dropped characters."""
        self._warnings.update({warning.code: warning.count for warning in spoken.warnings})
        if count := _as_mandarin(passage, spoken):
            self._warnings[AS_MANDARIN] += count
        self._dropped += [
            (self._offset + span.source_start, self._offset + span.source_stop)
            for span in spoken.spans
            if span.kind == "dropped"
        ]

    def _normalized(self, passage: Passage, behind: str, ahead: str) -> NormalizedText:
        """Returns the text of a passage as it is spoken, pronunciations included."""
        language = _language(passage.language, self._languages)
        is_dialect = passage.language == DIALECT
        return normalize(
            passage.text,
            language=language,
            options=replace(self._options, homophones=False) if is_dialect else self._options,
            control_tags=passage.control_tags,
            readings=list(self._readings(passage, detect_language(passage.text) if language == "auto" else language)),
            vocabulary=self._vocabulary,
            behind=behind,
            ahead=ahead,
        )

    def _readings(self, passage: Passage, language: Language) -> Iterator[Reading]:
        """Yields the readings of the passage's own pronunciations and of the words of the request's lexicon."""
        pronunciations = find(
            self._request.lexicon, passage.text, existing=passage.pronunciations, control_tags=passage.control_tags
        )
        for pronunciation in pronunciations:
            written = passage.text[pronunciation.start : pronunciation.stop]
            if pronunciation.kind is PronunciationKind.IPA:
                reading: str | None = pronunciation.value if self._vocabulary.knows(pronunciation.value) else ""
                self._warnings.update(() if reading else ("unsupported_phoneme",))
            else:
                reading = _reading_of(pronunciation, written, language, from_ssml=pronunciation in passage.pronunciations)
            if reading is None:
                self._warnings[NOT_AS_SAID] += 1
            if reading:
                yield Reading(pronunciation.start, pronunciation.stop, reading)


def _cut(
    passage: Passage, spoken: NormalizedText, limits: SegmentLimits, offset: int, *, first: int
) -> Iterator[tuple[Segment, tuple[Span, ...]]]:
    """Yields the segments of a passage, numbered from `first`, each with its spans."""
    cuts = split(spoken.text, limits, whole=whole_ranges(passage.text, spoken), is_first=not first)
    following = [*cuts[1:], (len(spoken.text), 0)]
    for index, (cut, (reach, _)) in enumerate(zip(cuts, following, strict=True), start=first):
        text, spans = spoken.text[slice(*cut)], _within(spoken.spans, cut, offset)
        source = (spans[0].source_start, spans[-1].source_stop)
        segment = Segment(text, index, is_last=False, language=detect_language(text), source=source, prosody=passage.prosody)
        yield segment, _within(spoken.spans, cut, offset, reach=reach)


def _refuse(warnings: Counter[str]) -> None:
    refused = [f"{code}={warnings[code]}" for code in REFUSED_WHEN_STRICT if warnings[code]]
    if refused:
        raise PartlyUnspeakable(
            f"strict=1 refuses a text that the checkpoint cannot speak completely: {', '.join(refused)}; "
            "POST /v1/text/normalize shows which; without strict the rest is spoken",
            param="input",
        )


def _all_dropped(spoken: NormalizedText) -> NormalizedText:
    """Drops the tags and signs of a passage without words: it becomes no segment."""
    length = sum(span.source_stop - span.source_start for span in spoken.spans if span.kind != "dropped")
    spans = tuple(Span(span.source_start, span.source_stop, 0, 0, "dropped") for span in spoken.spans)
    return NormalizedText("", spans, (*spoken.warnings, *([TextWarning(WITHOUT_WORDS, length)] if length else [])))


def _language(requested: str, languages: tuple[Language, ...]) -> LanguageChoice:
    """Returns the language for signs and digits: the requested one if the checkpoint speaks it, else its only one."""
    known: tuple[LanguageChoice, ...] = languages if len(languages) == 1 else ("auto", *languages)
    return next((language for language in known if language == _own(requested)), known[0])


def _own(requested: str) -> str:
    """Returns the language whose readings a requested one has."""
    return "zh" if requested == DIALECT else requested


def _as_mandarin(passage: Passage, spoken: NormalizedText) -> int:
    """Returns the number of spoken characters of a passage that are Chinese, but not Mandarin."""
    ranges = [(0, len(passage.text))] if passage.language == DIALECT else dialect_sentences(passage.text)
    places = {place for start, stop in ranges for place in range(start, stop) if is_chinese(passage.text[place])}
    runs = (range(span.source_start, span.source_stop) for span in spoken.spans if span.kind == "text")
    return sum(place in places for span in runs for place in span) if places else 0


def _reading_of(pronunciation: Pronunciation, written: str, language: Language, *, from_ssml: bool) -> str | None:
    """Returns the spoken text of a pronunciation; empty if it has nothing speakable, None if it is not of its kind."""
    if pronunciation.kind is PronunciationKind.PINYIN:
        reading = homophones(pronunciation.value)
        if reading is None:
            message = "pinyin is syllables with tone numbers, as in chong2 qing4; one of them is not a syllable of Mandarin"
            raise InvalidSsml(message, param="input") if from_ssml else InvalidLexicon(message, param="lexicon")
        return reading
    if pronunciation.kind is PronunciationKind.SAY_AS:
        kind, _, form = pronunciation.value.partition(":")
        return spoken_as(written, kind, form, language)
    spoken = normalize(pronunciation.value, fallback=language).text
    return spoken.strip(_STOPS) if is_speakable(spoken) else ""


def _within(spans: Sequence[Span], cut: Range, offset: int, *, reach: int = 0) -> tuple[Span, ...]:
    """Returns the spans spoken in a segment, in positions of the segment and of the request.

    Args:
        reach: start of the next segment: the spaces before it belong to this one, but not to its text.
    """
    start, stop = cut
    return tuple(
        Span(
            span.source_start + offset,
            span.source_stop + offset,
            min(max(span.spoken_start, start), stop) - start,
            min(span.spoken_stop, stop) - start,
            span.kind,
        )
        for span in spans
        if span.kind != "dropped" and span.spoken_start < max(stop, reach) and span.spoken_stop > start
    )


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Joins ranges that touch."""
    joined: list[Range] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined
