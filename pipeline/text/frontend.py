"""Frontend: the text rooms behind one door, in the order a text goes through them.

In:    SynthesisRequest, Voice, the text tokens of a refine pass
Out:   SpeechPlan: one prompt a segment, in order
Owns:  the tokenizer
Never: the engine, audio, threads
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.config import TextConfig
from pipeline.errors import NoSpeakableText, TextTooLong
from pipeline.text.normalize import LANGUAGE_CHOICES, LanguageChoice, is_speakable, normalize
from pipeline.text.segment import max_steps, split
from pipeline.text.tokenizer import PromptTokenizer
from pipeline.types import Prompt, Segment, SpeechPlan, SynthesisRequest, Voice


class LocalTextFrontend:
    """protocols.TextFrontend in this process."""

    def __init__(self, checkpoint: Path, config: TextConfig, *, max_prompt: int, max_steps: int) -> None:
        """
        Args:
            checkpoint: root folder of the checkpoint.
            max_prompt: the engine's longest prompt [positions].
            max_steps: the engine's longest sequence [steps].

        Raises:
            CheckpointError: the checkpoint has no ChatTTS tokenizer.
        """
        self._tokenizer = PromptTokenizer(checkpoint, max_prompt=max_prompt)
        self._config = config
        self._max_steps = max_steps

    async def plan(self, request: SynthesisRequest, voices: Mapping[str, Voice]) -> SpeechPlan:
        """See protocols.TextFrontend."""
        segments = self._segments(request)
        if request.refine is None:
            return SpeechPlan(tuple(self._code_prompt(segment, request, voices) for segment in segments))
        steps = min(self._config.refine_steps, self._max_steps)
        refine = request.refine
        return SpeechPlan(tuple(self._tokenizer.refine_prompt(segment, refine, max_steps=steps) for segment in segments))

    async def replan(
        self, request: SynthesisRequest, voices: Mapping[str, Voice], plan: SpeechPlan, refined: list[NDArray[np.int64]]
    ) -> SpeechPlan:
        """CODE prompts of the refined texts.

        A refined text that has nothing to say, or no longer fits a prompt, gives way to the text it was made from:
        the client asked for speech, and could not mend either.
        """
        assert len(refined) == len(plan.prompts), f"{len(refined)} refined texts for {len(plan.prompts)} segments"
        prompts = tuple(
            self._refined_prompt(prompt.segment, self._tokenizer.decode_refined(ids.tolist()), request, voices)
            for prompt, ids in zip(plan.prompts, refined, strict=True)
        )
        return replace(plan, prompts=prompts)

    def _segments(self, request: SynthesisRequest) -> list[Segment]:
        language: LanguageChoice = next(known for known in LANGUAGE_CHOICES if known == request.language)
        spoken = normalize(request.text, language=language, control_tags=True)
        if not is_speakable(spoken.text):
            raise NoSpeakableText(
                "the text has nothing to say: after dropping emoji, control characters, punctuation and unknown scripts "
                "no letter, digit or Chinese character is left; send some Chinese or English words",
                param="input",
            )
        return split(spoken.text, self._config)

    def _refined_prompt(self, segment: Segment, refined: str, request: SynthesisRequest, voices: Mapping[str, Voice]) -> Prompt:
        if not is_speakable(refined):
            return self._code_prompt(segment, request, voices)
        try:
            return self._code_prompt(replace(segment, text=refined), request, voices)
        except TextTooLong:
            return self._code_prompt(segment, request, voices)

    def _code_prompt(self, segment: Segment, request: SynthesisRequest, voices: Mapping[str, Voice]) -> Prompt:
        steps = max_steps(segment.text, self._config, self._max_steps)
        voice = voices[segment.manner.voice or request.voice]
        return self._tokenizer.code_prompt(segment, voice, speed_token=request.speed_token, max_steps=steps)
