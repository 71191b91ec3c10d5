"""Places: where the post-processor says that segments are is where they are, at any speed, rate, break and cut."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audio.post_processor import PostProcessor
from pipeline.types import AudioOptions, Prosody, Segment, SynthesisRequest, Voice

VOICES = {"v": Voice("v", None)}
SEGMENTS = st.lists(
    st.tuples(st.integers(1, 9_000), st.sampled_from([0, 0, 1, 37, 250]), st.sampled_from([1.0, 1.0, 0.7, 1.9])),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(
    SEGMENTS,
    st.sampled_from([1.0, 0.5, 1.37]),
    st.sampled_from([24_000, 8_000, 44_100]),
    st.booleans(),
    st.integers(0, 90),
    st.integers(200, 5_000),
    st.integers(0, 2**32),
)
def test_segments_and_breaks_are_the_audio(segments, speed, rate, trim, closing_ms, cut, seed):
    draw = np.random.default_rng(seed)
    request = SynthesisRequest("id", "", "v", speed=speed, audio=AudioOptions(sample_rate=rate, trim=trim))
    parts = [
        Segment("x", index, is_last=index == len(segments) - 1, prosody=Prosody(rate=pace), silence_ms=silence)
        for index, (_, silence, pace) in enumerate(segments)
    ]
    processor = PostProcessor(request, parts, VOICES)
    made, edges = 0, []
    for part, (samples, silence, _) in zip(parts, segments, strict=True):
        made += len(processor.begin(part))
        edges.append((processor.ended, processor.began))
        assert processor.began - processor.ended == round(silence * rate / 1000) or rate == 44_100
        assert abs(processor.began - processor.ended - silence * rate / 1000) <= 1
        place = processor.place()
        sound = draw.normal(0, 0.1, samples).astype(np.float32)
        for start in range(0, samples, cut):
            made += len(processor.feed(sound[start : start + cut]))
        places = [place(sample) for sample in range(0, samples + 1, 97)]
        assert places == sorted(places)
        assert places[0] == processor.began
    last = place(samples)
    made += len(processor.finish(closing_ms))
    assert processor.began == made, "the reply ends where its last part ends"
    assert processor.ended <= last, "a quiet edge may have been cut"
    assert trim or processor.ended == last
    flat = [edge for pair in edges for edge in pair]
    assert flat == sorted(flat)
    assert flat[0] == 0
