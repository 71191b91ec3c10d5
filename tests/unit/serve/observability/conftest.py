"""A server whose speech passes the adapters of serve/remote, over three fake stages."""

import pytest

from pipeline.config import SpeechConfig
from pipeline.synthesizer import Synthesizer
from pipeline.types import Prompt, SamplingParams, Voice
from serve.stages.stage_clients import StageDecoder, StageFrontend, StageGenerator
from tests.support.fakes import PromptMaker, Speaker, StepMaker, ToneDecoder, make_services
from tests.support.handles import Blocks, local_handle, text_handle
from tests.support.live_server import serving


class AnyVoice:
    """protocols.VoiceSource."""

    def get(self, name: str) -> Voice:
        return Voice(name, None)


@pytest.fixture
def live():
    """The spine over the adapters of three fake stages. One server per test, since a line is written after the last byte."""
    text, acoustic, vocoder = PromptMaker(), StepMaker(), ToneDecoder()

    def generate(prompt: Prompt, sampling: SamplingParams, timeout_s: float, admitted: bool, *_: object) -> Blocks:
        return Blocks(acoustic.generate(prompt, sampling, timeout_s=timeout_s, admitted=admitted))

    synthesizer = Synthesizer(
        StageFrontend(text_handle(text)),
        StageGenerator(local_handle(generate=generate)),
        StageDecoder(local_handle(traits=vocoder.traits, feed=lambda feed, trace: vocoder.feed(feed))),
        AnyVoice(),
        SpeechConfig(),
    )
    with serving(make_services(Speaker(), stream=synthesizer.stream)) as server:
        yield server
