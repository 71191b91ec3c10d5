"""Script: a request's text as it will be said: passages normalised, cut into segments, everything dropped counted.

In:    SynthesisRequest
Out:   Script
Owns:  nothing
Never: tokens, voices, the model
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.config import TextConfig
from pipeline.errors import InvalidLexicon, InvalidSsml, NoSpeakableText
from pipeline.text.lexicon import find
from pipeline.text.normalize import (
    LANGUAGE_CHOICES,
    Language,
    LanguageChoice,
    NormalizeOptions,
    Reading,
    detect_language,
    is_speakable,
    normalize,
)
from pipeline.text.pinyin import homophones
from pipeline.text.say_as import written_as
from pipeline.text.segment import Range, split
from pipeline.text.spoken import Span, Spoken
from pipeline.types import MAX_SPEED, MIN_SPEED, Aside, Hint, Passage, Segment, SynthesisRequest

_STOPS = " ,.，。、"


@dataclass(frozen=True, slots=True)
class Script:
    """What is going to be said."""

    segments: tuple[Segment, ...]
    spans: tuple[tuple[Span, ...], ...]
    """one tuple a segment: the request's characters, and the segment's they are heard as"""
    closing_silence_ms: int
    warnings: tuple[tuple[str, int], ...]
    """code and how many characters"""
    dropped: tuple[Range, ...]
    """the request's characters that are not heard"""


def write_script(request: SynthesisRequest, config: TextConfig) -> Script:
    """Read a request's text.

    Raises:
        NoSpeakableText: there is neither a word in it nor a silence.
        InvalidLexicon, InvalidSsml: pinyin that is none.
    """
    config = config.brief if request.brief else config
    passages = request.passages or (Passage(request.text, control_tags=request.control_tags, language=request.language),)
    segments: list[Segment] = []
    spans: list[tuple[Span, ...]] = []
    dropped: list[Range] = []
    warnings: Counter[str] = Counter(dict(request.warnings))
    silence_ms = offset = 0
    for passage in passages:
        silence_ms += passage.silence_ms
        spoken = _spoken(passage, request)
        warnings.update({warning.code: warning.count for warning in spoken.warnings})
        dropped += [(offset + span.source_start, offset + span.source_stop) for span in spoken.spans if span.kind == "dropped"]
        if is_speakable(spoken.text):
            if not MIN_SPEED <= request.speed * passage.manner.rate <= MAX_SPEED:
                warnings["rate_bounded"] += 1
            cuts = split(spoken.text, config, whole=_rewritten(passage.text, spoken), is_first=not segments)
            for cut in cuts:
                heard = _within(spoken.spans, cut, offset)
                segments.append(
                    Segment(
                        text=spoken.text[slice(*cut)],
                        index=len(segments),
                        is_last=False,
                        language=detect_language(spoken.text[slice(*cut)]),
                        source=(heard[0].source_start, heard[-1].source_stop),
                        manner=passage.manner,
                        silence_ms=silence_ms,
                    )
                )
                spans.append(heard)
                silence_ms = 0
        offset += len(passage.text)
    if segments:
        segments[-1] = replace(segments[-1], is_last=True)
    elif not silence_ms:
        raise NoSpeakableText(
            "the text has nothing to say: after dropping emoji, control characters, punctuation and unknown scripts "
            "no letter, digit or Chinese character is left; send some Chinese or English words",
            param="input",
        )
    return Script(tuple(segments), tuple(spans), silence_ms, tuple(sorted(warnings.items())), tuple(_joined(dropped)))


def _spoken(passage: Passage, request: SynthesisRequest) -> Spoken:
    hints = find(request.lexicon, passage.text, taken=passage.hints, control_tags=passage.control_tags)
    language: LanguageChoice = next(known for known in LANGUAGE_CHOICES if known == passage.language)
    spoken_in = detect_language(passage.text) if language == "auto" else language
    readings = [
        Reading(hint.start, hint.stop, said)
        for hint in hints
        if (said := _sound(hint, passage.text[hint.start : hint.stop], spoken_in, from_ssml=hint in passage.hints))
    ]
    options = replace(NormalizeOptions(), **dict(request.normalize))  # type: ignore[arg-type]  # checked at the door
    return normalize(passage.text, language=language, options=options, control_tags=passage.control_tags, readings=readings)


def _sound(hint: Hint, written: str, language: Language, *, from_ssml: bool) -> str:
    """What is said for the word; empty when the hint says nothing that can be said."""
    if hint.aside is Aside.PINYIN:
        said = homophones(hint.value)
        if said is None:
            message = "pinyin is syllables with tone numbers, as in chong2 qing4; one of them is no syllable of Mandarin"
            raise InvalidSsml(message, param="input") if from_ssml else InvalidLexicon(message, param="lexicon")
        return said
    written = hint.value if hint.aside is Aside.ALIAS else written_as(written, hint.value, language)
    spoken = normalize(written, fallback=language).text
    return spoken.strip(_STOPS) if is_speakable(spoken) else ""


def _rewritten(written: str, spoken: Spoken) -> Iterator[Range]:
    """Where something is read out: numbers, addresses, abbreviations. Nobody breathes in the middle of one."""
    for span in spoken.spans:
        said = spoken.text[span.spoken_start : span.spoken_stop]
        if span.kind == "text" and said != written[span.source_start : span.source_stop]:
            start = span.spoken_start + len(said) - len(said.lstrip(_STOPS))  # its own stop is a place to breathe at
            stop = span.spoken_start + len(said.rstrip(_STOPS))
            if stop - start > 1:
                yield start, stop


def _within(spans: Sequence[Span], cut: Range, offset: int) -> tuple[Span, ...]:
    """The spans heard in a segment, counted from the segment's beginning and from the request's."""
    start, stop = cut
    return tuple(
        Span(
            span.source_start + offset,
            span.source_stop + offset,
            max(span.spoken_start, start) - start,
            min(span.spoken_stop, stop) - start,
            span.kind,
        )
        for span in spans
        if span.spoken_start < stop and span.spoken_stop > start
    )


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Ranges that touch as one."""
    joined: list[Range] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined
