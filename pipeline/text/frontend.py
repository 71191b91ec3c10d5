"""Front end: normalises, splits and tokenises a request's text, in this process.

In:    SynthesisRequest, Voice, the text tokens of a refine pass
Out:   SpeechText; SpeechPlan: one prompt per segment, in order; Refined
Owns:  the tokenizer, the capabilities of the checkpoint
Never: the engine, audio, threads
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.capabilities import read_capabilities
from pipeline.errors import RefineRejected, TextTooLong
from pipeline.text.markup.control_tags import neutralise
from pipeline.text.normalize import is_speakable, normalize, vocabulary_of
from pipeline.text.refine_guard import accepts, diff
from pipeline.text.segment import SPOKEN, SegmentLimits, least_steps, max_steps
from pipeline.text.speech_text import build_speech_text
from pipeline.text.tokenizer import PromptTokenizer
from pipeline.types import (
    TIMES_OF_WORDS,
    Prompt,
    Refined,
    RefineGuard,
    RefineParams,
    Segment,
    Span,
    SpeechPlan,
    SpeechText,
    SpokenWord,
    SynthesisRequest,
    Voice,
)

REFINE_DROPPED = "refine_dropped"
"""warning: number of segments that are spoken as they were before the refine pass"""
UNKNOWN_IN_SAMPLE = "unknown_in_voice_sample"
"""warning: characters of a cloned voice's transcript that the checkpoint does not know; they are left out of the prompt"""


Range = tuple[int, int]

_AROUND = ' \t\r\n\u3000"\u201c\u201d\u2018\u2019\u300c\u300d\u300e\u300f()\uff08\uff09[]\u3010\u3011\u300a\u300b<>*_`'
"""what stands around a word and is no part of it"""


def spoken_words(
    segment: Segment, spans: Sequence[Span], written: str, places: Sequence[Range | None]
) -> tuple[SpokenWord, ...]:
    """Returns the words of a segment. Characters that are read together, such as $5, are one word.

    Args:
        written: the request's text.
        places: for each position of the prompt the characters of the segment's text that it stands for; None: for none.
    """
    words = []
    for span in spans:
        reading = segment.text[span.spoken_start : span.spoken_stop]
        if span.kind != "text" or not any(map(str.isalnum, reading)):
            continue
        start, stop = _trimmed(written, span.source_start, span.source_stop)
        spoken = _trimmed(segment.text, span.spoken_start, span.spoken_stop)
        words.append(SpokenWord((start, stop), spoken, _tokens(spoken, places)))
    return tuple(words)


def is_as_spoken(segment: Segment) -> bool:
    """True if the prompt has the text of the segment unchanged, so that its characters can be found there."""
    return neutralise(segment.text).strip() == segment.text


def _trimmed(text: str, start: int, stop: int) -> Range:
    inside = text[start:stop]
    lead = len(inside) - len(inside.lstrip(_AROUND))
    core = inside.strip(_AROUND)
    return (start + lead, start + lead + len(core)) if core else (start, stop)


def _tokens(spoken: Range, places: Sequence[Range | None]) -> Range:
    """Returns the positions that stand for characters of a range, from the first to the last."""
    positions = [at for at, place in enumerate(places) if place is not None and place[0] < spoken[1] and place[1] > spoken[0]]
    return (positions[0], positions[-1] + 1) if positions else (0, 0)


class LocalTextFrontend:
    """protocols.TextFrontend in this process."""

    def __init__(self, checkpoint: Path, limits: SegmentLimits = SPOKEN, *, max_prompt: int, max_steps: int) -> None:
        """
        Args:
            checkpoint: root folder of the checkpoint.
            max_prompt: the engine's longest prompt [positions].
            max_steps: the engine's longest sequence [steps].

        Raises:
            CheckpointError: the checkpoint has no ChatTTS tokenizer, or an invalid taught.json.
        """
        self._tokenizer = PromptTokenizer(checkpoint, max_prompt=max_prompt)
        capabilities = read_capabilities(checkpoint)
        self._languages = capabilities.languages
        self._ends_with_text = capabilities.ends_with_text
        self._vocabulary = vocabulary_of(self._tokenizer.knows, capabilities.tags)
        self._limits = limits
        self._max_steps = max_steps

    async def read(self, request: SynthesisRequest) -> SpeechText:
        """Returns the normalised and split text; raises as protocols.TextFrontend says."""
        return self._speech_text(request)

    async def plan(self, request: SynthesisRequest, voices: Mapping[str, Voice]) -> SpeechPlan:
        """Returns CODE prompts, or TEXT prompts if the request has a refine pass."""
        speech_text = self._speech_text(request)
        voices, unknown = self._known_samples(voices)
        if request.refine is None:
            prompts = tuple(self._code_prompt(segment, request, voices) for segment in speech_text.segments)
        else:
            prompts = tuple(self._refine_prompt(segment, request.refine) for segment in speech_text.segments)
        warnings = (*speech_text.warnings, (UNKNOWN_IN_SAMPLE, unknown)) if unknown else speech_text.warnings
        words: tuple[tuple[SpokenWord, ...], ...] = ()
        if request.times in TIMES_OF_WORDS and request.refine is None:
            pairs = zip(speech_text.segments, speech_text.spans, strict=True)
            words = tuple(self._words(*pair, request, voices) for pair in pairs)
        return SpeechPlan(prompts, speech_text.closing_silence_ms, warnings, words)

    async def replan(
        self, request: SynthesisRequest, voices: Mapping[str, Voice], plan: SpeechPlan, refined: list[NDArray[np.int64]]
    ) -> SpeechPlan:
        """Returns CODE prompts of the refined texts, or of the original ones if the guard refuses them."""
        assert request.refine is not None
        prompts = []
        dropped = 0
        voices, _ = self._known_samples(voices)
        for segment, text in zip(_segments(plan), self._decoded(refined), strict=True):
            prompt = self._refined_prompt(segment, text, request, voices)
            if prompt is None:
                if request.refine.guard is RefineGuard.STRICT:
                    raise RefineRejected(
                        f"the refine pass lost, changed or invented a word of segment {segment.index}, and guard is strict: "
                        "another seed may keep them all; guard=drop speaks the text as it was written",
                        param="refine",
                    )
                dropped += 1
                prompt = self._code_prompt(segment, request, voices)
            prompts.append(prompt)
        warnings = (*plan.warnings, (REFINE_DROPPED, dropped)) if dropped else plan.warnings
        return replace(plan, prompts=tuple(prompts), warnings=warnings)

    async def compare(self, plan: SpeechPlan, refined: list[NDArray[np.int64]]) -> list[Refined]:
        """Returns every segment before and after the refine pass, word by word."""
        return [
            Refined(segment.text, text, tuple(diff(segment.text, text)), is_speakable(text) and accepts(segment.text, text))
            for segment, text in zip(_segments(plan), self._decoded(refined), strict=True)
        ]

    def _speech_text(self, request: SynthesisRequest) -> SpeechText:
        return build_speech_text(request, self._limits, self._vocabulary, self._languages)

    def _words(
        self, segment: Segment, spans: Sequence[Span], request: SynthesisRequest, voices: Mapping[str, Voice]
    ) -> tuple[SpokenWord, ...]:
        voice = voices[segment.prosody.voice or request.voice]
        is_found = is_as_spoken(segment)
        places = self._tokenizer.places(segment, voice, speed_token=request.speed_token) if is_found else []
        return spoken_words(segment, spans, request.text, places)

    def _known_samples(self, voices: Mapping[str, Voice]) -> tuple[dict[str, Voice], int]:
        """Returns the voices with transcripts that the checkpoint knows, and how many characters they have lost."""
        known, lost = dict(voices), 0
        for name, voice in voices.items():
            if not self._tokenizer.knows(neutralise(voice.sample_text, allowed=False)):
                spoken = normalize(voice.sample_text, vocabulary=self._vocabulary)
                known[name] = replace(voice, sample_text=spoken.text)
                lost += sum(warning.count for warning in spoken.warnings)
        return known, lost

    def _decoded(self, refined: list[NDArray[np.int64]]) -> list[str]:
        return [self._tokenizer.decode_refined(ids.tolist()) for ids in refined]

    def _refined_prompt(
        self, segment: Segment, refined: str, request: SynthesisRequest, voices: Mapping[str, Voice]
    ) -> Prompt | None:
        """Returns the prompt of a refined text; None if the guard refuses it or it no longer fits."""
        assert request.refine is not None
        if not is_speakable(refined):
            return None
        if request.refine.guard is not RefineGuard.OFF and not accepts(segment.text, refined):
            return None
        try:
            return self._code_prompt(replace(segment, text=refined), request, voices)
        except TextTooLong:
            return None

    def _refine_prompt(self, segment: Segment, refine: RefineParams) -> Prompt:
        steps = min(self._limits.refine_steps, self._max_steps)
        return self._tokenizer.refine_prompt(segment, refine, max_steps=steps)

    def _code_prompt(self, segment: Segment, request: SynthesisRequest, voices: Mapping[str, Voice]) -> Prompt:
        steps = max_steps(segment.text, self._limits, self._max_steps)
        voice = voices[segment.prosody.voice or request.voice]
        prompt = self._tokenizer.code_prompt(segment, voice, speed_token=request.speed_token, max_steps=steps)
        return replace(prompt, least_steps=least_steps(segment.text, request.speed_token) if self._ends_with_text else 0)


def _segments(plan: SpeechPlan) -> Iterator[Segment]:
    return (prompt.segment for prompt in plan.prompts)
