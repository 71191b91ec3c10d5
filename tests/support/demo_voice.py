"""The demo voice where a Speaker would stand: the real chain in this process, for the tests that need words in their audio."""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.cache.cache import CodeCache
from pipeline.cache.cached_generator import CachedModel
from pipeline.cache.key import Kept
from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import EngineConfig, SpeechConfig, VocoderConfig
from pipeline.engine.engine import Engine
from pipeline.store.store import Store
from pipeline.synthesizer import Synthesizer
from pipeline.text.frontend import LocalTextFrontend
from pipeline.timing.following import Following
from pipeline.types import AudioChunk, SynthesisRequest
from pipeline.vocoder.vocoder import Vocoder
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from pipeline.voices.persons import read_persons
from pipeline.voices.seeds import read_statistics
from tests.support.fakes import Speaker, make_library

VOICES = Path(__file__).resolve().parents[2] / "configs" / "voices.yaml"


class DemoSpeaker(Speaker):
    """A Speaker whose audio is speech."""

    synthesizer: Synthesizer
    engine: Engine

    async def stream(self, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        self.requests.append(request)
        async for chunk in self.synthesizer.stream(request):
            yield chunk


class Deaf:
    """A follower for which the first takes of a segment swallow a word."""

    def __init__(self, inner: Any, deaf_takes: int) -> None:
        """
        Args:
            deaf_takes: how many; takes count by their codes, in the order in which they are first spoken.
        """
        self._inner, self._deaf_takes = inner, deaf_takes
        self._takes: list[bytes] = []

    async def follow(self, prompt: Any, codes: Any, tokens: Any, *, ended: bool) -> Any:
        followed = await self._inner.follow(prompt, codes, tokens, ended=ended)
        if not ended:
            return followed
        take = codes.tobytes()
        if take not in self._takes:
            self._takes.append(take)
        is_deaf = self._takes.index(take) < self._deaf_takes
        return replace(followed, looked=np.full_like(followed.looked, tokens[1] - 1)) if is_deaf else followed


def demo_library(store: Store | None = None) -> VoiceLibrary:
    """The shipped voices and seeds, as the demo voice speaks them."""
    width = open_checkpoint(DEMO_FOLDER).gpt_spec.width
    catalogue = VoiceCatalogue.load(VOICES, width, read_statistics(DEMO_FOLDER, width), read_persons(DEMO_FOLDER))
    return VoiceLibrary(catalogue, store)


@contextmanager
def demo_speaker(
    heard_by: Callable[[Any], Any] = lambda follower: follower, library: VoiceLibrary | None = None
) -> Iterator[DemoSpeaker]:
    """Opens engine and vocoder until the block ends.

    Args:
        heard_by: returns what stands in place of the follower.
        library: None: two names of one voice.
    """
    checkpoint, config = open_checkpoint(DEMO_FOLDER), EngineConfig(slots=4, threads=1)
    engine = Engine(config, checkpoint)
    vocoder = Vocoder(VocoderConfig(threads=1), checkpoint)
    following = Following(checkpoint, positions=config.positions)
    frontend = LocalTextFrontend(DEMO_FOLDER, max_prompt=config.max_prompt, max_steps=config.max_steps)
    speaker = DemoSpeaker()
    model = CachedModel(engine, CodeCache(1 << 24), payload=Kept.HIDDEN, fingerprint="demo")
    follower = heard_by(following)
    speaker.synthesizer = Synthesizer(frontend, engine, vocoder, library or make_library(), SpeechConfig(), model, follower)
    speaker.engine = engine
    yield speaker
    following.close()
    vocoder.close()
    engine.close()
