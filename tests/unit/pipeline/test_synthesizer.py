"""The spine: segments in parallel, audio in order, nothing left running when a client leaves."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, suppress

import numpy as np
import pytest

from pipeline.audio.post_processor import FALL
from pipeline.config import SpeechConfig
from pipeline.errors import AtCapacity, DeadlineExceeded, EngineFault, NonFiniteOutput, UnknownVoice
from pipeline.spec import HOP, SAMPLES_PER_STEP
from pipeline.synthesizer import Synthesizer, latency_of_segments
from pipeline.types import (
    AudioChunk,
    DecoderTraits,
    Latency,
    Passage,
    Prosody,
    RefineParams,
    SchedulingParams,
    SpeechPlan,
    StepBlock,
    SynthesisRequest,
    Voice,
)
from pipeline.voices.catalogue import VoiceCatalogue
from tests.support.fakes import Hasty, PromptMaker, StepMaker, ToneDecoder

TEXT = "one. two words. three more words. four. five is the last one."
SENTENCES = [sentence.strip() for sentence in TEXT.split(".") if sentence.strip()]


class Recorder(StepMaker):
    """Notes the most segments that ran at once, and the scheduling and the admission of each."""

    def __init__(self, **options: float) -> None:
        super().__init__(**options)
        self.most = 0
        self.scheduling: dict[int, SchedulingParams] = {}
        self.admitted: dict[int, bool] = {}

    async def generate(self, prompt, sampling, *, timeout_s, admitted=False):
        self.scheduling[prompt.segment.index], self.admitted[prompt.segment.index] = prompt.scheduling, admitted
        async for block in super().generate(prompt, sampling, timeout_s=timeout_s, admitted=admitted):
            self.most = max(self.most, self.running)
            yield block


def make_synthesizer(generator: StepMaker, *, parallel_segments: int = 4, frontend: PromptMaker | None = None) -> Synthesizer:
    return Synthesizer(
        frontend or PromptMaker(),
        generator,
        ToneDecoder(),
        VoiceCatalogue.load(None, 16),
        SpeechConfig(parallel_segments=parallel_segments),
    )


def make_request(text: str = TEXT, **fields: object) -> SynthesisRequest:
    return SynthesisRequest("id", text, "default", **fields)


async def listen(synthesizer: Synthesizer, request: SynthesisRequest) -> np.ndarray:
    """All samples, the chunks checked on the way."""
    chunks: list[AudioChunk] = []
    position = 0
    async with aclosing(synthesizer.stream(request)) as stream:
        async for chunk in stream:
            assert not (chunks and chunks[-1].is_last), "the last chunk is the last"
            assert chunk.first_sample == position, "chunks join without a gap"
            position += len(chunk.samples)
            chunks.append(chunk)
    assert chunks[-1].is_last
    return np.concatenate([chunk.samples for chunk in chunks])


def synthesize(request: SynthesisRequest, *, parallel_segments: int = 4, generator: StepMaker | None = None) -> np.ndarray:
    return asyncio.run(listen(make_synthesizer(generator or StepMaker(), parallel_segments=parallel_segments), request))


def is_joined(audio: np.ndarray, parts: list[np.ndarray]) -> bool:
    """Whether audio is the parts in order; where a part alone falls silent at its end, the audio goes on."""
    expected = np.concatenate(parts)
    same = np.isclose(audio, expected, rtol=0, atol=1e-6) if len(audio) == len(expected) else np.zeros(1, bool)
    for end in np.cumsum([len(part) for part in parts])[:-1]:
        same[end - FALL : end] = True
    return bool(same.all())


def test_segments_are_delivered_in_order_and_complete():
    alone = [synthesize(make_request(sentence)) for sentence in SENTENCES]
    assert [len(samples) for samples in alone] == [2 * len(text) * SAMPLES_PER_STEP - HOP for text in SENTENCES]
    assert is_joined(synthesize(make_request()), alone)


def test_only_segments_that_a_listener_may_wait_for_have_a_low_latency():
    traits = DecoderTraits(is_stateful=True, use_decoder=True, look_ahead=52, chunk_steps=(8,))
    request = make_request("Hi. " + "A long sentence takes far more steps than the first audio of an exact stream. " * 2)
    prompts = asyncio.run(PromptMaker().plan(request, {})).prompts
    low, exact = Latency.LOW, Latency.EXACT
    assert latency_of_segments(prompts, low, traits) == [low, low, exact]
    assert latency_of_segments(prompts, exact, traits) == [exact] * 3


@pytest.mark.parametrize("latency", Latency)
def test_the_model_is_told_how_many_steps_the_first_audio_takes(latency):
    class FarSighted(ToneDecoder):
        async def traits(self) -> DecoderTraits:
            return DecoderTraits(is_stateful=True, use_decoder=True, look_ahead=52, chunk_steps=(8, 8))

    recorder = Recorder()
    synthesizer = Synthesizer(PromptMaker(), recorder, FarSighted(), VoiceCatalogue.load(None, 16), SpeechConfig())
    with suppress(EngineFault):  # the tones come sooner than its traits say
        asyncio.run(listen(synthesizer, make_request("one", scheduling=SchedulingParams(latency=latency))))
    assert recorder.scheduling[0].first_steps == {Latency.EXACT: 60, Latency.LOW: 20}[latency]
    assert sum(recorder.scheduling[0].blocks[:3]) == {Latency.EXACT: 60, Latency.LOW: 30}[latency]


@pytest.mark.parametrize("parallel_segments", [1, 2, 3, 64])
def test_how_many_run_in_parallel_changes_no_sample(parallel_segments):
    assert np.array_equal(synthesize(make_request(), parallel_segments=parallel_segments), synthesize(make_request()))


def test_as_many_segments_as_allowed_run_at_once():
    generator = Recorder(pause_s=0.005)
    synthesize(make_request(), parallel_segments=3, generator=generator)
    assert generator.most == 3


def test_steps_are_requested_in_blocks_for_the_vocoder_and_one_step_starts_the_other_segments():
    def blocks_of(request: SynthesisRequest) -> dict[int, tuple[int, ...]]:
        generator = Recorder()
        synthesize(request, generator=generator)
        return {index: scheduling.blocks for index, scheduling in generator.scheduling.items()}

    assert blocks_of(make_request("one.")) == {0: (5, 5, 5)}, "two of look-ahead, three of the first chunk, then five each"
    assert blocks_of(make_request()) == {0: (1, 4, 5, 5), **dict.fromkeys(range(1, 5), (5, 5, 5))}


def test_speed_stretches_the_whole():
    assert len(synthesize(make_request(speed=2.0))) == pytest.approx(len(synthesize(make_request())) / 2, rel=0.02)


@pytest.mark.parametrize("speed", [1.0, 0.8, 1.7])
@pytest.mark.parametrize("silence_ms", [1, 20, 333, 10_000])
def test_a_break_is_exact_silence_at_the_joint(speed, silence_ms):
    before, after = synthesize(make_request("one two.", speed=speed)), synthesize(make_request("three.", speed=speed))
    passages = (Passage("one two."), Passage("three.", silence_ms=silence_ms), Passage("", silence_ms=silence_ms))
    audio = synthesize(make_request("one two. three.", passages=passages, speed=speed))
    zeros = np.zeros(24 * silence_ms, np.float32)
    assert np.array_equal(audio, np.concatenate([before, zeros, after, zeros]))


def test_silence_alone_is_delivered_too():
    assert np.array_equal(synthesize(make_request("", passages=(Passage("", silence_ms=50),))), np.zeros(1200, np.float32))


def test_each_passage_is_spoken_in_its_manner():
    passages = (Passage("one."), Passage("two.", prosody=Prosody(rate=2.0)), Passage("three.", prosody=Prosody(gain_db=-20.0)))
    audio = synthesize(make_request("one. two. three.", passages=passages))
    parts = [
        synthesize(make_request("one.")),
        synthesize(make_request("two.", speed=2.0)),
        synthesize(make_request("three.")) * np.float32(0.1),
    ]
    assert is_joined(audio, parts)


def test_rates_multiply_within_the_bounds_of_speed():
    passages = (Passage("one.", prosody=Prosody(rate=2.0)), Passage("two.", prosody=Prosody(rate=0.5)))
    audio = synthesize(make_request("one. two.", passages=passages, speed=3.0))
    parts = [synthesize(make_request("one.", speed=4.0)), synthesize(make_request("two.", speed=1.5))]
    assert is_joined(audio, parts)


def test_every_voice_a_request_names_is_known_to_the_front_end():
    class Noting(PromptMaker):
        async def plan(self, request: SynthesisRequest, voices: Mapping[str, Voice]) -> SpeechPlan:
            self.voices = {name: voice.name for name, voice in voices.items()}
            return await super().plan(request, voices)

    frontend = Noting()
    passages = (Passage("one.", prosody=Prosody(voice="seed:1")), Passage("two."))
    asyncio.run(listen(make_synthesizer(StepMaker(), frontend=frontend), make_request("one. two.", passages=passages)))
    assert frontend.voices == {"default": "default", "seed:1": "seed:1"}
    with pytest.raises(UnknownVoice):
        synthesize(make_request("one.", passages=(Passage("one.", prosody=Prosody(voice="unknown")),)))


def test_warnings_come_with_the_first_chunk_alone():
    first, *others = asyncio.run(warned(StepMaker()))
    assert first == (("emoji", 2),)
    assert set(others) == {()}


async def warned(generator: StepMaker) -> list[object]:
    frontend = PromptMaker(warnings=(("emoji", 2),))
    async with aclosing(make_synthesizer(generator, frontend=frontend).stream(make_request())) as stream:
        return [chunk.warnings async for chunk in stream]


@pytest.mark.parametrize(("whole", "counted"), [((), 5), ((0, 3), 3), ((0, 1, 2, 3, 4), 0)])
def test_segments_too_short_for_their_text_are_rolled_again_and_counted_with_the_last_chunk(whole, counted):
    first, *_, last = asyncio.run(warned(Hasty(*whole)))
    assert first[0] == ("emoji", 2)
    assert dict(first[1:]).keys() <= {"rolled_again", "too_short"}, "as far as they are known by then"
    assert dict(last) == ({"rolled_again": counted, "too_short": counted} if counted else {})


def test_a_segment_that_is_rolled_again_is_spoken_in_its_second_take():
    assert np.array_equal(synthesize(make_request(), generator=Hasty(relents=True)), synthesize(make_request()))
    assert dict(asyncio.run(warned(Hasty(0, relents=True)))[-1]) == {"rolled_again": 4}


def test_refine_speaks_what_the_refine_pass_wrote():
    class Refiner(StepMaker):
        """Refines every text to "ab": two text tokens."""

        async def generate(self, prompt, sampling, *, timeout_s, admitted=False):
            async for block in super().generate(prompt, sampling, timeout_s=timeout_s, admitted=admitted):
                letters = np.array([[97], [98]] * 20)[: len(block.codes)]
                yield StepBlock(block.hidden, letters, block.first_step, block.finish)

    audio = synthesize(make_request("x.", refine=RefineParams()), generator=Refiner())
    assert len(audio) == 2 * len("ab") * SAMPLES_PER_STEP - HOP


async def test_leaving_closes_every_segment():
    generator = StepMaker(pause_s=0.002)

    async with aclosing(make_synthesizer(generator).stream(make_request())) as stream:
        async for chunk in stream:
            if chunk.first_sample > 0:
                assert generator.running > 0
                break
    assert generator.running == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_refused_first_segment_is_refused_before_any_other_starts():
    class Full(StepMaker):
        def __init__(self) -> None:
            super().__init__()
            self.requested: list[tuple[int, bool]] = []

        async def generate(self, prompt, sampling, *, timeout_s, admitted=False):
            self.requested.append((prompt.segment.index, admitted))
            raise AtCapacity("full", retry_after_s=3)
            yield

    generator = Full()
    with pytest.raises(AtCapacity):
        synthesize(make_request(), generator=generator)
    assert generator.requested == [(0, False)], "the first segment decides admission, and no other one starts"


def test_later_segments_are_admitted_on_the_first_ones_ticket():
    generator = Recorder()
    synthesize(make_request(), generator=generator)
    assert generator.admitted == {0: False, 1: True, 2: True, 3: True, 4: True}


def test_a_segment_that_fails_ends_the_stream_after_the_good_ones():
    class Breaking(StepMaker):
        async def generate(self, prompt, sampling, *, timeout_s, admitted=False):
            if prompt.segment.index == 2:
                raise NonFiniteOutput("segment 2 is broken")
            async for block in super().generate(prompt, sampling, timeout_s=timeout_s, admitted=admitted):
                yield block

    chunks: list[AudioChunk] = []

    async def listen_until_it_breaks() -> None:
        async with aclosing(make_synthesizer(Breaking()).stream(make_request())) as stream:
            async for chunk in stream:
                chunks.append(chunk)

    with pytest.raises(NonFiniteOutput):
        asyncio.run(listen_until_it_breaks())
    good = synthesize(make_request(". ".join(SENTENCES[:2])))
    assert np.array_equal(np.concatenate([chunk.samples for chunk in chunks]), good[:-FALL])
    assert not any(chunk.is_last for chunk in chunks)


def test_a_request_whose_time_is_over_says_so():
    with pytest.raises(DeadlineExceeded):
        synthesize(make_request(timeout_s=0.0))


def test_an_unknown_voice_is_known_before_anything_runs():
    generator = StepMaker()
    with pytest.raises(UnknownVoice):
        synthesize(SynthesisRequest("id", TEXT, "unknown"), generator=generator)
    assert generator.running == 0
