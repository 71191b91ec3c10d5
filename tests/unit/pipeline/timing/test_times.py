"""Times, with the demo voice: exact where they say so, the same however the audio is made, and never after their audio."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pipeline.audio.post_processor import FALL
from pipeline.cache.cache import CodeCache
from pipeline.cache.cached_generator import CachedModel
from pipeline.cache.key import Kept
from pipeline.config import PipelineConfig, SpeechConfig
from pipeline.synthesizer import Synthesizer
from pipeline.text.markup.ssml import parse
from pipeline.types import (
    AudioOptions,
    CacheControl,
    CacheMode,
    CacheResult,
    SamplingParams,
    SchedulingParams,
    SynthesisRequest,
    TimeDetail,
    TimedItem,
    TimeKind,
    TimeQuality,
)
from serve.commands.say import LocalPipeline, open_pipeline
from tests.support.demo_voice import Deaf

pytestmark = pytest.mark.slow

TEXT = 'I think that my "sister" wanted the answer. Call 555, please 😀; it costs $5.20 in all today. That was great.'
SSML = (
    '<speak><mark name="a"/>Hello there.<mark name="b"/><break time="310ms"/><mark name="c"/><break time="100ms"/>'
    '<prosody rate="1.4">The green <mark name="d"/>answer.</prosody><break time="50ms"/><mark name="e"/></speak>'
)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fast": {"speed": 1.37},
    "slow at another rate": {"speed": 0.8, "audio": AudioOptions(sample_rate=44_100)},
    "trimmed": {"audio": AudioOptions(trim=True)},
    "for the telephone": {"speed": 2.0, "audio": AudioOptions(sample_rate=8_000, trim=True, gain_db=3.0)},
}

Spoken = tuple[np.ndarray, list[TimedItem], Any]


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def local(loop: asyncio.Runner) -> Iterator[LocalPipeline]:
    config = PipelineConfig.model_validate({"checkpoint": "demo", "engine": {"slots": 4, "dtype": "float32"}})
    opened = open_pipeline(config)
    yield loop.run(opened.__aenter__())
    loop.run(opened.__aexit__(None, None, None))


def request(**fields: Any) -> SynthesisRequest:
    fields = {"text": TEXT, "sampling": SamplingParams(seed=1), "times": TimeDetail.WORD} | fields
    return SynthesisRequest("id", voice="default", **fields)


def ssml_request(**fields: Any) -> SynthesisRequest:
    document = parse(SSML)
    return request(text=document.text, passages=document.passages, marks=document.marks, **fields)


async def spoken(synthesizer: Synthesizer, request: SynthesisRequest) -> Spoken:
    """Samples, items and report; no word comes after audio of it."""
    pieces: list[np.ndarray] = []
    items: list[TimedItem] = []
    position, report = 0, None
    async with aclosing(synthesizer.stream(request)) as chunks:
        async for chunk in chunks:
            assert all(item.start >= position for item in chunk.times if item.kind is TimeKind.WORD), "before its audio"
            assert all(item.stop >= position for item in chunk.times), "not after its audio"
            position += len(chunk.samples)
            pieces.append(chunk.samples)
            items += chunk.times
            report = chunk.report
    return np.concatenate(pieces), items, report


def of(items: list[TimedItem], *kinds: TimeKind) -> list[TimedItem]:
    return [item for item in items if item.kind in kinds]


def check(items: list[TimedItem], samples: int, text: str) -> None:
    """The properties of all times."""
    tiles = of(items, TimeKind.SEGMENT, TimeKind.BREAK)
    assert [tile.start for tile in tiles] == [0, *(tile.stop for tile in tiles[:-1])], "segments and breaks are the audio"
    assert tiles[-1].stop == samples
    segments = {item.segment: item for item in of(items, TimeKind.SEGMENT)}
    assert all(item.quality is TimeQuality.EXACT for item in tiles)
    words = of(items, TimeKind.WORD)
    assert all(item.start <= item.stop <= two.start for item, two in pairwise(words)), "no word overlaps or goes back"
    assert all(item.source[1] <= two.source[0] for item, two in pairwise(words))
    for word in words:
        around = segments[word.segment]
        assert around.start <= word.start <= word.stop <= around.stop
        assert around.source[0] <= word.source[0] < word.source[1] <= around.source[1]
    marks = of(items, TimeKind.MARK)
    assert [mark.start for mark in marks] == sorted(mark.start for mark in marks)
    assert all(0 <= mark.start == mark.stop <= samples for mark in marks)
    assert [text[slice(*word.source)] for word in words if "$" in text[slice(*word.source)]] == ["$5.20"] * ("$" in text)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("make", [request, ssml_request])
@pytest.mark.parametrize("followed", [True, False])
def test_times_tile_the_audio_and_change_none_of_it(loop, local, variant, make, followed):
    synthesizer = local.synthesizer if followed else without_follower(local)
    changed = make(**VARIANTS[variant])
    samples, items, report = loop.run(spoken(synthesizer, changed))
    check(items, len(samples), changed.text)
    plain, none, _ = loop.run(spoken(synthesizer, replace(changed, times=TimeDetail.OFF, marks=())))
    assert np.array_equal(samples, plain)
    assert none == []
    qualities = {item.quality for item in of(items, TimeKind.WORD)}
    assert qualities == {TimeQuality.ATTENTION if followed else TimeQuality.ESTIMATED}
    assert (report.coverage is not None) == followed


def without_follower(local: LocalPipeline) -> Synthesizer:
    return Synthesizer(local.frontend, local.engine, local.vocoder, local.voices, SpeechConfig())


def test_every_word_is_told_once_in_the_callers_own_characters(loop, local):
    _, items, _ = loop.run(spoken(local.synthesizer, request()))
    words = [TEXT[slice(*word.source)] for word in of(items, TimeKind.WORD)]
    written = "I think that my sister wanted the answer Call 555 please it costs $5.20 in all today That was great"
    assert words == written.split()
    readings = {TEXT[slice(*word.source)]: word.reading for word in of(items, TimeKind.WORD)}
    assert (readings["555"], readings["$5.20"]) == ("five five five", "five dollars and twenty cents")


def test_breaks_are_silence_to_the_sample_and_marks_are_where_they_stand(loop, local):
    samples, items, _ = loop.run(spoken(local.synthesizer, ssml_request()))
    breaks = of(items, TimeKind.BREAK)
    assert [item.stop - item.start for item in breaks] == [24 * 410, 24 * 50]
    for item in breaks:
        assert not samples[item.start : item.stop].any()
        assert samples[item.start - 2 * FALL : item.start].any(), "a change of pace may leave 4 ms of silence at its end"
    marks = {mark.reading: mark for mark in of(items, TimeKind.MARK)}
    assert marks["a"].start == 0
    assert marks["b"].start == breaks[0].start
    assert marks["c"].start == breaks[0].start + 24 * 310
    answer = next(word for word in of(items, TimeKind.WORD) if word.reading == "answer")
    assert (marks["d"].start, marks["d"].quality) == (answer.start, TimeQuality.ATTENTION)
    assert (marks["e"].start, marks["e"].quality) == (len(samples), TimeQuality.EXACT)


def test_a_segment_sounds_where_its_time_says(loop, local):
    """Samples of a segment alone, cut out by its times, are those of the whole."""
    samples, items, _ = loop.run(spoken(local.synthesizer, request()))
    first = of(items, TimeKind.SEGMENT)[0]
    alone, own, _ = loop.run(spoken(local.synthesizer, request(text=TEXT[slice(*first.source)].strip())))
    assert len(alone) == first.stop - first.start
    assert np.array_equal(samples[first.start : first.stop - FALL], alone[:-FALL])
    assert [(item.start, item.stop) for item in of(own, TimeKind.WORD)] == [
        (item.start, item.stop) for item in of(items, TimeKind.WORD) if item.segment == 0
    ]


def test_times_are_equal_in_a_crowd_in_other_chunks_and_from_the_cache(loop, local):
    alone = loop.run(spoken(local.synthesizer, request()))

    async def crowd() -> list[Spoken]:
        others = (request(text=f"There are {number} green pictures.") for number in range(4))
        requests = [request(), request(scheduling=SchedulingParams(skipped_chunk_sizes=9)), *others, request()]
        return await asyncio.gather(*(spoken(local.synthesizer, entry) for entry in requests))

    results = loop.run(crowd())
    model = CachedModel(local.engine, CodeCache(1 << 24), payload=Kept.HIDDEN, fingerprint="f")
    cached = Synthesizer(
        local.frontend, local.engine, local.vocoder, local.voices, SpeechConfig(), model, local.synthesizer._follower
    )
    control = CacheControl(CacheMode.DEFAULT)
    results += [loop.run(spoken(cached, request(cache=control))) for _ in range(2)]
    assert loop.run(source(cached, request(cache=control))) is CacheResult.HIT
    for samples, items, report in (results[0], results[1], *results[-3:]):
        assert np.array_equal(samples, alone[0])
        assert sorted(items, key=order) == sorted(alone[1], key=order)
        assert report.coverage == alone[2].coverage


def order(item: TimedItem) -> tuple[str, int]:
    return item.kind.value, item.start


async def source(synthesizer: Synthesizer, request: SynthesisRequest) -> CacheResult:
    async with aclosing(synthesizer.stream(request)) as chunks:
        return (await anext(chunks)).cache


def test_segments_alone_hold_back_no_audio(loop, local):
    """With times of segments a reply has the chunks of one without times."""

    async def sizes(times: TimeDetail) -> list[int]:
        async with aclosing(local.synthesizer.stream(request(times=times))) as chunks:
            return [len(chunk.samples) async for chunk in chunks if len(chunk.samples)]

    assert sum(loop.run(sizes(TimeDetail.SEGMENT))) == sum(loop.run(sizes(TimeDetail.OFF)))


def test_live_times_are_those_of_words_and_hold_back_no_audio(loop, local):
    samples, items, _ = loop.run(spoken(local.synthesizer, request()))

    async def chunks(synthesizer: Synthesizer, times: TimeDetail) -> list[Any]:
        async with aclosing(synthesizer.stream(request(times=times))) as stream:
            return [chunk async for chunk in stream]

    live = loop.run(chunks(local.synthesizer, TimeDetail.LIVE))
    assert np.array_equal(np.concatenate([chunk.samples for chunk in live]), samples)
    assert sorted((item for chunk in live for item in chunk.times), key=order) == sorted(items, key=order)
    estimated = without_follower(local)  # a segment's words are known at its end
    first = of(items, TimeKind.SEGMENT)[0].stop
    begins = {times: len(loop.run(chunks(estimated, times))[0].samples) for times in (TimeDetail.WORD, TimeDetail.LIVE)}
    assert begins[TimeDetail.LIVE] < first / 2 < begins[TimeDetail.WORD], begins


@pytest.mark.parametrize(("deaf_takes", "spoken_take"), [(0, 0), (1, 1), (2, 2), (9, 0)])
def test_a_take_that_swallowed_words_is_spoken_again_within_bounds(loop, local, deaf_takes, spoken_take):
    text = "That was a great answer."

    def takes_of(follower: Any, **fields: Any) -> np.ndarray:
        synthesizer = Synthesizer(local.frontend, local.engine, local.vocoder, local.voices, SpeechConfig(), follower=follower)
        return loop.run(spoken(synthesizer, request(text=text, **fields)))[0]

    inner = local.synthesizer._follower
    takes = [takes_of(inner, sampling=SamplingParams(seed=1, attempt=2 * take)) for take in range(3)]
    assert len({samples.tobytes() for samples in takes}) == 3
    first, again = (takes_of(Deaf(inner, deaf_takes), retries=2) for _ in range(2))
    assert np.array_equal(first, takes[spoken_take])
    assert np.array_equal(again, first), "the bytes follow from the request"


@pytest.mark.parametrize("level", ["words"])
def test_words_begin_where_a_recogniser_hears_them(level):
    heads = pytest.importorskip("scripts.evaluate.alignment_heads", reason="needs pocketsphinx")
    sentences = heads.held_out(level)[:16]
    spoken_heads = asyncio.run(heads.speak_all("demo", sentences))
    layers = heads.read_capabilities(heads.resolve("demo", heads.cache_home())).alignment.heads
    spec = heads.open_checkpoint(heads.resolve("demo", heads.cache_home())).gpt_spec
    errors = np.abs(heads.errors_ms(spoken_heads, [layer * spec.heads + head for layer, head in layers]))
    assert len(errors) >= 60
    assert np.median(errors) <= 40
    assert (errors <= 100).mean() >= 0.8
