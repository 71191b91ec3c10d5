"""The demo checkpoint speaks what it reads: a recogniser listens; Mandarin, paces, laugh and breath have an effect."""

import asyncio
import io
import re
from collections.abc import Sequence
from contextlib import aclosing

import av
import numpy as np
import pytest
import soxr
from numpy.typing import NDArray

from pipeline.audio.encode import encode_whole
from pipeline.audio.formats import CONTAINERS, audio_format
from pipeline.config import PipelineConfig
from pipeline.spec import SAMPLE_RATE
from pipeline.types import SamplingParams, SynthesisRequest
from scripts.evaluate.listening import Listener, Recording
from scripts.train_demo.held_out import Kind, held_out
from scripts.train_demo.recogniser import Recogniser, mistakes
from scripts.train_demo.sentences import words_of
from serve.commands.say import open_pipeline
from tests.support.english_checkpoint import CHINESE_TOKEN

DIGITS, WORDS = held_out("digits")[:12], held_out("words")[:6]
EVERYDAY, MANDARIN = held_out("everyday")[:6], held_out("mandarin")[:6]
LONG = " ".join(DIGITS[:8])
DEEP, BETWEEN, HIGH = "verse", "blend:verse(0.5)+ballad(0.5)", "ballad"
CONFIG = {"checkpoint": "demo", "engine": {"slots": 16, "max_waiting": 32, "dtype": "float32"}}
MOST_IN_DIGITS, MOST_IN_LONG_TEXT, MOST_IN_WORDS, MOST_IN_EVERYDAY = 0.15, 0.2, 0.25, 0.3  # mistakes per word
MOST_IN_MANDARIN = 0.65  # of syllables with tones; the recogniser mishears many of the teacher's too

Samples = NDArray[np.float32]


@pytest.fixture(scope="module")
def spoken() -> dict[tuple[str, str], Samples]:
    """(text, voice) -> samples; sixteen at once and more that wait."""
    texts = [(text, "default") for text in (*DIGITS, *WORDS, LONG, *EVERYDAY, *MANDARIN)] + [
        (DIGITS[0], voice) for voice in (DEEP, BETWEEN, HIGH)
    ]

    async def all_at_once() -> list[Samples]:
        async with open_pipeline(PipelineConfig.model_validate(CONFIG)) as local:

            async def say(number: int, text: str, voice: str) -> Samples:
                request = SynthesisRequest(str(number), text, voice, sampling=SamplingParams(seed=1), timeout_s=280)
                async with aclosing(local.synthesizer.stream(request)) as stream:
                    return np.concatenate([chunk.samples async for chunk in stream])

            return await asyncio.gather(*(say(number, *pair) for number, pair in enumerate(texts)))

    return dict(zip(texts, asyncio.run(all_at_once()), strict=True))


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser()


def wrong(recogniser: Recogniser, texts: Sequence[str], recordings: Sequence[tuple[Samples, int]], kind: Kind) -> float:
    """Mistakes a word."""
    counts = [
        mistakes(words_of(text), recogniser.transcribe(*sound, kind)) for text, sound in zip(texts, recordings, strict=True)
    ]
    return sum(counts) / sum(len(words_of(text)) for text in texts)


def test_digits_are_understood(spoken, recogniser):
    recordings = [(spoken[text, "default"], SAMPLE_RATE) for text in DIGITS]
    assert wrong(recogniser, DIGITS, recordings, "digits") <= MOST_IN_DIGITS


def test_words_are_understood(spoken, recogniser):
    recordings = [(spoken[text, "default"], SAMPLE_RATE) for text in WORDS]
    assert wrong(recogniser, WORDS, recordings, "words") <= MOST_IN_WORDS


def test_any_words_are_understood(spoken, recogniser):
    recordings = [(spoken[text, "default"], SAMPLE_RATE) for text in EVERYDAY]
    assert wrong(recogniser, EVERYDAY, recordings, "everyday") <= MOST_IN_EVERYDAY


def test_mandarin_is_understood_and_is_no_other_sentence(spoken):
    listener = Listener()

    def mistaken(of: Sequence[str], texts: Sequence[str]) -> float:
        recordings = [Recording(spoken[text, "default"], SAMPLE_RATE, 0.0) for text in texts]
        comparisons = [listener.compare("mandarin", text, recording) for text, recording in zip(of, recordings, strict=True)]
        return sum(comparison.mistakes for comparison in comparisons) / sum(
            len(comparison.expected) for comparison in comparisons
        )

    assert mistaken(MANDARIN, MANDARIN) <= MOST_IN_MANDARIN
    assert mistaken(MANDARIN, MANDARIN[::-1]) > 0.85


def test_a_long_text_is_said_to_its_end(spoken, recogniser):
    assert wrong(recogniser, [LONG], [(spoken[LONG, "default"], SAMPLE_RATE)], "digits") <= MOST_IN_LONG_TEXT


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_format_carries_the_words(spoken, recogniser, container):
    texts = DIGITS[:4]
    audio = audio_format(container)
    recordings = []
    for text in texts:
        samples = soxr.resample(spoken[text, "default"], SAMPLE_RATE, audio.sample_rate)
        recordings.append(decoded(encode_whole(samples, audio), container, audio.sample_rate))
    assert wrong(recogniser, texts, recordings, "digits") <= MOST_IN_DIGITS


def decoded(content: bytes, container: str, rate: int) -> tuple[Samples, int]:
    """Samples (n,) and their rate."""
    if container == "pcm":
        return np.frombuffer(content, "<i2").astype(np.float32) / 32768, rate
    headerless = {"ulaw": "mulaw", "alaw": "alaw"}.get(container)
    with av.open(io.BytesIO(content), format=headerless, options={"sample_rate": str(rate)} if headerless else {}) as file:
        rate = file.streams.audio[0].rate
        resampler = av.AudioResampler("flt", "mono", rate)
        frames = [part for frame in file.decode(audio=0) for part in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray()[0] for frame in frames]), rate


def test_voices_differ_and_a_blend_lies_between(spoken):
    deep, between, high = (pitch(spoken[DIGITS[0], voice]) for voice in (DEEP, BETWEEN, HIGH))
    assert 1.1 * deep < between < high / 1.1, (deep, between, high)


def pitch(samples: Samples) -> float:
    """Hz: median over the loudest 40 ms frames of their strongest repetition."""
    size = round(0.04 * SAMPLE_RATE)
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    loud = frames[np.argsort(frames.std(1))[2 * len(frames) // 3 :]]
    repeats = np.fft.irfft(np.abs(np.fft.rfft(loud - loud.mean(1, keepdims=True), 4 * size)) ** 2)
    shortest, longest = SAMPLE_RATE // 320, SAMPLE_RATE // 70
    return float(np.median(SAMPLE_RATE / (shortest + repeats[:, shortest:longest].argmax(1))))


# The demo checkpoint's Mandarin, paces, laugh and breath: nothing is silent or cut short, and every token has an effect.

EXPRESSIVE = {"checkpoint": "demo", "engine": {"slots": 16, "max_waiting": 80, "dtype": "float32"}}
CHINESE, MIXED, ENGLISH = held_out("mandarin"), held_out("mixed"), held_out("everyday")[:4]
PACES = (2, 5, 8)
PLAIN, LAUGH, BREATH = (f"I see {tag}and then I came in." for tag in ("", "[laugh] ", "[uv_break] "))
SHORTEST_S, LONGEST_S = 0.11, 0.5  # of sound, per syllable; the teacher takes 0.2 s
FRAME = SAMPLE_RATE // 50
LOUD = 0.015  # root mean square of a frame


@pytest.fixture(scope="module")
def expressed() -> dict[tuple[str, int], Samples]:
    """(text, speed token) -> samples."""
    texts = (*CHINESE, *MIXED, *ENGLISH, PLAIN, LAUGH, BREATH)
    takes = [(text, 5) for text in texts] + [(text, pace) for text in (*ENGLISH, *CHINESE[:4]) for pace in PACES if pace != 5]

    async def all_at_once() -> list[Samples]:
        async with open_pipeline(PipelineConfig.model_validate(EXPRESSIVE)) as local:

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

            return await asyncio.gather(*(say(number, *pair) for number, pair in enumerate(takes)))

    return dict(zip(takes, asyncio.run(all_at_once()), strict=True))


def sounding_s(samples: Samples) -> float:
    """Seconds of sound."""
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    return float((np.sqrt((frames**2).mean(1)) > LOUD).sum()) * FRAME / SAMPLE_RATE


def syllables(text: str) -> int:
    """Chinese characters, and groups of vowels in other words."""
    return sum(bool(CHINESE_TOKEN.match(letter)) and letter.isalpha() for letter in text) + len(
        re.findall("[aeiouy]+", text.lower())
    )


@pytest.mark.parametrize("text", [*CHINESE, *MIXED])
def test_no_common_sentence_is_silent_or_cut_short(expressed, text: str):
    seconds = sounding_s(expressed[text, 5])
    assert SHORTEST_S * syllables(text) <= seconds <= LONGEST_S * syllables(text), seconds


@pytest.mark.parametrize("texts", [ENGLISH, CHINESE[:4]], ids=["English", "Mandarin"])
def test_speed_tokens_change_the_pace(expressed, texts: tuple[str, ...]):
    slow, plain, fast = (sum(len(expressed[text, pace]) for text in texts) for pace in PACES)
    assert slow > 1.15 * plain > 1.15 * 1.15 * fast


def test_a_laugh_and_a_breath_are_sounds_of_their_own(expressed):
    plain, laugh, breath = (expressed[text, 5] for text in (PLAIN, LAUGH, BREATH))
    assert len(laugh) > len(plain) + 0.2 * SAMPLE_RATE
    assert len(breath) > len(plain) + 0.05 * SAMPLE_RATE
    assert sounding_s(laugh) > sounding_s(plain) + 0.15
    assert sounding_s(laugh) > sounding_s(breath), "a breath is soft"
