"""Load shedding: the ladder of degradation, its steps applied to one request, and engines that were full a moment ago."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import AtCapacity, DeadlineUnmeetable
from pipeline.spec import REACH_STEPS
from pipeline.text.speech_text import build_speech_text
from pipeline.types import DecoderTraits, Lane, SynthesisRequest
from pipeline.vocoder.stream import skip_chunk_sizes
from pipeline.vocoder.windowed.windows import Schedule
from serve.config.policies import REFUSALS, DegradationStep, DegradeConfig
from serve.speech.job import RequestContext
from serve.speech.load_shedding import (
    ESCALATE_ABOVE,
    ESCALATE_AFTER_S,
    RECOVER_AFTER_S,
    RECOVER_BELOW,
    SLOW_RTF,
    DegradationLadder,
    Degrader,
)
from serve.speech.recent_overload import RecentOverload
from serve.speech.resolve import resolve_job
from serve.speech.schemas.speech import PostBody, SpeechBody
from tests.support.clock import HeldClock
from tests.support.fakes import Speaker, make_services, make_speech_services
from tests.support.live_server import serving

CONFIG = DegradeConfig(steps=tuple(DegradationStep), version="small@v1")
CHUNKS = (8, 16, 32, 48, 96)
NOISY = PostBody(denoise="on", gain_db=3.0)


def degrader(level: int, **fields: object) -> Degrader:
    config = CONFIG.model_copy(update=fields)
    ladder = DegradationLadder(config)
    ladder.level = level
    return Degrader(config, ladder)


def test_only_steps_that_concern_the_body_are_applied():
    body, applied = degrader(5).apply_to_body(SpeechBody(input="x", refine=True, post=NOISY))
    assert applied == tuple(DegradationStep)[:5]
    assert (body.refine, body.post, body.model) == (False, PostBody(gain_db=3.0), "small@v1")
    assert degrader(2).apply_to_body(SpeechBody(input="x", post=True))[1] == ()
    _, applied = degrader(5).apply_to_body(SpeechBody(input="x", model="chattts@v1"))
    assert applied == (DegradationStep.FIRST_CHUNK, DegradationStep.SEGMENTS)


@pytest.mark.parametrize("level", [0, 4])
def test_steps_that_a_body_cannot_express_are_in_the_request(level: int):
    services = make_speech_services(Speaker(), degrader=degrader(level))
    job = resolve_job(SpeechBody(input="x"), RequestContext("r"), services)
    skipped = job.request.scheduling.skipped_chunk_sizes
    assert (job.request.short_segments, skipped) == ((True, 2) if level else (False, 0))
    assert job.degraded == ((DegradationStep.FIRST_CHUNK, DegradationStep.SEGMENTS) if level else ())


@given(st.integers(0, len(DegradationStep)), st.integers(0, 2**32 - 1))
def test_a_request_with_a_seed_is_not_changed_at_any_level(level, seed):
    body = SpeechBody(input="x", refine=True, post=NOISY, seed=seed)
    eased, applied = degrader(level).apply_to_body(body)
    assert eased is body
    assert applied == ()
    unseeded = body.model_copy(update={"seed": None})
    assert degrader(level).apply_to_body(unseeded, seeded=True)[0] is unseeded, "an idempotency key is a seed"


def test_refusals_are_for_bulk_first():
    degrader(5).check_admitted(Lane.BULK)
    degrader(6).check_admitted(Lane.STANDARD)
    with pytest.raises(AtCapacity):
        degrader(6).check_admitted(Lane.BULK)
    with pytest.raises(AtCapacity):
        degrader(7).check_admitted(Lane.INTERACTIVE)


def test_a_reply_names_the_steps_applied():
    with serving(make_services(Speaker(), degrader=degrader(1))) as live:
        assert live.speak(refine=True).headers["X-Degraded"] == "refine"
        assert "X-Degraded" not in live.speak(refine=True, seed=4).headers
        assert "X-Degraded" not in live.speak().headers


@given(st.integers(0, 9), st.integers(1, 2000))
def test_skipped_chunk_sizes_bring_no_new_shape_and_lose_no_step(count, known):
    whole = Schedule(CHUNKS, REACH_STEPS)
    traits = DecoderTraits(False, True, REACH_STEPS, CHUNKS)
    late = Schedule(skip_chunk_sizes(traits, count).chunk_steps, REACH_STEPS)
    windows = list(late.ready(0, known=known, ended=True))
    assert [window.body_start for window in windows[1:]] == [window.body_stop for window in windows[:-1]]
    assert (windows[0].body_start, windows[-1].body_stop, windows[-1].is_last) == (0, known, True)
    assert {window.rows for window in windows} <= {rows for rows, _ in whole.shapes}
    assert late.chunk_steps[-1] == whole.chunk_steps[-1]


def test_short_segments_are_half_as_long_with_the_same_words():
    text = "One sentence follows another here, and all of them are read aloud in the end. " * 12
    usual, short_ones = (
        build_speech_text(SynthesisRequest("r", text, "nova", short_segments=short)) for short in (False, True)
    )
    lengths = [[len(segment.text) for segment in speech_text.segments] for speech_text in (usual, short_ones)]
    assert np.mean(lengths[1][1:]) < 0.7 * np.mean(lengths[0][1:])
    words = [" ".join(segment.text for segment in speech_text.segments).split() for speech_text in (usual, short_ones)]
    assert words[0] == words[1]


FULL, CALM = 0.9, 0.1


def looks(ladder: DegradationLadder, clock: HeldClock, seconds: int, fullness: float, rtf: float = 0.0) -> list[int]:
    """A look a second; the levels."""
    levels = []
    for _ in range(seconds):
        clock.now += 1
        ladder.observe(fullness, rtf)
        levels.append(ladder.level)
    return levels


def test_degradation_steps_are_added_under_load_and_removed_after_it():
    clock = HeldClock(0.0)
    ladder = DegradationLadder(CONFIG, clock=clock)
    levels = looks(ladder, clock, 100, FULL)
    assert levels == sorted(levels)
    assert levels[-1] == len(DegradationStep)
    assert levels.index(1) == 5
    levels = looks(ladder, clock, 400, CALM)
    assert levels == sorted(levels, reverse=True)
    assert (levels[0], levels[-1]) == (len(DegradationStep), 0)


def test_a_slow_engine_adds_steps_but_no_refusal():
    clock = HeldClock(0.0)
    ladder = DegradationLadder(CONFIG, clock=clock)
    looks(ladder, clock, 500, CALM, rtf=2.0)
    assert ladder.active_steps == tuple(DegradationStep)[:-2]
    looks(ladder, clock, 100, FULL, rtf=2.0)
    assert ladder.active_steps == tuple(DegradationStep)
    looks(ladder, clock, 500, CALM, rtf=2.0)
    assert ladder.active_steps == tuple(DegradationStep)[:-2], "and keeps nobody out either"


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 3), st.floats(0.1, 20)), max_size=200),
    st.lists(st.sampled_from(DegradationStep), unique=True),
)
def test_degradation_obeys_its_hysteresis_and_ends(weather, steps):
    ordered = tuple(step for step in DegradationStep if step in steps)
    config = DegradeConfig(steps=ordered, version="small@v1")
    clock = HeldClock(0.0)
    ladder = DegradationLadder(config, clock=clock)
    changed_at = 0.0
    for fullness, rtf, wait_s in weather:
        before = ladder.level
        clock.now += wait_s
        ladder.observe(fullness, rtf)
        assert abs(ladder.level - before) <= 1
        assert 0 <= ladder.level <= len(ordered)
        if ladder.level > before:
            assert fullness >= ESCALATE_ABOVE or (rtf > SLOW_RTF and ladder.active_steps[-1] not in REFUSALS)
            assert clock.now - changed_at >= ESCALATE_AFTER_S
        elif ladder.level < before:
            assert fullness <= RECOVER_BELOW
            assert clock.now - changed_at >= RECOVER_AFTER_S
        changed_at = clock.now if ladder.level != before else changed_at
    for _ in range(2 * len(ordered) + 2):
        clock.now += RECOVER_AFTER_S
        ladder.observe(CALM, 0.0)
    assert ladder.level == 0


def test_what_was_refused_a_moment_ago_is_refused_at_once_in_lanes_no_more_urgent():
    clock = HeldClock(0.0)
    overload = RecentOverload(0.5, clock=clock)
    overload.check("v1", Lane.STANDARD)
    overload.note("v1", Lane.STANDARD, AtCapacity("full", retry_after_s=3.0))
    clock.now = 0.4
    for lane in (Lane.STANDARD, Lane.BULK):
        with pytest.raises(AtCapacity) as refused:
            overload.check("v1", lane)
        assert refused.value.retry_after_s == pytest.approx(2.6)
    overload.check("v1", Lane.INTERACTIVE)
    overload.check("v2", Lane.STANDARD)
    clock.now = 0.5
    overload.check("v1", Lane.STANDARD)


@pytest.mark.parametrize(
    ("error", "calls"), [(AtCapacity("full", retry_after_s=3.0), 1), (DeadlineUnmeetable("late", retry_after_s=3.0), 5)]
)
def test_a_burst_asks_a_full_engine_once(error: AtCapacity, calls: int):
    speaker = Speaker(fails_at=0, error=error)
    with serving(make_services(speaker, overload=RecentOverload(600))) as live:
        replies = [live.speak() for _ in range(5)]
        assert {reply.status_code for reply in replies} == {429}
        assert {reply.headers["Retry-After"] for reply in replies} == {"3"}
        assert speaker.opened == calls
        live.speak(seed=7)
        assert speaker.opened == calls + 1, "the cache may have it"
        for cache in ("no-store", "refresh") if calls == 1 else ():
            assert live.speak(seed=7, cache=cache).status_code == 429
        assert speaker.opened == calls + 1, "the cache may not answer these"
        live.speak(priority="interactive")
        assert speaker.opened == calls + 2
