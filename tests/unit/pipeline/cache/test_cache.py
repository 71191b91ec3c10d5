"""The cache of sampled steps: keys, tiers, purges, and that cached audio has the bytes of uncached audio."""

import asyncio
import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cache.cache import OVERHEAD, CodeCache, MemoryTier
from pipeline.cache.cached_generator import CachedModel
from pipeline.cache.invalidation import PurgeGenerations
from pipeline.cache.key import WITHOUT_EFFECT as WITHOUT_EFFECT_ON_STEPS
from pipeline.cache.key import CacheEntryKey, Kept, entry_key_for
from pipeline.cache.redis_tier import RedisTier
from pipeline.cache.serialization import pack, unpack
from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig, SpeechConfig, VocoderConfig
from pipeline.engine.engine import Engine
from pipeline.engine.engine_fingerprint import WITHOUT_EFFECT, engine_fingerprint
from pipeline.errors import NotCached
from pipeline.spec import STEPS_PER_SECOND
from pipeline.store.sqlite import SqliteStore
from pipeline.synthesizer import Synthesizer
from pipeline.text.frontend import LocalTextFrontend
from pipeline.text.segment import SegmentLimits
from pipeline.types import (
    AudioOptions,
    CacheControl,
    CacheMode,
    CacheResult,
    Denoise,
    FinishReason,
    Head,
    Lane,
    Prompt,
    RefineParams,
    SamplingParams,
    SchedulingParams,
    SeedMode,
    StepBlock,
    SynthesisRequest,
)
from pipeline.vocoder.vocoder import Vocoder
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from pipeline.voices.seeds import read_statistics
from tests.support.effort import examples
from tests.support.factories import make_prompt, make_speaker
from tests.support.services import RedisServer

# Keys.

PROMPT = make_prompt(speaker=make_speaker(1, 16), eos_token=9)
SAMPLING = SamplingParams()
BESIDE: dict[str, Any] = {"fingerprint": "b", "tenant": "t", "generations": (0, 0), "payload": Kept.HIDDEN}
OTHER_SAMPLING = {
    "temperature": 0.31, "top_p": 0.71, "top_k": 21, "repetition_penalty": 1.06, "seed": 1,
    "seed_mode": SeedMode.UPSTREAM, "attempt": 1, "min_steps": 2,
}  # fmt: skip
OTHER_PROMPT: dict[str, Any] = {
    "ids": PROMPT.ids + 1, "text_mask": ~PROMPT.text_mask, "head": Head.TEXT,
    "segment": replace(PROMPT.segment, index=1), "max_steps": PROMPT.max_steps + 1, "speaker": make_speaker(2, 16),
    "speaker_position": 2, "eos_token": None,
}  # fmt: skip
OTHER_BESIDE = {"fingerprint": "c", "tenant": "u", "generations": (0, 1), "payload": Kept.CODES}


def key_of(prompt: Prompt = PROMPT, sampling: SamplingParams = SAMPLING, **beside: Any) -> str:
    return entry_key_for(prompt, sampling, **{**BESIDE, **beside}).digest


def test_equal_inputs_have_one_key():
    twin = make_prompt(speaker=make_speaker(1, 16), eos_token=9)
    assert key_of(twin, SamplingParams()) == key_of()
    assert key_of(replace(twin, segment=replace(twin.segment, text="written otherwise"))) == key_of(), "its text is in the ids"
    assert key_of(replace(twin, scheduling=SchedulingParams(Lane.BULK, "tenant", 3.0, 7))) == key_of(), (
        "scheduling decides when steps are generated, not which"
    )
    assert key_of(replace(twin, least_steps=40)) == key_of(), "it decides which take is spoken"


def test_every_input_that_can_change_a_step_changes_the_key():
    assert OTHER_SAMPLING.keys() == {field.name for field in fields(SamplingParams)}, "a new field has its case here"
    assert {*OTHER_PROMPT, *WITHOUT_EFFECT_ON_STEPS} == {field.name for field in fields(Prompt)}, (
        "a new field has its case here"
    )
    keys = [key_of()]
    keys += [key_of(sampling=replace(SamplingParams(), **{name: value})) for name, value in OTHER_SAMPLING.items()]
    keys += [key_of(replace(PROMPT, **{name: value})) for name, value in OTHER_PROMPT.items()]
    keys += [key_of(**{name: value}) for name, value in OTHER_BESIDE.items()]
    assert len(set(keys)) == len(keys)


# Fingerprints.


def test_a_fingerprint_covers_weights_and_numbers_but_not_waiting_rooms(demo: Checkpoint, tmp_path: Path):
    plain = engine_fingerprint(EngineConfig(), demo)
    assert engine_fingerprint(EngineConfig(), demo) == plain
    for name, value in {
        "slots": 9,
        "dtype": "bfloat16",
        "kv": "int8",
        "decode": "torch",
        "ignore_eos": True,
        "max_steps": 512,
    }.items():
        assert engine_fingerprint(EngineConfig.model_validate({name: value}), demo) != plain, name
    for name in WITHOUT_EFFECT:
        other = EngineConfig().model_dump()[name] + 1
        assert engine_fingerprint(EngineConfig().model_copy(update={name: other}), demo) == plain, name
    assert set(EngineConfig.model_fields) >= WITHOUT_EFFECT
    copy = tmp_path / "asset"
    copy.mkdir()
    for file in demo.root.rglob("*"):
        if file.is_file():
            (tmp_path / file.relative_to(demo.root)).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file.relative_to(demo.root)).write_bytes(file.read_bytes())
    moved = dataclasses.replace(demo, root=tmp_path)
    assert engine_fingerprint(EngineConfig(), moved) == plain, "where the weights lie is no part of them"
    (tmp_path / "SHA256SUMS").unlink()
    assert engine_fingerprint(EngineConfig(), moved) == plain, "weights without a manifest are hashed"
    (tmp_path / "asset/Embed.safetensors").write_bytes(b"other weights")
    assert engine_fingerprint(EngineConfig(), moved) != plain


# Packing.


@st.composite
def segments(draw: st.DrawFn, books: int = 4) -> list[StepBlock]:
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    width, first, blocks = draw(st.integers(0, 9)), 0, []
    for index, size in enumerate(sizes):
        codes = random.integers(0, 626 if books == 4 else 21_178, size=(size, books))
        hidden, samples = (
            random.integers(0, 2**32, size=shape, dtype=np.uint32).view(np.float32)  # any bits at all
            for shape in ((size, width), (7 * size,))
        )
        finish = draw(st.sampled_from(FinishReason)) if index == len(sizes) - 1 else None
        blocks.append(StepBlock(hidden, codes, first, finish, samples=samples, first_sample=7 * first))
        first += size
    return blocks


@given(st.sampled_from([4, 1]).flatmap(segments), st.sampled_from(Kept))
def test_what_is_packed_comes_back_bit_for_bit(blocks, payload):
    back = unpack(pack(blocks, payload))
    assert np.array_equal(back.codes, np.concatenate([block.codes for block in blocks]))
    assert back.codes.dtype == np.int64
    assert (back.first_step, back.finish) == (0, blocks[-1].finish)
    states = np.concatenate([block.hidden for block in blocks])
    expected = states if payload is Kept.HIDDEN else states[:, :0]
    assert back.hidden.dtype == np.float32
    assert np.array_equal(back.hidden.view(np.uint32), expected.view(np.uint32))
    if payload is Kept.SAMPLES:
        samples = np.concatenate([block.samples for block in blocks])
        assert np.array_equal(back.samples.view(np.uint32), samples.view(np.uint32))
    else:
        assert back.samples is None


def test_ten_seconds_of_codes_are_two_kilobytes():
    steps = round(10 * STEPS_PER_SECOND)
    block = StepBlock(np.zeros((steps, 768), np.float32), np.full((steps, 4), 625), 0, FinishReason.EOS)
    assert len(pack([block], Kept.CODES)) == pytest.approx(2345, abs=20)
    assert len(pack([block], Kept.HIDDEN)) == pytest.approx(2345 + steps * 3072, abs=20)


@given(segments(), st.data())
def test_damaged_bytes_are_noticed(blocks, data):
    content = pack(blocks, Kept.HIDDEN)
    position = data.draw(st.integers(0, len(content) - 1))
    damaged = bytearray(content)
    damaged[position] ^= data.draw(st.integers(1, 255))
    for broken in (bytes(damaged), content[:position], b"", content + b"x"):
        with pytest.raises(ValueError, match="cache entry"):
            unpack(broken)


# The tier in memory.


@given(st.lists(st.tuples(st.sampled_from(["put", "get", "drop"]), st.sampled_from("abcde"), st.integers(0, 400)), max_size=60))
def test_memory_is_an_lru_that_never_holds_more_than_its_bytes(events):
    limit = 4 * OVERHEAD
    tier, twin, evictions = MemoryTier(limit), OrderedDict[str, bytes](), 0
    for kind, key, size in events:
        if kind == "put":
            tier.put(CacheEntryKey(key, key, (0, 0), "", Kept.CODES), bytes(size))
            twin.pop(key, None)
            if size + OVERHEAD <= limit:
                twin[key] = bytes(size)
                while sum(len(value) + OVERHEAD for value in twin.values()) > limit:
                    twin.popitem(last=False)
                    evictions += 1
        elif kind == "get":
            assert tier.get(key) == twin.get(key)
            if key in twin:
                twin.move_to_end(key)
        else:
            tier.drop(lambda entry_key, key=key: entry_key.tenant == key)
            twin.pop(key, None)
        assert {key for key in "abcde" if key in tier} == twin.keys()
        assert tier.bytes == sum(len(value) + OVERHEAD for value in twin.values()) <= limit
        assert (len(tier), tier.evictions) == (len(twin), evictions)


# The whole chain.


@dataclasses.dataclass
class Chain:
    """A synthesizer over the real engine and vocoder, and the same one behind a cache."""

    engine: Engine
    vocoder: VocoderConfig
    parts: tuple[Any, ...]

    @property
    def plain(self) -> Synthesizer:
        return Synthesizer(*self.parts)

    def behind(self, cache: CodeCache) -> Synthesizer:
        payload = Kept.HIDDEN if self.vocoder.use_decoder else Kept.CODES
        return Synthesizer(*self.parts, CachedModel(self.engine, cache, payload=payload, fingerprint=""))


@pytest.fixture(scope="module", params=[True, False], ids=["from hidden states", "from codes"])
def chain(request: pytest.FixtureRequest, demo: Checkpoint) -> Iterator[Chain]:
    config = VocoderConfig.varied({"use_decoder": request.param, "look_ahead": 8, "chunk_steps": (8, 32), "threads": 1})
    engine = Engine(EngineConfig(slots=4, max_steps=256, threads=1), demo)
    vocoder = Vocoder(config, demo)
    brief = SegmentLimits(steps_per_char=2, base_steps=16, refine_steps=24)
    frontend = LocalTextFrontend(demo.root, brief, max_prompt=512, max_steps=256)
    width = demo.gpt_spec.width
    voices = VoiceLibrary(VoiceCatalogue.load(None, width, read_statistics(demo.root, width)))
    yield Chain(engine, config, (frontend, engine, vocoder, voices, SpeechConfig()))
    vocoder.close()
    engine.close()


def request_for(
    text: str = "Hello there.", mode: CacheMode = CacheMode.DEFAULT, tenant: str = "", **f: Any
) -> SynthesisRequest:
    return SynthesisRequest("id", text, f.pop("voice", "default"), cache=CacheControl(mode, tenant), **f)


async def audio_of(synthesizer: Synthesizer, request: SynthesisRequest) -> tuple[bytes, CacheResult]:
    """Returns the bits of every sample, and the source of the first segment."""
    chunks = [chunk async for chunk in synthesizer.stream(request)]
    assert chunks[0].is_made or chunks[0].cache in (CacheResult.HIT, CacheResult.JOINED)
    return b"".join(chunk.samples.tobytes() for chunk in chunks), chunks[0].cache


def play(synthesizer: Synthesizer, request: SynthesisRequest) -> tuple[bytes, CacheResult]:
    return asyncio.run(audio_of(synthesizer, request))


OPTIONS = st.builds(
    AudioOptions,
    sample_rate=st.sampled_from([8_000, 24_000, 48_000]),
    trim=st.booleans(),
    denoise=st.sampled_from([Denoise.OFF, Denoise.AUTO]),
    gain_db=st.sampled_from([0.0, 3.0]),
    fade_ms=st.sampled_from([0.0, 5.0]),
)
TEXTS = (
    "Hello there.",
    "One. Two three.",
    "你好。",
    "Hello there. And then a second sentence that goes on for a while, and on.",
)


@pytest.mark.slow
@settings(max_examples=examples(6))
@given(
    st.sampled_from(TEXTS),
    st.integers(0, 3),
    st.sampled_from(["default", "seed:7"]),
    st.sampled_from([1.0, 1.3]),
    st.lists(OPTIONS, min_size=1, max_size=2),
    st.booleans(),
)
def test_a_cached_reply_has_the_bytes_of_an_uncached_one(chain, text, seed, voice, speed, options, refined):
    """With any format, rate, speed and audio options; missed, hit or joined."""
    cached = chain.behind(CodeCache(1 << 24))
    refine = RefineParams(sampling=SamplingParams(seed=seed, temperature=0.7)) if refined else None
    for index, audio in enumerate(options):
        request = request_for(text, voice=voice, sampling=SamplingParams(seed=seed), refine=refine, speed=speed, audio=audio)
        plain, source = play(chain.plain, request)
        assert source is CacheResult.BYPASS
        assert play(cached, request) == (plain, CacheResult.HIT if index else CacheResult.MISS)
        assert play(cached, request) == (plain, CacheResult.HIT)

    async def at_once() -> list[tuple[bytes, CacheResult]]:
        fresh = chain.behind(CodeCache(0))
        return await asyncio.gather(*(audio_of(fresh, request) for _ in range(3)))

    replies = asyncio.run(at_once())
    assert [reply for reply, _ in replies] == [plain] * 3
    assert [source for _, source in replies].count(CacheResult.MISS) == 1


def test_only_what_the_vocoder_reads_is_stored(chain):
    cache = CodeCache(1 << 24)
    play(chain.behind(cache), request_for())
    steps = chain.engine.stats().steps
    play(chain.behind(CodeCache(0)), request_for())
    steps = chain.engine.stats().steps - steps
    step_bytes = (4 * 128 if chain.vocoder.use_decoder else 0) + 5
    assert cache.stats().bytes == pytest.approx(steps * step_bytes, abs=OVERHEAD + 32)


@pytest.mark.slow
def test_every_cache_mode_does_what_it_promises(chain):
    cache = CodeCache(1 << 24)
    cached = chain.behind(cache)
    with pytest.raises(NotCached):
        play(cached, request_for(mode=CacheMode.ONLY_IF_CACHED))
    assert play(cached, request_for(mode=CacheMode.NO_STORE))[1] is CacheResult.BYPASS
    assert cache.stats().entries == 0
    plain, source = play(cached, request_for(mode=CacheMode.REFRESH))
    assert (source, cache.stats().entries) == (CacheResult.MISS, 1)
    assert play(cached, request_for(mode=CacheMode.REFRESH)) == (plain, CacheResult.MISS)
    assert play(cached, request_for(mode=CacheMode.ONLY_IF_CACHED)) == (plain, CacheResult.HIT)
    assert cache.stats().misses == 2


def test_a_reply_is_made_unless_the_cache_has_every_segment(chain):
    cached = chain.behind(CodeCache(1 << 24))
    beginning = "First of all, this is the beginning of it. "

    async def source_of(rest: str) -> tuple[CacheResult, bool]:
        chunks = [chunk async for chunk in cached.stream(request_for(beginning + rest))]
        return chunks[0].cache, any(chunk.is_made for chunk in chunks)

    ends = (TEXTS[3], TEXTS[3], "And then it ends in another way altogether, does it.")
    sources = (CacheResult.MISS, True), (CacheResult.HIT, False), (CacheResult.HIT, True)
    assert tuple(asyncio.run(source_of(rest)) for rest in ends) == sources


# Fingerprints that change.


class Updated:
    """An engine whose fingerprint changes between two requests."""

    def __init__(self) -> None:
        self.fingerprint = "old"
        self.generated = 0

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        self.generated += 1
        codes = np.full((2, 4), 1 if self.fingerprint == "old" else 2)
        yield StepBlock(np.zeros((2, 8), np.float32), codes, 0, FinishReason.EOS, fingerprint=self.fingerprint)


async def test_steps_of_one_fingerprint_are_not_returned_under_another():
    async def codes(model: CachedModel) -> int:
        steps = model.for_request(CacheControl(CacheMode.DEFAULT)).generate(PROMPT, SamplingParams(), timeout_s=9)
        return int(np.concatenate([block.codes async for block in steps])[0, 0])

    engine, cache = Updated(), CodeCache(1 << 20)
    model = CachedModel(engine, cache, payload=Kept.CODES)
    assert model.for_request(CacheControl(CacheMode.DEFAULT)) is None, "the fingerprint is not known yet"
    with pytest.raises(NotCached):
        model.for_request(CacheControl(CacheMode.ONLY_IF_CACHED))
    model.fingerprint = "old"
    assert [await codes(model), await codes(model), engine.generated] == [1, 1, 1]
    engine.fingerprint, other = "new", replace(PROMPT, max_steps=7)
    steps = model.for_request(CacheControl(CacheMode.DEFAULT)).generate(other, SamplingParams(), timeout_s=9)
    assert [block.fingerprint async for block in steps] == ["new"]
    assert model.fingerprint == "new", "the last block names its fingerprint"
    assert cache.stats().entries == 1, "the new fingerprint's steps are not kept under the old one's name"
    assert [await codes(model), engine.generated] == [2, 3]


# Purges.


@pytest.mark.slow
def test_a_purge_reaches_every_process_that_shares_the_store(chain, tmp_path):
    caches = [CodeCache(1 << 24, generations=PurgeGenerations(SqliteStore(tmp_path / "store"))) for _ in range(2)]
    tenants = ("one", "two")
    for cache, tenant in itertools.product(caches, tenants):
        play(chain.behind(cache), request_for(tenant=tenant))
    asyncio.run(caches[0].purge("one"))
    assert caches[0].stats().entries == 1
    assert caches[1].generations.refresh()
    caches[1].drop_purged()
    assert not caches[1].generations.refresh()
    for cache in caches:
        assert cache.stats().entries == 1, "its memory is freed"
        assert play(chain.behind(cache), request_for(tenant="one"))[1] is CacheResult.MISS
        assert play(chain.behind(cache), request_for(tenant="two"))[1] is CacheResult.HIT
    asyncio.run(caches[1].purge(None))
    caches[0].generations.refresh()
    for cache, tenant in itertools.product(caches, tenants):
        assert play(chain.behind(cache), request_for(tenant=tenant))[1] is CacheResult.MISS


@pytest.mark.slow
async def test_a_segment_in_progress_during_a_purge_is_delivered_and_not_kept(chain):
    cache = CodeCache(1 << 24)
    stream = chain.behind(cache).stream(request_for(TEXTS[3]))
    await anext(stream)
    await cache.purge("")
    async for _ in stream:
        pass
    assert cache.stats().entries in (0, 1), "at most the segment that was complete before"
    assert (await audio_of(chain.behind(cache), request_for(TEXTS[3])))[1] is CacheResult.MISS


# Redis.


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.mark.slow
async def test_redis_serves_other_processes_until_an_entry_expires(chain, redis_server):
    tier = RedisTier(redis_server.url, ttl_s=60)
    plain, source = await audio_of(chain.behind(CodeCache(1 << 24, shared=tier)), request_for(TEXTS[1]))
    assert source is CacheResult.MISS
    await tier.written()
    cache = CodeCache(1 << 24, shared=RedisTier(redis_server.url, ttl_s=60))
    other = chain.behind(cache)
    assert await audio_of(other, request_for(TEXTS[1], mode=CacheMode.ONLY_IF_CACHED)) == (plain, CacheResult.HIT)
    assert cache.stats().shared_hits >= 1
    assert await audio_of(other, request_for(TEXTS[1])) == (plain, CacheResult.HIT)
    assert cache.stats().memory_hits >= 1, "it is in memory from then on"
    assert (await audio_of(other, request_for(TEXTS[1], tenant="two")))[1] is CacheResult.MISS
    await cache.purge("")
    assert (await audio_of(chain.behind(CodeCache(0, shared=tier)), request_for(TEXTS[1])))[1] is CacheResult.MISS
    await tier.written()
    names = [name async for name in tier._redis.scan_iter(match="chattts:cache:*")]
    assert names
    for name in names:
        assert 0 < await tier._redis.pttl(name) <= 60_000, "the entry expires by itself"
        await tier._redis.unlink(name)
    assert (await audio_of(chain.behind(CodeCache(0, shared=tier)), request_for(TEXTS[1])))[1] is CacheResult.MISS
    await tier.written()
    for layer in (tier, cache._shared):
        await layer.close()


@pytest.mark.slow
async def test_foreign_bytes_in_redis_are_replaced(chain, redis_server):
    tier = RedisTier(redis_server.url, ttl_s=60)
    plain, _ = await audio_of(chain.behind(CodeCache(0, shared=tier)), request_for(tenant="x"))
    await tier.written()
    async for name in tier._redis.scan_iter(match="chattts:cache:*"):
        await tier._redis.set(name, b"no steps at all, but long enough for a header")
    assert await audio_of(chain.behind(CodeCache(0, shared=tier)), request_for(tenant="x")) == (plain, CacheResult.MISS)
    await tier.written()
    assert await audio_of(chain.behind(CodeCache(0, shared=tier)), request_for(tenant="x")) == (plain, CacheResult.HIT)
    await tier.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["freeze", "kill"])
def test_a_redis_that_is_away_costs_one_short_wait_and_no_request(chain, tmp_path, fault):
    server = RedisServer(tmp_path)

    async def scenario() -> None:
        now = [0.0]
        tier = RedisTier(server.url, ttl_s=60, clock=lambda: now[0])
        cache = CodeCache(0, shared=tier)
        plain, _ = await audio_of(chain.behind(cache), request_for())
        await tier.written()
        assert tier.errors == 0
        getattr(server, fault)()
        for _ in range(3):
            assert await audio_of(chain.behind(cache), request_for()) == (plain, CacheResult.MISS)
        assert tier.errors == 1, "one failed call, then none for a while"
        server.thaw() if fault == "freeze" else server.start()
        now[0] += 6.0
        assert await audio_of(chain.behind(cache), request_for()) == (plain, CacheResult.HIT)
        await tier.close()

    try:
        asyncio.run(scenario())
    finally:
        server.kill()
