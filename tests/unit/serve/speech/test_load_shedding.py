"""Load shedding: the active degradation steps, applied to one request."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import AtCapacity
from pipeline.spec import REACH_STEPS
from pipeline.text.speech_text import build_speech_text
from pipeline.types import DecoderTraits, Lane, SynthesisRequest
from pipeline.vocoder.stream import skip_chunk_sizes
from pipeline.vocoder.windowed.windows import Schedule
from serve.config.policies import DegradationStep, DegradeConfig
from serve.speech.job import RequestContext
from serve.speech.load_shedding import DegradationLadder, Degrader
from serve.speech.resolve import resolve_job
from serve.speech.schemas.speech import PostBody, SpeechBody
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
