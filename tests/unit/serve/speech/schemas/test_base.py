"""The body of a speech request: no bytes and no values break its reader."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from serve.errors import ApiError
from serve.speech.schemas.base import read_body
from serve.speech.schemas.speech import SpeechBody


def read_or_status(raw: bytes) -> SpeechBody | int:
    try:
        return read_body(SpeechBody, raw)
    except ApiError as refusal:
        return refusal.spec.status


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(raw):
    assert read_or_status(raw) == 400 or raw.startswith(b"{")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["input", "voice", "speed", "seed", "refine", "stream", "top_k", "temperature", "model"]),
        JSON,
        max_size=6,
    )
)
def test_no_value_breaks_the_reader(body):
    read = read_or_status(json.dumps(body).encode("utf-8", "surrogatepass"))
    assert read == 400 or (0.25 <= read.speed <= 4 and math.isfinite(read.temperature))
