"""Frontend: the text rooms behind one door, in the order a text goes through them.

In:    SynthesisRequest, Voice, the text tokens of a refine pass
Out:   list[Prompt], one a segment, in order
Owns:  the tokenizer
Never: the engine, audio, threads
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.config import TextConfig
from pipeline.errors import TextTooLong
from pipeline.text.normalize import is_speakable, normalize
from pipeline.text.segment import max_steps, split
from pipeline.text.tokenizer import PromptTokenizer
from pipeline.types import Prompt, Segment, SynthesisRequest, Voice


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

    async def plan(self, request: SynthesisRequest, voice: Voice) -> list[Prompt]:
        """One prompt a segment: TEXT prompts when the request asks for a refine pass, else CODE prompts."""
        segments = self._segments(request)
        if request.refine is None:
            return [self._code_prompt(segment, request, voice) for segment in segments]
        steps = min(self._config.refine_steps, self._max_steps)
        return [self._tokenizer.refine_prompt(segment, request.refine, max_steps=steps) for segment in segments]

    async def replan(self, request: SynthesisRequest, voice: Voice, refined: list[NDArray[np.int64]]) -> list[Prompt]:
        """CODE prompts of the refined texts.

        A refined text that has nothing to say, or no longer fits a prompt, gives way to the text it was made from:
        the client asked for speech, and could not mend either.
        """
        segments = self._segments(request)
        assert len(refined) == len(segments), f"{len(refined)} refined texts for {len(segments)} segments"
        return [
            self._refined_prompt(segment, self._tokenizer.decode_refined(ids.tolist()), request, voice)
            for segment, ids in zip(segments, refined, strict=True)
        ]

    def _segments(self, request: SynthesisRequest) -> list[Segment]:
        return split(normalize(request.text, request.language), self._config)

    def _refined_prompt(self, segment: Segment, refined: str, request: SynthesisRequest, voice: Voice) -> Prompt:
        if not is_speakable(refined):
            return self._code_prompt(segment, request, voice)
        spoken = Segment(text=refined, index=segment.index, is_last=segment.is_last)
        try:
            return self._code_prompt(spoken, request, voice)
        except TextTooLong:
            return self._code_prompt(segment, request, voice)

    def _code_prompt(self, segment: Segment, request: SynthesisRequest, voice: Voice) -> Prompt:
        steps = max_steps(segment.text, self._config, self._max_steps)
        return self._tokenizer.code_prompt(segment, voice, speed_token=request.speed_token, max_steps=steps)
