"""Persons: names for the voices of a checkpoint, and words for how each of them sounds.

In:    the folder of a checkpoint
Out:   origin of a voice (seed:2, built-in) -> its name, and labels: pitch, tone and pace in words
Owns:  persons.json beside the weights, written by `chattts-serve label`
Never: labels of a checkpoint that was not measured
"""

import json
from collections.abc import Mapping
from pathlib import Path

from pipeline.checkpoint.manifest import manifest_hash
from pipeline.errors import CheckpointError

FILE = "persons.json"
Persons = Mapping[str, Mapping[str, str]]


def read_persons(root: Path) -> Persons:
    """Returns origin -> labels, `name` and `name_zh` among them; nobody if these very weights were not measured.

    Raises:
        CheckpointError: the file is damaged.
    """
    path = root / FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8") if path.is_file() else '{"checkpoint": null}')
        return dict(stored["persons"]) if stored["checkpoint"] == manifest_hash(root) else {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error!r}); delete it, or run chattts-serve label") from error
