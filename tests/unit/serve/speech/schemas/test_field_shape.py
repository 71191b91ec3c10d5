"""What error messages say about fields that take several kinds of value."""

import pytest

from serve.http.schemas.voices import BlendBody
from serve.speech.schemas.base import Body, shape_of
from serve.speech.schemas.speech import SpeechBody


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
