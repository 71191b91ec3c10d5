"""Fail-over of every kind of request, over real engines: whatever dies, the samples are those of one that was left alone."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import ActorUnavailableError
from websockets.sync.client import connect

from pipeline.cache.cache import CodeCache
from pipeline.cache.cached_generator import CachedModel
from pipeline.cache.key import Kept
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import EngineConfig, SpeechConfig, VocoderConfig
from pipeline.engine.engine import Engine
from pipeline.errors import EngineDead
from pipeline.synthesizer import Synthesizer
from pipeline.text.frontend import LocalTextFrontend
from pipeline.types import (
    AudioChunk,
    CacheControl,
    CacheMode,
    Lane,
    Latency,
    Passage,
    Prompt,
    Prosody,
    RefineGuard,
    RefineParams,
    SamplingParams,
    SchedulingParams,
    StepBlock,
    SynthesisRequest,
    Voice,
)
from pipeline.vocoder.vocoder import Vocoder
from serve.http.services import Services
from serve.observability.stage_timings import CURRENT_TIMINGS, StageTimings
from serve.remote.remote_handle import RemoteHandle
from serve.stages import stage_clients
from serve.stages.replica_table import Route
from serve.stages.stage_clients import StageGenerator
from serve.stages.taken_over import MOST_FAIL_OVERS
from tests.support.effort import examples
from tests.support.factories import make_speaker
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving
from tests.support.riva_server import Caller, riva_serving
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

FLAT = SamplingParams(temperature=2.0, top_p=1.0, top_k=626, repetition_penalty=1.0, seed=1)
"""random weights then seldom end a segment: it runs to its cap"""
BUILD = "this build"
TEXT = "Many words follow one another here. And then there are some more of them."
SENTENCE = "Many words follow one another here."


@dataclass(eq=False)
class Mortals:
    """A deployment of two replicas, which are called in turn. Each call ends with a death after so many blocks."""

    engines: Sequence[Engine]
    lives: list[int] = field(default_factory=list)
    """blocks of each call, in the order of the calls; further calls live"""
    calls: list[Prompt] = field(default_factory=list)

    @property
    def generate(self) -> "Mortals":
        return self

    def options(self, **options: object) -> "Mortals":
        return self

    def remote(
        self, prompt: Prompt, sampling: SamplingParams, timeout_s: float, admitted: bool, trace: str, route: Route
    ) -> "Call":
        number = len(self.calls)
        self.calls.append(prompt)
        life = self.lives[number] if number < len(self.lives) else None
        steps = partial(self.engines[number % 2].generate, prompt, sampling, timeout_s=timeout_s, admitted=admitted)
        return Call(steps, life, bytes([number % 250]) * 16)


@dataclass(eq=False)
class Call:
    """The response of a streaming call; an actor that died is known by its id."""

    steps: Callable[[], AsyncGenerator[StepBlock, None]]
    life: int | None
    actor: bytes

    async def __aiter__(self) -> AsyncIterator[StepBlock]:
        remaining = self.life
        async with aclosing(self.steps()) as blocks:
            async for block in blocks:
                if remaining == 0:
                    break
                remaining = None if remaining is None else remaining - 1
                is_at_an_end = block.first_step == 0 or block.finish is not None
                yield replace(block, fingerprint=BUILD) if is_at_an_end else block
        if remaining == 0:
            raise ActorUnavailableError("gone", self.actor)

    def cancel(self) -> None:
        return


class Voices:
    """protocols.VoiceSource: two speakers and one with a recording, made of the fewest numbers."""

    def __init__(self, width: int) -> None:
        codes = np.random.default_rng(5).integers(0, 600, (30, 4))
        self._handles = {
            "one": Voice("one", make_speaker(1, width)),
            "two": Voice("two", make_speaker(2, width)),
            "cloned": Voice("cloned", None, codes, "words of a recording"),
        }

    def get(self, name: str) -> Voice:
        return self._handles[name]


@dataclass(frozen=True)
class House:
    """The stages, of which only the way to the acoustic model is not a local one."""

    frontend: LocalTextFrontend
    vocoder: Vocoder
    voices: Voices
    engines: tuple[Engine, Engine]

    def synthesizer(self, mortals: Mortals, cache: CodeCache | None = None) -> Synthesizer:
        generator = StageGenerator(RemoteHandle(mortals))
        cached = None if cache is None else CachedModel(generator, cache, payload=Kept.HIDDEN, fingerprint=BUILD)
        return Synthesizer(self.frontend, generator, self.vocoder, self.voices, SpeechConfig(), cached)

    def is_free(self) -> bool:
        return all(engine.stats().slots_used == engine.stats().waiting == 0 for engine in self.engines)


@contextmanager
def opened(root: Path, **changes: Any) -> Iterator[House]:
    checkpoint = open_checkpoint(root)
    config = EngineConfig.varied(dict(**{"slots": 2, "max_steps": 96, "block_steps": 8, **changes}))
    frontend = LocalTextFrontend(root, max_prompt=config.max_prompt, max_steps=config.max_steps)
    engines = (Engine(config, checkpoint), Engine(config, checkpoint))
    vocoder = Vocoder(VocoderConfig(device="cpu"), checkpoint)
    yield House(frontend, vocoder, Voices(checkpoint.gpt_spec.width), engines)
    vocoder.close()
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def house(demo_root: Path) -> Iterator[House]:
    with opened(demo_root) as opened_house:
        yield opened_house


def services_of(house: House, mortals: Mortals) -> Services:
    """An ingress replica before these stages; whatever voice is named, it speaks with the first one."""
    return make_services(Speaker(), stream=house.synthesizer(mortals).stream, voice_id=lambda name: "one")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(stage_clients, "BACK_OFF_S", 0.0)


def request(text: str = TEXT, **fields: Any) -> SynthesisRequest:
    return SynthesisRequest(**{"request_id": "r", "text": text, "voice": "one", "sampling": FLAT, **fields})


def passages(*turns: tuple[str, str]) -> dict[str, Any]:
    passages_said = tuple(Passage(text, prosody=Prosody(voice=voice)) for voice, text in turns)
    return {"text": "".join(text for _, text in turns), "passages": passages_said}


async def samples_of(synthesizer: Synthesizer, speech: SynthesisRequest) -> np.ndarray:
    CURRENT_TIMINGS.set(StageTimings())
    async with aclosing(synthesizer.stream(speech)) as chunks:
        return np.concatenate([chunk.samples async for chunk in chunks])


KINDS: dict[str, SynthesisRequest] = {
    "segments": request(),
    "refine": request(refine=RefineParams(sampling=replace(FLAT, seed=3), guard=RefineGuard.OFF)),
    "cloned": request(voice="cloned"),
    "dialogue": request(**passages(("one", "Are you there? "), ("two", "I am. "), ("cloned", "So am I."))),
    "low latency": request(scheduling=SchedulingParams(latency=Latency.LOW)),
    "bulk": request(scheduling=SchedulingParams(Lane.BULK)),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(12))
@given(lives=st.lists(st.integers(0, 8), max_size=MOST_FAIL_OVERS - 1))
def test_every_kind_of_request_goes_on_exactly(house: House, kind: str, lives: list[int]):
    """Any call dies after any block: first ones, those that catch up, passes of refine, segments side by side."""
    twin = asyncio.run(samples_of(house.synthesizer(Mortals(house.engines)), KINDS[kind]))
    mortals = Mortals(house.engines, [*([1] if kind != "refine" else []), *lives])
    try:
        samples = asyncio.run(samples_of(house.synthesizer(mortals), KINDS[kind]))
    except EngineDead:
        assert sum(life == 0 for life in lives) > 1, "one call that never began has one more try, and only one"
        samples = None
    assert samples is None or np.array_equal(samples, twin)
    wait_until(house.is_free)


def test_those_that_share_a_segment_go_on_together_and_the_cache_has_the_whole(house: House):
    cache = CodeCache(8 << 20)
    mortals = Mortals(house.engines, [2, 3, 1])
    synthesizer = house.synthesizer(mortals, cache)
    speech = request(cache=CacheControl(CacheMode.DEFAULT, "t"))

    async def play() -> list[np.ndarray]:
        both = list(await asyncio.gather(*(samples_of(synthesizer, speech) for _ in range(2))))
        called = len(mortals.calls)
        both.append(await samples_of(synthesizer, speech))
        assert len(mortals.calls) == called, "the third has it from the cache"
        return both

    twin = asyncio.run(samples_of(house.synthesizer(Mortals(house.engines)), speech))
    assert all(np.array_equal(samples, twin) for samples in asyncio.run(play()))
    assert (cache.stats().joined, cache.stats().memory_hits) == (2, 2)


def test_bulk_goes_on_behind_those_who_took_its_slot(house: House):
    """Its second replica is full of interactive requests: it is preempted there, and has its bits all the same."""
    bulk = request(scheduling=SchedulingParams(Lane.BULK))
    twin = asyncio.run(samples_of(house.synthesizer(Mortals(house.engines)), bulk))
    urgent = [request(voice="two", scheduling=SchedulingParams(Lane.INTERACTIVE, tenant=str(number))) for number in range(3)]

    async def play() -> np.ndarray:
        second = house.synthesizer(Mortals((house.engines[1], house.engines[1])))
        slow = asyncio.create_task(samples_of(house.synthesizer(Mortals(house.engines, [3, 3, 2])), bulk))
        hurried = await asyncio.gather(*(samples_of(second, speech) for speech in urgent))
        assert all(np.array_equal(samples, hurried[0]) for samples in hurried)
        return await slow

    assert np.array_equal(asyncio.run(play()), twin)
    wait_until(house.is_free)


def test_a_conversation_goes_on_exactly(house: House):
    speech = {"response_format": "pcm", "seed": 1, "temperature": 2.0, "top_p": 1.0, "top_k": 626, "repetition_penalty": 1.0}

    def talk(lives: list[int]) -> tuple[bytes, list[str]]:
        with serving(services_of(house, Mortals(house.engines, lives))) as live:
            address = live.url.replace("http", "ws") + "/v1/audio/conversation"
            with connect(address) as socket:
                for message in (
                    {"type": "open", "speech": speech},
                    *({"type": kind, **({"text": SENTENCE} if kind == "text" else {})} for kind in ("text", "flush") * 2),
                    {"type": "close"},
                ):
                    socket.send(json.dumps(message))
                events = [json.loads(socket.recv(timeout=60))]
                while events[-1]["type"] not in ("closed", "error"):
                    events.append(json.loads(socket.recv(timeout=60)))
        audio = b"".join(base64.b64decode(event["audio"]) for event in events if event["type"] == "audio")
        return audio, [event["type"] for event in events if event["type"] != "audio"]

    undisturbed = talk([])
    assert talk([4, 2, 5, 3]) == undisturbed
    assert undisturbed[1] == ["opened", "started", "finished", "started", "finished", "closed"]


def test_a_grpc_call_that_is_cancelled_frees_its_slots_within_a_round(demo_root: Path):
    rounds: list[int] = []
    with opened(demo_root, ignore_eos=True, max_steps=1024) as house:
        engine = house.engines[0]
        synthesizer = house.synthesizer(Mortals((engine, engine)))

        async def stream(speech: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
            try:
                async with aclosing(synthesizer.stream(speech)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            finally:
                rounds.append(engine.stats().rounds)

        services = make_services(Speaker(), stream=stream, voice_id=lambda name: "one")
        with riva_serving(services) as address:
            replies = Caller(address).stream({"text": TEXT * 8})
            next(replies)
            wait_until(lambda: engine.stats().slots_used == 2)
            replies.cancel()
            wait_until(lambda: rounds and house.is_free())
        assert engine.stats().rounds <= rounds[0] + 1
