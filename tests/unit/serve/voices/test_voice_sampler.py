"""Voice sampler: previews."""

import asyncio
import io
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from pipeline.types import AudioChunk, SynthesisRequest
from serve.access.caller import ANONYMOUS_CALLER
from serve.config.app_config import VoicesConfig
from serve.voices.voice_service import VoiceService
from tests.support.fakes import Speaker, StepCounter
from tests.support.live_server import Live
from tests.support.voice_routes import voices


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
    make = partial(VoiceService, library, VoicesConfig(), stream, StepCounter(), model="m", max_prompt=999)
    for speaks in (("en",), ("zh", "en"), ("zh",)):
        asyncio.run(make(speaks=speaks).sampler.preview("anna", ANONYMOUS_CALLER))
    assert [text.isascii() for text in heard] == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["anna", "anna@1", "alloy", "seed:3", "default", "blend:alloy(1)+ash(1)"])
def test_every_voice_has_a_preview_and_a_score(live: Live, name: str):
    voices(live, "POST", json={"name": "anna", "seed": 7})
    heard = voices(live, path=f"/{name}/preview")
    assert heard.headers["Content-Type"] == "audio/mpeg"
    samples, rate = soundfile.read(io.BytesIO(heard.content))
    assert rate == 24_000
    assert np.abs(samples).max() > 0.01
    score = voices(live, "POST", f"/{name}/score").json()
    assert 0 <= score["stability"] <= 1
    if name.startswith("anna"):
        assert voices(live, path="/anna").json()["stability"] == score["stability"]
