"""Persons: names for the voices of a checkpoint, and words for how each of them sounds.

In:    the hash of a checkpoint
Out:   origin of a voice (seed:2, built-in) -> its name, and labels: pitch, tone and pace in words
Owns:  persons.json, written by scripts/generate/voice_persons.py
Never: labels of a checkpoint that was not measured
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("persons.json")


@cache
def persons_of(checkpoint: str) -> Mapping[str, Mapping[str, str]]:
    """Returns origin -> labels, `name` and `name_zh` among them; empty for another checkpoint than the one measured.

    Args:
        checkpoint: hash of its manifest; empty: it has none.
    """
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    persons: Mapping[str, Mapping[str, str]] = stored["persons"] if stored["checkpoint"] == checkpoint else {}
    return persons
