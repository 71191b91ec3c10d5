"""Bodies: no bytes and no values break their reader, their size is bounded before they are parsed, and messages name shapes."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.types import Passage, Pronunciation, PronunciationKind, Prosody
from serve.errors import ApiError
from serve.protocols.openai.schemas.voices import BlendBody
from serve.speech.schemas import json_size
from serve.speech.schemas.base import Body, read_body, shape_of
from serve.speech.schemas.json_size import MOST_DEPTH, MOST_FIELDS, check_json
from serve.speech.schemas.speech import SpeechBody
from serve.speech.schemas.text import TextBody, plain


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


# The number of values of a JSON text, counted before it is parsed: never too few, however it is written and cut.


NESTED = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a\\"[]{},:中\n'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='b\\"{,'), inner, max_size=4),
    max_leaves=20,
)


def containers(value: Any) -> Iterator[Any]:
    if isinstance(value, list | dict):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)


def code_of(raw: bytes, most: int = 1500) -> str:
    try:
        check_json(raw, most)
    except ApiError as refusal:
        return refusal.spec.code
    return ""


@given(NESTED, st.booleans(), st.integers(1, 9))
def test_every_value_is_counted_and_no_sign_within_a_text(value: Any, ascii_only: bool, piece: int):
    raw = json.dumps(value, ensure_ascii=ascii_only, indent=1 if piece % 2 else None).encode()
    sizes = [len(container) for container in containers(value)]
    count = len(sizes) + sum(max(0, size - 1) for size in sizes)  # brackets and commas
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_size, "PIECE", piece)
        assert code_of(raw, count) == ""
        assert count == 0 or code_of(raw, count - 1) == "too_many_values"


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"[" * MOST_DEPTH + b"]" * MOST_DEPTH, ""),
        (b"[" * (MOST_DEPTH + 1), "invalid_json"),
        (b'{"a":' * 500_000, "invalid_json"),  # depth comes first
        (b"[" + b"{}," * 800 + b"{}]", "too_many_values"),
        (b"{" + b'"a":0,' * (MOST_FIELDS - 1) + b'"b":0}', ""),
        (b"{" + b'"a":0,' * MOST_FIELDS + b'"b":0}', "too_many_values"),
        (b'{"a":{' + b'"a":0,' * MOST_FIELDS + b'"b":0}}', ""),
        (b'"' + b'[{,\\"' * 10_000 + b'"', ""),
        (b"]" * 1_000_000, ""),  # no JSON, as its parser says
    ],
)
def test_depth_and_number_are_bounded(raw: bytes, code: str):
    assert code_of(raw) == code


# What error messages say about fields that take several kinds of value.


@pytest.mark.parametrize(
    ("body", "field", "shape"),
    [
        (SpeechBody, "voice", "a string or {id}"),
        (BlendBody, "blend", "a string or [{voice, weight}]"),
        (
            SpeechBody,
            "post",
            "true, false or {trim, denoise: off|auto|on, gain_db: -24..24, loudness_lufs: -40..-10, fade_ms: 0..1000}",
        ),
        (
            SpeechBody,
            "lexicon",
            "[a string] (up to 3) or {name of up to 64 characters: a string of up to 200 characters or {alias, pinyin}} "
            "(up to 100)",
        ),
    ],
)
def test_choices_and_bounds_are_named(body: type[Body], field: str, shape: str):
    assert shape_of(body, field) == shape


def test_whole_numbers_are_written_out():
    assert "seed: 0..4294967295, temperature: 0.01..2, guard: strict|drop|off}" in shape_of(SpeechBody, "refine")


@pytest.mark.parametrize("field", ["input", "seed", "stream", "priority"])
def test_a_field_of_one_kind_has_no_shape(field: str):
    assert shape_of(SpeechBody, field) == ""


# The text of a body: what a version without markup leaves of it, and the forms of its language.


def test_of_a_document_words_tags_and_silence_are_left():
    passage = Passage(
        "Word.", (Pronunciation(0, 4, PronunciationKind.SAY_AS, "characters"),), True, "en", Prosody("nova", 1.5, 3.0), 500
    )
    assert plain(passage) == Passage("Word.", control_tags=True, language="en", silence_ms=500)


def test_a_language_tag_becomes_its_reading():
    readings = {tag: TextBody(input="x", language=tag).reading for tag in ("auto", "zh-CN", "EN_us", "yue")}
    assert readings == {"auto": "auto", "zh-CN": "zh", "EN_us": "en", "yue": "dialect"}
