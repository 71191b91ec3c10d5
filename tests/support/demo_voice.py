"""The demo voice where a Speaker would stand: the real chain in this process, for the tests that need words in their audio."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import EngineConfig, SpeechConfig, TextConfig, VocoderConfig
from pipeline.engine.engine import Engine
from pipeline.synthesizer import Synthesizer
from pipeline.text.frontend import LocalTextFrontend
from pipeline.timing.following import Following
from pipeline.types import AudioChunk, SynthesisRequest
from pipeline.vocoder.vocoder import Vocoder
from tests.support.fakes import Speaker, make_library


class DemoSpeaker(Speaker):
    """A Speaker whose audio is speech."""

    synthesizer: Synthesizer

    async def stream(self, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        self.requests.append(request)
        async for chunk in self.synthesizer.stream(request):
            yield chunk


@contextmanager
def demo_speaker() -> Iterator[DemoSpeaker]:
    """Opens engine and vocoder until the block ends."""
    checkpoint, config = open_checkpoint(DEMO_FOLDER), EngineConfig(slots=4, threads=1)
    engine = Engine(config, checkpoint)
    vocoder = Vocoder(VocoderConfig(threads=1), checkpoint)
    following = Following(checkpoint, positions=config.positions)
    frontend = LocalTextFrontend(DEMO_FOLDER, TextConfig(), max_prompt=config.max_prompt, max_steps=config.max_steps)
    speaker = DemoSpeaker()
    speaker.synthesizer = Synthesizer(frontend, engine, vocoder, make_library(), SpeechConfig(), follower=following)
    yield speaker
    following.close()
    vocoder.close()
    engine.close()
