"""Voice sampler: previews."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace

from pipeline.types import AudioChunk, SynthesisRequest
from serve.config.app_config import VoicesConfig
from serve.voices.voice_service import VoiceService
from tests.support.fakes import Speaker, StepCounter


def test_a_voice_is_previewed_in_a_language_the_checkpoint_speaks():
    heard: list[str] = []

    async def stream(request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        heard.append(request.text)
        async with aclosing(Speaker().stream(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    library = SimpleNamespace(
        find=lambda name: SimpleNamespace(record=SimpleNamespace(languages=("zh",))), canonical=str, preview=lambda stored: None
    )
    make = partial(VoiceService, library, VoicesConfig(creation_timeout_s=5), stream, StepCounter(), model="m", max_prompt=999)
    for speaks in (("en",), ("zh", "en"), ("zh",)):
        asyncio.run(make(speaks=speaks).sampler.preview("anna"))
    assert [text.isascii() for text in heard] == [True, False, False]
