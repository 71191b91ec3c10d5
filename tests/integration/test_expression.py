"""The demo checkpoint's Mandarin, paces, laugh and breath: nothing is silent or cut short, and every token has an effect."""

import asyncio
import re
from contextlib import aclosing

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.config import PipelineConfig
from pipeline.spec import SAMPLE_RATE
from pipeline.types import SamplingParams, SynthesisRequest
from scripts.train_demo.held_out import held_out
from serve.commands.say import open_pipeline
from tests.support.english_checkpoint import CHINESE_TOKEN

CONFIG = {"checkpoint": "demo", "engine": {"slots": 16, "max_waiting": 80, "dtype": "float32"}}
MANDARIN, MIXED, ENGLISH = held_out("mandarin"), held_out("mixed"), held_out("everyday")[:4]
PACES = (2, 5, 8)
PLAIN, LAUGH, BREATH = "I see. Come in.", "I see. [laugh] Come in.", "I see. [uv_break] Come in."
SHORTEST_S, LONGEST_S = 0.11, 0.5  # of sound, per syllable; espeak-ng takes 0.2 s
FRAME = SAMPLE_RATE // 50
LOUD = 0.015  # root mean square of a frame

Samples = NDArray[np.float32]


@pytest.fixture(scope="module")
def spoken() -> dict[tuple[str, int], Samples]:
    """(text, speed token) -> samples."""
    texts = (*MANDARIN, *MIXED, *ENGLISH, PLAIN, LAUGH, BREATH)
    wanted = [(text, 5) for text in texts] + [(text, pace) for text in (*ENGLISH, *MANDARIN[:4]) for pace in PACES if pace != 5]

    async def all_at_once() -> list[Samples]:
        async with open_pipeline(PipelineConfig.model_validate(CONFIG)) as local:

            async def say(number: int, text: str, pace: int) -> Samples:
                request = SynthesisRequest(
                    str(number),
                    text,
                    "default",
                    sampling=SamplingParams(seed=1),
                    speed_token=pace,
                    control_tags=True,
                    timeout_s=280,
                )
                async with aclosing(local.synthesizer.stream(request)) as stream:
                    chunks = [chunk async for chunk in stream]
                assert not {"too_short", "unknown_to_model"} & {code for chunk in chunks for code, _ in chunk.warnings}, text
                return np.concatenate([chunk.samples for chunk in chunks])

            return await asyncio.gather(*(say(number, *pair) for number, pair in enumerate(wanted)))

    return dict(zip(wanted, asyncio.run(all_at_once()), strict=True))


def sounding_s(samples: Samples) -> float:
    """Seconds of sound."""
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    return float((np.sqrt((frames**2).mean(1)) > LOUD).sum()) * FRAME / SAMPLE_RATE


def syllables(text: str) -> int:
    """Chinese characters, and groups of vowels in other words."""
    return sum(bool(CHINESE_TOKEN.match(letter)) and letter.isalpha() for letter in text) + len(
        re.findall("[aeiouy]+", text.lower())
    )


@pytest.mark.parametrize("text", [*MANDARIN, *MIXED])
def test_no_common_sentence_is_silent_or_cut_short(spoken, text: str):
    seconds = sounding_s(spoken[text, 5])
    assert SHORTEST_S * syllables(text) <= seconds <= LONGEST_S * syllables(text), seconds


@pytest.mark.parametrize("texts", [ENGLISH, MANDARIN[:4]], ids=["English", "Mandarin"])
def test_speed_tokens_change_the_pace(spoken, texts: tuple[str, ...]):
    slow, plain, fast = (sum(len(spoken[text, pace]) for text in texts) for pace in PACES)
    assert slow > 1.15 * plain > 1.15 * 1.15 * fast


def test_a_laugh_and_a_breath_are_sounds_of_their_own(spoken):
    plain, laugh, breath = (spoken[text, 5] for text in (PLAIN, LAUGH, BREATH))
    assert min(len(laugh), len(breath)) > len(plain) + 0.2 * SAMPLE_RATE
    assert sounding_s(laugh) > sounding_s(plain) + 0.15
    assert sounding_s(laugh) > sounding_s(breath), "a breath is soft"
