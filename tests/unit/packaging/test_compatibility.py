"""What a minor release promises is there: routes, configuration keys, metrics and Python names."""

import json

import pytest

from scripts.generate.compatibility import FILE, release, surface

PROMISED = json.loads(FILE.read_text())
PRESENT = surface()


def test_the_promises_are_those_of_this_minor_release():
    assert PROMISED["release"] == release(), "python -m scripts.generate.compatibility"


@pytest.mark.parametrize("kind", PRESENT)
def test_nothing_that_was_promised_is_gone(kind: str):
    assert PROMISED[kind]
    assert sorted(set(PROMISED[kind]) - set(PRESENT[kind])) == []
