"""Front end client: the methods of a text front end that runs in another process, each as one question to it.

In:    the arguments of protocols.TextFrontend
Out:   its results
Owns:  the names of the operations
Never: how a question travels; subclasses know
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.types import Refined, SpeechPlan, SpeechText, SynthesisRequest, Voice

TextOperation = Literal["read", "plan", "replan", "compare"]


class FrontendClient(ABC):
    """Implements protocols.TextFrontend with one method that asks."""

    @abstractmethod
    async def ask(self, operation: TextOperation, subject: SynthesisRequest | SpeechPlan, *arguments: object) -> Any:
        """Returns what the front end's method of that name returns, and raises what it raises.

        Args:
            subject: the method's first argument; its text decides how long an answer may take.
            arguments: the others.
        """

    async def read(self, request: SynthesisRequest) -> SpeechText:
        """Asks for the normalised text; see protocols.TextFrontend."""
        speech_text: SpeechText = await self.ask("read", request)
        return speech_text

    async def plan(self, request: SynthesisRequest, voices: Mapping[str, Voice]) -> SpeechPlan:
        """Asks for the prompts; see protocols.TextFrontend."""
        plan: SpeechPlan = await self.ask("plan", request, voices)
        return plan

    async def replan(
        self, request: SynthesisRequest, voices: Mapping[str, Voice], plan: SpeechPlan, refined: list[NDArray[np.int64]]
    ) -> SpeechPlan:
        """Asks for the prompts of refined texts, tokens (n,) per segment; see protocols.TextFrontend."""
        replanned: SpeechPlan = await self.ask("replan", request, voices, plan, refined)
        return replanned

    async def compare(self, plan: SpeechPlan, refined: list[NDArray[np.int64]]) -> list[Refined]:
        """Asks for the segments before and after the refine pass; see protocols.TextFrontend."""
        compared: list[Refined] = await self.ask("compare", plan, refined)
        return compared
