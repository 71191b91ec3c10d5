"""Voice sampler: synthesises short sentences in a voice, for previews and for its score.

In:    names of voices, the service's own synthesis
Out:   samples, previews as mp3, the stability of a voice
Never: HTTP; priority: a sample waits for the engine like any other request; a sentence that its caller has not paid
"""

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.audio.encode import encode_whole
from pipeline.audio.formats import audio_format
from pipeline.errors import StoreUnavailable
from pipeline.protocols import SpeechStream
from pipeline.spec import SAMPLE_RATE
from pipeline.store.threads import ask_store
from pipeline.types import SamplingParams, SynthesisRequest
from pipeline.voices.library import VoiceLibrary
from pipeline.voices.measure import stability
from serve.access.caller import Caller, expected_audio_s

PREVIEW_FORMAT = audio_format("mp3")
PREVIEW_SEED = 1
TIMEOUT_S = 120.0  # of one sentence: long, for a voice may be created while the engine is full
PREVIEW_TEXT = {"zh": "你好，这就是我的声音，希望你喜欢。", "en": "Hello, this is my voice. I hope you like it."}
SCORE_TEXTS = {
    "zh": ("今天的天气真不错。", "我们明天早上再见。", "这本书一共有三百页。"),
    "en": ("The weather is lovely today.", "We will meet again tomorrow morning.", "This book has three hundred pages."),
}


class VoiceSampler:
    """Synthesises sentences in the voices of a library."""

    def __init__(self, library: VoiceLibrary, stream: SpeechStream, *, speaks: Sequence[str]) -> None:
        """
        Args:
            stream: the service's own synthesis.
            speaks: languages of the checkpoint; every sentence is in one of them.
        """
        self._library = library
        self._stream = stream
        self._speaks = speaks

    async def preview(self, name: str, caller: Caller) -> bytes:
        """Returns a sentence in that voice as mp3: the stored preview if there is one, else a new one, which its caller pays.

        Raises:
            UnknownVoice
            ApiError: 429
        """
        stored = self._library.find(name)
        if stored is not None:
            with contextlib.suppress(StoreUnavailable):
                audio = await ask_store(self._library.preview, stored)
                if audio is not None:
                    return audio
        languages = () if stored is None else stored.record.languages
        samples = await self.say_preview(self._library.canonical(name), languages, caller)
        return await asyncio.to_thread(encode_preview, samples, 0.0)  # the samples include the voice's own gain

    async def score(self, name: str, caller: Caller) -> dict[str, float]:
        """Returns how similar a voice stays to itself over three sentences with three seeds; kept with a stored voice.

        Raises:
            UnknownVoice
            ApiError: 429, the caller cannot pay the sentences.
        """
        stored = self._library.find(name)
        canonical = self._library.canonical(name)
        texts = SCORE_TEXTS[self._language(() if stored is None else stored.record.languages)]
        tasks = [asyncio.create_task(self._say(canonical, text, seed, caller)) for seed, text in enumerate(texts)]
        try:
            takes = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()  # of one that fails, nobody needs the others
            await asyncio.gather(*tasks, return_exceptions=True)
        score = await asyncio.to_thread(stability, takes)
        if stored is not None:
            await ask_store(self._library.keep_score, stored, score)
        return score

    async def say_preview(self, name: str, languages: tuple[str, ...], caller: Caller, **how: Any) -> NDArray[np.float32]:
        """Returns samples (m,) of the preview's sentence in a voice of these languages.

        Args:
            caller: who pays it.
            how: fields of the request, such as its model.

        Raises:
            SynthesisError
            ApiError: 429
        """
        return await self._say(name, PREVIEW_TEXT[self._language(languages)], PREVIEW_SEED, caller, **how)

    async def _say(self, name: str, text: str, seed: int, caller: Caller, **how: Any) -> NDArray[np.float32]:
        sampling = SamplingParams(seed=seed)
        request = SynthesisRequest(f"voice-{secrets.token_hex(4)}", text, name, sampling=sampling, timeout_s=TIMEOUT_S, **how)
        pieces = []
        async with caller.charged(len(text), expected_audio_s(text, 1.0)) as charge, aclosing(self._stream(request)) as chunks:
            async for chunk in chunks:
                charge.add(len(chunk.samples) / SAMPLE_RATE)
                charge.keep()
                pieces.append(chunk.samples)
        return np.concatenate(pieces)

    def _language(self, languages: tuple[str, ...]) -> str:
        """Returns the first of these that the checkpoint supports: the voice's first language, English, its own first one."""
        return next((language for language in (*languages[:1], "en") if language in self._speaks), self._speaks[0])


def encode_preview(samples: NDArray[np.float32], gain_db: float) -> bytes:
    """Returns samples (m,) as mp3, with a gain."""
    louder = np.clip(samples * np.float32(10 ** (gain_db / 20)), -1, 1)
    return encode_whole(louder, PREVIEW_FORMAT)
