"""Bounded: the numbers that requests choose, as pydantic types; configurations and request bodies share them.

In:    pipeline/types/bounds.py
Out:   annotated types
Never: the values of bounds
"""

from typing import Annotated, Any

from pydantic import Field

from pipeline.types import bounds


def _within(allowed: bounds.Bounds) -> Any:
    return Field(ge=allowed.least, le=allowed.most)


Speed = Annotated[float, _within(bounds.SPEED)]
Seed = Annotated[int, _within(bounds.SEED)]
Temperature = Annotated[float, _within(bounds.TEMPERATURE)]
TopP = Annotated[float, _within(bounds.TOP_P)]
TopK = Annotated[int, _within(bounds.TOP_K)]
RepetitionPenalty = Annotated[float, _within(bounds.REPETITION_PENALTY)]

Oral = Annotated[int, _within(bounds.ORAL)]
Laugh = Annotated[int, _within(bounds.LAUGH)]
Pause = Annotated[int, _within(bounds.PAUSE)]

GainDb = Annotated[float, _within(bounds.GAIN_DB)]
LoudnessLufs = Annotated[float, _within(bounds.LOUDNESS_LUFS)]
FadeMs = Annotated[float, _within(bounds.FADE_MS)]
