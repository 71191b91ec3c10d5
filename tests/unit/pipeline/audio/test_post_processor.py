"""Post-processor: segments joined in order, exact silence, every option independent of the cuts, nothing by default."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audio.loudness import integrated_loudness
from pipeline.audio.post_processor import FALL, PostProcessor, resampled_length
from pipeline.types import AudioOptions, Denoise, Prosody, Segment, SynthesisRequest, Voice
from tests.support.effort import examples
from tests.support.sounds import RATE, noise, speech, true_peak_db

VOICES = {"one": Voice("one", None), "two": Voice("two", None, loudness_lufs=-30.0)}


def segment(index: int = 0, *, is_last: bool = True, silence_ms: int = 0, **prosody) -> Segment:
    return Segment("x", index, is_last, prosody=Prosody(**prosody), silence_ms=silence_ms)


def deliver(
    parts: list[tuple[Segment, np.ndarray]], cuts=(), *, speed: float = 1.0, closing_ms: int = 0, **options
) -> tuple[np.ndarray, PostProcessor]:
    request = SynthesisRequest("id", "text", "one", speed=speed, audio=AudioOptions(**options))
    processor = PostProcessor(request, [part for part, _ in parts], VOICES)
    pieces = []
    for part, samples in parts:
        pieces.append(processor.begin(part))
        pieces += [processor.feed(piece) for piece in np.split(samples, sorted(cut for cut in cuts if cut <= len(samples)))]
    pieces.append(processor.finish(closing_ms))
    return np.concatenate(pieces), processor


@settings(max_examples=examples(40), deadline=None)
@given(
    lengths=st.lists(st.integers(0, 200), min_size=1, max_size=4),
    breaks_ms=st.lists(st.sampled_from([0, 0, 1, 50]), min_size=5, max_size=5),
    cuts=st.lists(st.integers(0, 200), max_size=20),
    rate=st.sampled_from([8_000, RATE, 44_100]),
)
def test_sound_falls_before_silence_and_nowhere_else(lengths, breaks_ms, cuts, rate):
    """Of any lengths, some shorter than the fall or empty, in any cuts; the vocoder's own samples are what does not fall."""
    parts = [
        (segment(index, is_last=index == len(lengths) - 1, silence_ms=breaks_ms[index]), np.ones(length, np.float32))
        for index, length in enumerate(lengths)
    ]
    out, _ = deliver(parts, cuts, closing_ms=breaks_ms[4])
    expected, sound = [], 0
    for length, silence_ms in [*zip(lengths, breaks_ms, strict=False), (0, breaks_ms[4])]:
        if silence_ms:
            expected += [*falling(sound), *[0] * (24 * silence_ms)]
        sound = length if silence_ms else sound + length
    expected += falling(sound)
    assert out == pytest.approx(np.array(expected), abs=1e-6)
    assert not len(out) or abs(out[-1]) < 1e-3
    other, _ = deliver(parts, cuts, closing_ms=breaks_ms[4], sample_rate=rate)
    assert not len(other) or abs(other[-1]) < 0.03


def falling(length: int) -> list[float]:
    """Ones that fall at their end."""
    return [*[1.0] * (length - FALL), *(np.cos(np.pi / 2 * (np.arange(FALL) + 0.5) / FALL) ** 2)[max(0, FALL - length) :]]


ALL = AudioOptions(sample_rate=44_100, trim=True, denoise=Denoise.ON, gain_db=9, loudness_lufs=-20, fade_ms=20)
OPTIONS = {
    "nothing": AudioOptions(),
    "everything": ALL,
    "auto": AudioOptions(denoise=Denoise.AUTO, trim=True),
    "telephone": AudioOptions(sample_rate=8_000, loudness_lufs=-16, fade_ms=5, trim=True),
    "loud": AudioOptions(gain_db=12),
}


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(cuts=st.lists(st.integers(0, 60_000), max_size=50), speed=st.sampled_from([1.0, 0.5, 1.3, 4.0]))
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_no_bit_depends_on_the_cuts(options, cuts, speed):
    parts = [
        (segment(0, is_last=False), np.concatenate([noise(9_000, 1e-3), speech(40_000)])),
        (segment(1, is_last=False, silence_ms=333, rate=1.2, gain_db=2, voice="two"), speech(20_000) + noise(20_000, 0.01)),
        (segment(2), np.concatenate([speech(30_000), noise(9_000, 1e-3)])),
    ]
    how = {"speed": speed, "closing_ms": 70, **dataclasses.asdict(options)}
    assert np.array_equal(deliver(parts, cuts, **how)[0], deliver(parts, **how)[0])


@pytest.mark.parametrize("speed", [1.0, 0.25, 1.7])
@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
def test_silence_is_exact_and_lengths_add_up(speed, rate):
    parts = [
        (segment(0, is_last=False, silence_ms=100), speech(12_345)),
        (segment(1, is_last=False), speech(5_000)),  # the same speed and no silence: one stretch for both
        (segment(2, is_last=False, silence_ms=500), speech(7_777)),
        (segment(3, rate=2.0), speech(9_000)),
    ]
    out, _ = deliver(parts, speed=speed, closing_ms=250, sample_rate=rate)
    lengths = [2_400, round(17_345 / speed), 12_000, round(7_777 / speed), round(9_000 / min(4, 2 * speed)), 6_000]
    assert len(out) == resampled_length(sum(lengths), rate)
    if rate == RATE:
        starts = np.cumsum([0, *lengths])
        for first, stop in ((starts[0], starts[1]), (starts[2], starts[3]), (starts[5], starts[6])):
            assert not out[first:stop].any()
        assert out[starts[1] : starts[2]].any()


def test_silence_at_the_edges_is_no_quiet_to_be_trimmed():
    quiet = noise(RATE, 1e-4)
    body = np.concatenate([quiet, speech(RATE), quiet])
    out, processor = deliver([(segment(silence_ms=700), body)], trim=True, closing_ms=300)
    assert not out[: 700 * 24].any()
    assert out[700 * 24]
    assert not out[-300 * 24 :].any()
    cut = processor.report.trimmed_ms
    assert all(800 < edge < 1_200 for edge in cut)
    assert len(out) == len(body) + 1_000 * 24 - sum(cut) * 24


def test_only_the_true_edges_are_trimmed():
    quiet = noise(RATE, 1e-4)
    body = np.concatenate([quiet, speech(RATE), quiet])
    out, processor = deliver([(segment(0, is_last=False), body), (segment(1), body)], trim=True)
    assert len(out) == 2 * len(body) - sum(processor.report.trimmed_ms) * 24
    assert sum(processor.report.trimmed_ms) < 2_400


@pytest.mark.slow
@pytest.mark.parametrize("rate", [8_000, 24_000, 44_100])
def test_loudness_is_reached_under_the_ceiling(rate):
    out, _ = deliver([(segment(), speech(4 * RATE, 0.05))], loudness_lufs=-20.0, sample_rate=rate)
    assert integrated_loudness(out, rate) == pytest.approx(-20, abs=0.7)
    loud, _ = deliver([(segment(), speech(4 * RATE, 0.9))], gain_db=18.0, sample_rate=rate)
    assert true_peak_db(loud) <= -1.0


def test_each_voice_gets_its_own_gain_and_keeps_it():
    parts = [
        (segment(0, is_last=False, voice="one"), speech(3 * RATE, 0.05)),
        (segment(1, is_last=False, voice="two"), speech(RATE, 0.2)),
        (segment(2, voice="one"), speech(RATE, 0.05)),
    ]
    out, _ = deliver(parts, loudness_lufs=-30.0)
    gains = [np.abs(out[at : at + RATE]).max() / np.abs(sound[:RATE]).max() for at, (_, sound) in
             zip((0, 3 * RATE, 4 * RATE), parts, strict=True)]  # fmt: skip
    assert gains[1] == pytest.approx(1.0), "it was measured at -30 LUFS"
    assert gains[0] == pytest.approx(gains[2])
    assert gains[0] != pytest.approx(1.0, abs=0.1)


def test_a_voices_own_gain_applies_unless_a_loudness_is_requested():
    soft = Voice("one", None, gain_db=6.0, loudness_lufs=-26.0)
    request = SynthesisRequest("id", "text", "one")

    def level(request: SynthesisRequest) -> float:
        processor = PostProcessor(request, [segment()], {"one": soft})
        processor.begin(segment())
        out = np.concatenate([processor.feed(speech(RATE, 0.1)), processor.finish(0)])
        return np.abs(out).max() / np.abs(speech(RATE, 0.1)).max()

    assert level(request) == pytest.approx(10 ** (6 / 20))
    changed = dataclasses.replace(request, audio=AudioOptions(loudness_lufs=-23.0, gain_db=1.0))
    assert level(changed) == pytest.approx(10 ** (4 / 20))


def test_a_segments_gain_is_limited_as_well():
    out, _ = deliver([(segment(0, is_last=False), speech(RATE)), (segment(1, gain_db=20), speech(RATE))])
    assert true_peak_db(out) <= -1.0
    assert np.array_equal(out[: RATE - 2_000], speech(RATE)[: RATE - 2_000])


def test_fades_are_at_the_true_edges():
    ones = np.ones(9_600, np.float32)
    out, _ = deliver([(segment(0, is_last=False), ones), (segment(1), ones)], fade_ms=10)
    assert out[0] < 0.001 > out[-1]
    assert (out[240:-240] == 1).all()


def test_the_report_counts_steps_as_the_model_does():
    parts = [(segment(index, is_last=index == 2), speech(512 * steps - 256)) for index, steps in enumerate((10, 7, 1))]
    _, processor = deliver(parts, speed=2.0, sample_rate=8_000)
    assert processor.report.steps == 18
    assert processor.report.trimmed_ms == (0, 0)
    assert not processor.report.denoised


# Places: where the post-processor says that segments are is where they are, at any speed, rate, break and cut.


PLACED = st.lists(
    st.tuples(st.integers(1, 9_000), st.sampled_from([0, 0, 1, 37, 250]), st.sampled_from([1.0, 1.0, 0.7, 1.9])),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(
    PLACED,
    st.sampled_from([1.0, 0.5, 1.37]),
    st.sampled_from([24_000, 8_000, 44_100]),
    st.booleans(),
    st.integers(0, 90),
    st.integers(200, 5_000),
    st.integers(0, 2**32),
)
def test_segments_and_breaks_are_the_audio(segments, speed, rate, trim, closing_ms, cut, seed):
    draw = np.random.default_rng(seed)
    request = SynthesisRequest("id", "", "one", speed=speed, audio=AudioOptions(sample_rate=rate, trim=trim))
    parts = [
        Segment("x", index, is_last=index == len(segments) - 1, prosody=Prosody(rate=pace), silence_ms=silence)
        for index, (_, silence, pace) in enumerate(segments)
    ]
    processor = PostProcessor(request, parts, VOICES)
    total, edges = 0, []
    for part, (samples, silence, _) in zip(parts, segments, strict=True):
        total += len(processor.begin(part))
        edges.append((processor.ended, processor.began))
        assert processor.began - processor.ended == round(silence * rate / 1000) or rate == 44_100
        assert abs(processor.began - processor.ended - silence * rate / 1000) <= 1
        place = processor.place()
        sound = draw.normal(0, 0.1, samples).astype(np.float32)
        for start in range(0, samples, cut):
            total += len(processor.feed(sound[start : start + cut]))
        places = [place(sample) for sample in range(0, samples + 1, 97)]
        assert places == sorted(places)
        assert places[0] == processor.began
    last = place(samples)
    total += len(processor.finish(closing_ms))
    assert processor.began == total, "the reply ends where its last part ends"
    assert processor.ended <= last, "a quiet edge may have been cut"
    assert trim or processor.ended == last
    flat = [edge for pair in edges for edge in pair]
    assert flat == sorted(flat)
    assert flat[0] == 0
