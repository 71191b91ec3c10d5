"""Speech text: normalises the passages of a request, cuts them into segments and counts everything dropped.

In:    SynthesisRequest, the vocabulary and languages of the checkpoint
Out:   SpeechText
Owns:  nothing
Never: tokens, voices, the model
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeline.config import TextConfig
from pipeline.errors import InvalidLexicon, InvalidSsml, NoSpeakableText, PartlyUnspeakable
from pipeline.text.lexicon.matching import find
from pipeline.text.markup.say_as import expand_say_as
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
from pipeline.text.normalize.chinese import kept_characters
from pipeline.text.normalized_text import NormalizedText, TextWarning
from pipeline.text.pinyin import homophones
from pipeline.text.segment import Range, split
from pipeline.types import (
    SPEED,
    Passage,
    Pronunciation,
    PronunciationKind,
    Segment,
    Span,
    SpeechText,
    SynthesisRequest,
)

CANTONESE_KEPT = "cantonese_kept"
"""warning: rare characters of Cantonese that were left as they are and spoken"""
WITHOUT_WORDS = "without_words"
"""warning: tags and signs of a passage with no word in it"""
REFUSED_WHEN_STRICT = (UNKNOWN, UNTAUGHT_TAG)

_STOPS = " ,.，。、"


def build_speech_text(
    request: SynthesisRequest,
    config: TextConfig,
    vocabulary: Vocabulary = ANYTHING,
    languages: tuple[Language, ...] = ("zh", "en"),
) -> SpeechText:
    """Builds the spoken text of a request.

    Args:
        vocabulary: of the checkpoint; words outside it are dropped and counted.
        languages: of the checkpoint; numbers and signs are read in one of them.

    Raises:
        NoSpeakableText: there is neither a word in it nor a silence, or the checkpoint knows none of its words.
        PartlyUnspeakable: the request is strict, and the checkpoint does not know all of it.
        InvalidLexicon, InvalidSsml: pinyin that is none.
    """
    if not request.keep_control_tags:
        vocabulary = replace(vocabulary, control_tags=frozenset())
    config = config.with_short_segments if request.short_segments else config
    options = replace(NormalizeOptions(), **dict(request.normalize))  # type: ignore[arg-type]  # validated before
    passages = request.passages or (Passage(request.text, control_tags=request.control_tags, language=request.language),)
    segments: list[Segment] = []
    spans: list[tuple[Span, ...]] = []
    dropped: list[Range] = []
    warnings: Counter[str] = Counter(dict(request.warnings))
    silence_ms = offset = 0
    for passage in passages:
        silence_ms += passage.silence_ms
        if passage.language not in ("auto", *languages):
            warnings["unsupported_language"] += 1
        spoken = _spoken(passage, request, options, vocabulary, languages)
        if not is_speakable(spoken.text):
            spoken = _unsaid(spoken)
        warnings.update({warning.code: warning.count for warning in spoken.warnings})
        if options.homophones and (kept := kept_characters(spoken.text)):
            warnings[CANTONESE_KEPT] += kept
        dropped += [(offset + span.source_start, offset + span.source_stop) for span in spoken.spans if span.kind == "dropped"]
        if spoken.text:
            if not SPEED.least <= request.speed * passage.prosody.rate <= SPEED.most:
                warnings["rate_bounded"] += 1
            for segment, heard in _cut(passage, spoken, config, offset, first=len(segments)):
                segments.append(replace(segment, silence_ms=silence_ms))
                spans.append(heard)
                silence_ms = 0
        offset += len(passage.text)
    if not segments and (not silence_ms or warnings[UNKNOWN]):
        raise NoSpeakableText(
            "the text has nothing to say: after dropping emoji, control characters, punctuation and what the checkpoint "
            f"does not know no word is left; it speaks {', '.join(languages)}: send some words of that",
            param="input",
        )
    if request.strict:
        _refuse(warnings)
    if segments:
        segments[-1] = replace(segments[-1], is_last=True)
    return SpeechText(tuple(segments), tuple(spans), silence_ms, tuple(sorted(warnings.items())), tuple(_joined(dropped)))


def _cut(
    passage: Passage, spoken: NormalizedText, config: TextConfig, offset: int, *, first: int
) -> Iterator[tuple[Segment, tuple[Span, ...]]]:
    """Yields the segments of a passage, numbered from `first`, each with its spans."""
    cuts = split(spoken.text, config, whole=_rewritten(passage.text, spoken), is_first=not first)
    following = [*cuts[1:], (len(spoken.text), 0)]
    for index, (cut, (reach, _)) in enumerate(zip(cuts, following, strict=True), start=first):
        text, heard = spoken.text[slice(*cut)], _within(spoken.spans, cut, offset)
        source = (heard[0].source_start, heard[-1].source_stop)
        segment = Segment(text, index, is_last=False, language=detect_language(text), source=source, prosody=passage.prosody)
        yield segment, _within(spoken.spans, cut, offset, reach=reach)


def _refuse(warnings: Counter[str]) -> None:
    refused = [f"{code}={warnings[code]}" for code in REFUSED_WHEN_STRICT if warnings[code]]
    if refused:
        raise PartlyUnspeakable(
            f"strict=1 refuses a text of which the checkpoint cannot say everything: {', '.join(refused)} characters; "
            "POST /v1/text/normalize shows which, without strict the rest is said",
            param="input",
        )


def _unsaid(spoken: NormalizedText) -> NormalizedText:
    """Drops the tags and signs of a passage without words: it makes no segment."""
    heard = sum(span.source_stop - span.source_start for span in spoken.spans if span.kind != "dropped")
    spans = tuple(Span(span.source_start, span.source_stop, 0, 0, "dropped") for span in spoken.spans)
    return NormalizedText("", spans, (*spoken.warnings, *([TextWarning(WITHOUT_WORDS, heard)] if heard else [])))


def _spoken(
    passage: Passage,
    request: SynthesisRequest,
    options: NormalizeOptions,
    vocabulary: Vocabulary,
    languages: tuple[Language, ...],
) -> NormalizedText:
    pronunciations = find(request.lexicon, passage.text, taken=passage.pronunciations, control_tags=passage.control_tags)
    language = _language(passage.language, languages)
    spoken_in = detect_language(passage.text) if language == "auto" else language
    readings = [
        Reading(pronunciation.start, pronunciation.stop, said)
        for pronunciation in pronunciations
        if (
            said := _sound(
                pronunciation,
                passage.text[pronunciation.start : pronunciation.stop],
                spoken_in,
                from_ssml=pronunciation in passage.pronunciations,
            )
        )
    ]
    return normalize(
        passage.text,
        language=language,
        options=options,
        control_tags=passage.control_tags,
        readings=readings,
        vocabulary=vocabulary,
    )


def _language(asked: str, languages: tuple[Language, ...]) -> LanguageChoice:
    """Returns the language for signs and digits: the requested one if the checkpoint speaks it, else its only one."""
    known: tuple[LanguageChoice, ...] = languages if len(languages) == 1 else ("auto", *languages)
    return next((language for language in known if language == asked), known[0])


def _sound(pronunciation: Pronunciation, written: str, language: Language, *, from_ssml: bool) -> str:
    """Returns the spoken text of a pronunciation; empty when there is nothing speakable in it."""
    if pronunciation.kind is PronunciationKind.PINYIN:
        said = homophones(pronunciation.value)
        if said is None:
            message = "pinyin is syllables with tone numbers, as in chong2 qing4; one of them is no syllable of Mandarin"
            raise InvalidSsml(message, param="input") if from_ssml else InvalidLexicon(message, param="lexicon")
        return said
    written = (
        pronunciation.value
        if pronunciation.kind is PronunciationKind.ALIAS
        else expand_say_as(written, pronunciation.value, language)
    )
    spoken = normalize(written, fallback=language).text
    return spoken.strip(_STOPS) if is_speakable(spoken) else ""


def _rewritten(written: str, spoken: NormalizedText) -> Iterator[Range]:
    """Yields the ranges of expanded numbers, addresses and abbreviations; no segment ends inside one."""
    for span in spoken.spans:
        said = spoken.text[span.spoken_start : span.spoken_stop]
        if span.kind == "text" and said != written[span.source_start : span.source_stop]:
            start = span.spoken_start + len(said) - len(said.lstrip(_STOPS))  # its own stop is a place to breathe at
            stop = span.spoken_start + len(said.rstrip(_STOPS))
            if stop - start > 1:
                yield start, stop


def _within(spans: Sequence[Span], cut: Range, offset: int, *, reach: int = 0) -> tuple[Span, ...]:
    """Returns the spans spoken in a segment, in places of the segment and of the request.

    Args:
        reach: where the next segment begins: the spaces before it belong to this one, without being a part of its text.
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
