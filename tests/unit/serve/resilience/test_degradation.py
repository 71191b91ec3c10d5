"""The degrade ladder: how it climbs, how it comes back, and what a request goes without. A clock of its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.config import TextConfig
from pipeline.errors import AtCapacity, ConfigError
from pipeline.spec import REACH_STEPS
from pipeline.text.speech_text import build_speech_text
from pipeline.types import DecoderTraits, Lane, SynthesisRequest
from pipeline.vocoder.stream import skip_chunk_sizes
from pipeline.vocoder.windowed.windows import Schedule
from serve.config.app_config import read_app_config
from serve.config.policies import REFUSALS, DegradationStep, DegradeConfig
from serve.resilience.degradation import DegradationLadder
from serve.speech.job import RequestContext
from serve.speech.load_shedding import Degrader
from serve.speech.resolve import resolve_job
from serve.speech.schemas.speech import PostBody, SpeechBody
from tests.support.clock import HeldClock
from tests.support.fakes import Speaker, make_services, make_speech_services
from tests.support.live_server import serving

CONFIG = DegradeConfig(steps=tuple(DegradationStep), version="small@v1")
FULL, CALM = 0.9, 0.1
CHUNKS = (8, 16, 32, 48, 96)
NOISY = PostBody(denoise="on", gain_db=3.0)


def looks(ladder: DegradationLadder, clock: HeldClock, seconds: int, fullness: float, rtf: float = 0.0) -> list[int]:
    """A look a second; the levels."""
    levels = []
    for _ in range(seconds):
        clock.now += 1
        ladder.observe(fullness, rtf)
        levels.append(ladder.level)
    return levels


# The policy.


def test_it_climbs_while_it_is_full_and_comes_back_by_itself():
    clock = HeldClock(0.0)
    ladder = DegradationLadder(CONFIG, clock=clock)
    levels = looks(ladder, clock, 100, FULL)
    assert levels == sorted(levels)
    assert levels[-1] == len(DegradationStep)
    assert levels.index(1) == 5
    levels = looks(ladder, clock, 400, CALM)
    assert levels == sorted(levels, reverse=True)
    assert (levels[0], levels[-1]) == (len(DegradationStep), 0)


def test_between_the_two_marks_nothing_changes():
    clock = HeldClock(0.0)
    ladder = DegradationLadder(CONFIG, clock=clock)
    looks(ladder, clock, 13, FULL)
    assert len(set(looks(ladder, clock, 500, 0.65))) == 1


def test_slowness_gives_things_up_but_refuses_nobody():
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
    st.floats(0.5, 20),
    st.floats(0.5, 60),
    st.lists(st.sampled_from(DegradationStep), unique=True),
)
def test_it_never_changes_faster_than_its_hysteresis_and_always_comes_back(weather, escalate_after_s, recover_after_s, steps):
    ordered = tuple(step for step in DegradationStep if step in steps)
    config = DegradeConfig(
        steps=ordered, escalate_after_s=escalate_after_s, recover_after_s=recover_after_s, version="small@v1"
    )
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
            assert fullness >= config.escalate_above or (rtf > config.rtf and ladder.active_steps[-1] not in REFUSALS)
            assert clock.now - changed_at >= escalate_after_s
        elif ladder.level < before:
            assert fullness <= config.recover_below
            assert clock.now - changed_at >= recover_after_s
        changed_at = clock.now if ladder.level != before else changed_at
    for _ in range(2 * len(ordered) + 2):
        clock.now += recover_after_s
        ladder.observe(CALM, 0.0)
    assert ladder.level == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": ["bulk", "refine"]},
        {"steps": ["refine", "refine"]},
        {"steps": ["music"]},
        {"escalate_above": 0.5, "recover_below": 0.5},
    ],
)
def test_a_ladder_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValidationError):
        DegradeConfig.model_validate(wrong)


def test_a_lighter_version_must_exist():
    with pytest.raises(ConfigError, match="must be one of models"):
        read_app_config({"degrade": {"steps": ["version"], "version": "small@v1"}, "models": {"chattts@v1": {}}})


# What a request goes without.


def degrader(level: int, **fields: object) -> Degrader:
    config = CONFIG.model_copy(update=fields)
    ladder = DegradationLadder(config)
    ladder.level = level
    return Degrader(config, ladder)


def test_what_is_asked_for_is_applied_and_nothing_else():
    body, applied = degrader(5).apply_to_body(SpeechBody(input="x", refine=True, post=NOISY))
    assert applied == tuple(DegradationStep)[:5]
    assert (body.refine, body.post, body.model) == (False, PostBody(gain_db=3.0), "small@v1")
    assert degrader(2).apply_to_body(SpeechBody(input="x", post=True))[1] == ()
    _, applied = degrader(5).apply_to_body(SpeechBody(input="x", model="chattts@v1"))
    assert applied == (DegradationStep.FIRST_CHUNK, DegradationStep.SEGMENTS)


@pytest.mark.parametrize("level", [0, 4])
def test_what_a_body_cannot_say_is_in_the_request(level: int):
    services = make_speech_services(Speaker(), degrader=degrader(level))
    job = resolve_job(SpeechBody(input="x"), RequestContext("r"), services)
    assert (job.request.short_segments, job.request.skipped_chunk_sizes) == ((True, 2) if level else (False, 0))
    assert job.degraded == ((DegradationStep.FIRST_CHUNK, DegradationStep.SEGMENTS) if level else ())


@given(st.integers(0, len(DegradationStep)), st.integers(0, 2**32 - 1))
def test_a_seed_of_its_own_is_the_same_audio_on_every_rung(level, seed):
    body = SpeechBody(input="x", refine=True, post=NOISY, seed=seed)
    eased, applied = degrader(level).apply_to_body(body)
    assert eased is body
    assert applied == ()
    unseeded = body.model_copy(update={"seed": None})
    assert degrader(level).apply_to_body(unseeded, seeded=True)[0] is unseeded, "an idempotency key is a seed"
    assert degrader(5, seeded=True).apply_to_body(body)[1] == tuple(DegradationStep)[:5]


def test_refusals_are_for_bulk_first():
    degrader(5).check_admitted(Lane.BULK)
    degrader(6).check_admitted(Lane.STANDARD)
    with pytest.raises(AtCapacity):
        degrader(6).check_admitted(Lane.BULK)
    with pytest.raises(AtCapacity):
        degrader(7).check_admitted(Lane.INTERACTIVE)


def test_a_reply_says_what_it_went_without():
    with serving(make_services(Speaker(), degrader=degrader(1))) as live:
        assert live.speak(refine=True).headers["X-Degraded"] == "refine"
        assert "X-Degraded" not in live.speak(refine=True, seed=4).headers
        assert "X-Degraded" not in live.speak().headers


# In the rooms.


@given(st.integers(0, 9), st.integers(1, 2000))
def test_left_out_chunks_bring_no_new_shape_and_lose_no_step(count, known):
    whole = Schedule(CHUNKS, REACH_STEPS)
    traits = DecoderTraits(False, True, REACH_STEPS, CHUNKS)
    late = Schedule(skip_chunk_sizes(traits, count).chunk_steps, REACH_STEPS)
    windows = list(late.ready(0, known=known, ended=True))
    assert [window.body_start for window in windows[1:]] == [window.body_stop for window in windows[:-1]]
    assert (windows[0].body_start, windows[-1].body_stop, windows[-1].is_last) == (0, known, True)
    assert {window.rows for window in windows} <= {rows for rows, _ in whole.shapes}
    assert late.chunk_steps[-1] == whole.chunk_steps[-1]


def test_brief_segments_are_half_as_long_and_say_the_same():
    text = "One sentence follows another here, and all of them are read aloud in the end. " * 12
    usual, short_ones = (
        build_speech_text(SynthesisRequest("r", text, "nova", short_segments=short), TextConfig()) for short in (False, True)
    )
    lengths = [[len(segment.text) for segment in speech_text.segments] for speech_text in (usual, short_ones)]
    assert np.mean(lengths[1][1:]) < 0.7 * np.mean(lengths[0][1:])
    words = [" ".join(segment.text for segment in speech_text.segments).split() for speech_text in (usual, short_ones)]
    assert words[0] == words[1]
