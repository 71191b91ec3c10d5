"""FrontendClient: a text front end in another process, with one call per method.

In:    the arguments of protocols.TextFrontend
Out:   its results
Owns:  the names of the operations
Never: transport: subclasses implement it
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.types import Refined, SpeechPlan, SpeechText, SynthesisRequest, Voice

TextOperation = Literal["read", "plan", "replan", "compare"]


class FrontendClient(ABC):
    """Implements protocols.TextFrontend by means of one method."""

    @abstractmethod
    async def ask(self, operation: TextOperation, subject: SynthesisRequest | SpeechPlan, *arguments: object) -> Any:
        """Returns what the front end's method of that name returns, and raises what it raises.

        Args:
            subject: the method's first argument; the length of its text limits the time of the call.
            arguments: the others.
        """

    async def read(self, request: SynthesisRequest) -> SpeechText:
        """Returns the normalised and split text."""
        speech_text: SpeechText = await self.ask("read", request)
        return speech_text

    async def plan(self, request: SynthesisRequest, voices: Mapping[str, Voice]) -> SpeechPlan:
        """Returns the prompts of a request: CODE prompts, or TEXT prompts if it has a refine pass."""
        plan: SpeechPlan = await self.ask("plan", request, voices)
        return plan

    async def replan(
        self, request: SynthesisRequest, voices: Mapping[str, Voice], plan: SpeechPlan, refined: list[NDArray[np.int64]]
    ) -> SpeechPlan:
        """Returns the CODE prompts of refined texts, given as tokens (n,) per segment."""
        replanned: SpeechPlan = await self.ask("replan", request, voices, plan, refined)
        return replanned

    async def compare(self, plan: SpeechPlan, refined: list[NDArray[np.int64]]) -> list[Refined]:
        """Returns every segment before and after the refine pass, given as tokens (n,) per segment."""
        compared: list[Refined] = await self.ask("compare", plan, refined)
        return compared
