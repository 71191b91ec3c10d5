"""The number of values of a JSON text, counted before it is parsed: never too few, however it is written and cut."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import ApiError
from serve.speech.schemas import json_size
from serve.speech.schemas.json_size import MOST_DEPTH, MOST_FIELDS, check_json

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
    found = [len(one) for one in containers(value)]
    count = len(found) + sum(max(0, size - 1) for size in found)  # brackets and commas
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
