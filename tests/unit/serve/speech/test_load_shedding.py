"""Load shedding: the ladder of degradation, its steps applied to one request, and engines that were full a moment ago."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import AtCapacity
from pipeline.spec import REACH_STEPS
from pipeline.text.speech_text import build_speech_text
from pipeline.types import DecoderTraits, Lane, SegmentLength, SynthesisRequest
from pipeline.vocoder.stream import skip_chunk_sizes
from pipeline.vocoder.windowed.windows import Schedule
from serve.config.app_config import LimitsConfig
from serve.config.policies import EASING, REFUSALS, DegradationStep, DegradeConfig
from serve.speech.job import RequestContext
from serve.speech.load_shedding import (
    ESCALATE_ABOVE,
    ESCALATE_AFTER_S,
    MEMORY_S,
    MOST_RECOVER_S,
    RECOVER_AFTER_S,
    RECOVER_BELOW,
    SETTLED_S,
    SLOW_RTF,
    DegradationLadder,
    Degrader,
)
from serve.speech.resolve import resolve_job
from serve.speech.schemas.speech import PostBody, RefineBody, SpeechBody
from tests.support.clock import HeldClock
from tests.support.effort import examples
from tests.support.fakes import Speaker, make_services, make_speech_services
from tests.support.live_server import serving

CONFIG = DegradeConfig(steps=tuple(DegradationStep), version="small@v1")
EASED = len(EASING)
CHUNKS = (8, 16, 32, 48, 96)
NOISY = PostBody(denoise="on", gain_db=3.0)


def degrader(level: int, **fields: object) -> Degrader:
    config = CONFIG.model_copy(update=fields)
    ladder = DegradationLadder(config)
    ladder.level = level
    return Degrader(config, ladder)


def test_only_steps_that_concern_the_body_are_applied():
    body, applied = degrader(EASED).apply_to_body(SpeechBody(input="x", refine=True, post=NOISY))
    assert applied == tuple(step for step in EASING if step is not DegradationStep.EXPRESSION)
    assert (body.refine, body.post, body.model) == (False, PostBody(gain_db=3.0), "small@v1")
    assert degrader(2).apply_to_body(SpeechBody(input="x", post=True))[1] == ()
    _, applied = degrader(EASED).apply_to_body(SpeechBody(input="x", model="chattts@v1"))
    assert applied == (DegradationStep.FIRST_CHUNK, DegradationStep.SEGMENTS, DegradationStep.SHORTEST_SEGMENTS)


def test_expression_that_no_markup_asks_for_is_left_out():
    plain = degrader(1, steps=(DegradationStep.EXPRESSION,))
    body, applied = plain.apply_to_body(SpeechBody(input="x", refine=RefineBody(oral=3, guard="off")))
    assert (body.refine, applied) == (
        RefineBody.model_validate({"oral": 0, "laugh": 0, "break": 0, "guard": "off"}),
        (DegradationStep.EXPRESSION,),
    )
    assert plain.apply_to_body(body)[1] == ()
    by_default = Degrader(plain.config, plain.ladder, tags_by_default=True)
    services = make_speech_services(Speaker(), degrader=by_default, limits=LimitsConfig(control_tags="by_default"))

    def spoken(strict: bool = False, **fields: Any) -> tuple[str, bool]:
        written = {"input": "Well [laugh] then [speed_7] go.", **fields}
        job = resolve_job(SpeechBody(**written), RequestContext("r", strict=strict), services)
        return build_speech_text(job.request).segments[0].text, bool(job.degraded)

    assert spoken() == ("Well then [speed_7] go.", True)
    whole = ("Well [laugh] then [speed_7] go.", False)
    assert spoken(allow_control_tags=True) == spoken(seed=1) == spoken(strict=True) == whole
    assert spoken(input="Well [speed_7] go.") == ("Well [speed_7] go.", False)


@pytest.mark.parametrize("level", [0, 5, EASED])
def test_steps_that_a_body_cannot_express_are_in_the_request(level: int):
    services = make_speech_services(Speaker(), degrader=degrader(level, version=None))
    job = resolve_job(SpeechBody(input="x"), RequestContext("r"), services)
    skipped = job.request.scheduling.skipped_chunk_sizes
    length = {0: SegmentLength.USUAL, 5: SegmentLength.HALF, EASED: SegmentLength.SHORTEST}[level]
    assert (job.request.segment_length, skipped) == (length, 2 if level else 0)
    applied = (DegradationStep.FIRST_CHUNK, DegradationStep.SEGMENTS, DegradationStep.SHORTEST_SEGMENTS)
    assert set(job.degraded) - {DegradationStep.VERSION} == set(applied if level == EASED else applied[:2] if level else ())


@given(
    st.integers(0, EASED),
    st.lists(st.sampled_from(["one", "Smith", "3.14", "你好", "世界", ". ", ", ", "。", "，", " "]), min_size=1),
)
def test_every_word_is_spoken_at_every_level(level, pieces):
    text = f"Go {''.join(pieces)}"
    ladder = DegradationLadder(CONFIG.model_copy(update={"version": None}))
    services, read = make_speech_services(Speaker(), degrader=Degrader(ladder=ladder)), []
    for ladder.level in (0, level):
        request = resolve_job(SpeechBody(input=text), RequestContext("r"), services).request
        read.append("".join("".join(segment.text for segment in build_speech_text(request).segments).split()))
    assert read[0] == read[1]


@given(st.integers(0, len(DegradationStep)), st.integers(0, 2**32 - 1))
def test_a_request_with_a_seed_is_not_changed_at_any_level(level, seed):
    body = SpeechBody(input="x", refine=True, post=NOISY, seed=seed)
    eased, applied = degrader(level).apply_to_body(body)
    assert eased is body
    assert applied == ()
    unseeded = body.model_copy(update={"seed": None})
    assert degrader(level).apply_to_body(unseeded, seeded=True)[0] is unseeded, "an idempotency key is a seed"


def test_refusals_are_for_bulk_first():
    degrader(EASED).check_admitted(Lane.BULK)
    degrader(EASED + 1).check_admitted(Lane.STANDARD)
    with pytest.raises(AtCapacity):
        degrader(EASED + 1).check_admitted(Lane.BULK)
    with pytest.raises(AtCapacity):
        degrader(EASED + 2).check_admitted(Lane.INTERACTIVE)


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
        build_speech_text(SynthesisRequest("r", text, "nova", segment_length=length))
        for length in (SegmentLength.USUAL, SegmentLength.HALF)
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
        ladder.observe(fullness, rtf, 1.0 if rtf else 0.0)
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


def test_an_idle_service_stays_at_a_quality_that_it_keeps():
    clock = HeldClock(0.0)
    ladder = DegradationLadder(CONFIG, clock=clock)
    looks(ladder, clock, 12, CALM, rtf=1.5)
    looks(ladder, clock, 3, CALM, rtf=0.7)
    assert set(looks(ladder, clock, 5000, CALM)) == {2}, "its last speech was too slow to go back"
    looks(ladder, clock, 15, CALM, rtf=0.5)
    assert set(looks(ladder, clock, 5000, CALM)[40:]) == {1}, "one step back, and nothing was spoken since"
    assert looks(ladder, clock, 40, CALM, rtf=0.5)[-1] == 0


def test_a_machine_that_is_neither_slow_nor_fast_goes_back_after_a_peak():
    clock = HeldClock(0.0)
    ladder = DegradationLadder(CONFIG, clock=clock)
    looks(ladder, clock, 12, CALM, rtf=1.5)
    assert looks(ladder, clock, 600, CALM, rtf=0.7)[-1] == 2
    assert looks(ladder, clock, 2 * 3600, CALM, rtf=0.7)[-1] == 0, "a lone listener's speech was fast enough all the while"


@settings(max_examples=examples(20))
@given(st.lists(st.floats(0.01, 3), min_size=EASED + 1, max_size=EASED + 1), st.floats(0.01, 1))
def test_the_ladder_settles_on_any_machine(factors, share):
    """Of a day, the share of the time is speech, at the factor of the level."""
    clock = HeldClock(0.0)
    ladder = DegradationLadder(CONFIG, clock=clock)
    for _ in range(24 * 3600 // 5):
        clock.now += 5
        factor = factors[ladder.level]
        ladder.observe(CALM, 5 * share, 5 * share / factor)
    assert ladder.changes <= 2 * (EASED + 6 + clock.now / MOST_RECOVER_S)


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 40), st.floats(0.1, 1000)), max_size=400))
def test_the_ladder_never_flaps(speeches):
    clock, audio_s = HeldClock(0.0), 0.0
    ladder = DegradationLadder(CONFIG, clock=clock)
    for factor, spoken_s, wait_s in speeches:
        clock.now, audio_s = clock.now + wait_s, audio_s + spoken_s
        ladder.observe(CALM, factor * spoken_s, spoken_s)
    turns = 6 + 2 * audio_s / SETTLED_S + clock.now / MOST_RECOVER_S
    assert ladder.changes <= 2 * EASED * (turns + 1)


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
        ladder.observe(fullness, rtf * 2, 2.0)
        assert abs(ladder.level - before) <= 1
        assert 0 <= ladder.level <= len(ordered)
        if ladder.level > before:
            assert fullness >= ESCALATE_ABOVE or (ladder.rtf > SLOW_RTF and ladder.active_steps[-1] not in REFUSALS)
            assert clock.now - changed_at >= ESCALATE_AFTER_S
        elif ladder.level < before:
            assert fullness <= RECOVER_BELOW
            assert clock.now - changed_at >= RECOVER_AFTER_S
        changed_at = clock.now if ladder.level != before else changed_at
    for _ in range(2 * len(ordered) + 2):
        clock.now += MOST_RECOVER_S
        ladder.observe(CALM, 0.1, MEMORY_S)
    assert ladder.level == 0
