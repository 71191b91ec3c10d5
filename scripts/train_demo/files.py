"""Files: the states of trainings, written whole or not at all, and their figures, a line of JSON each time."""

import json
from pathlib import Path
from typing import Any

import torch


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes a state."""
    draft = path.with_suffix(".draft")
    torch.save(state, draft)
    draft.rename(path)


def report(folder: Path, name: str, line: dict[str, Any]) -> None:
    """Prints a line, and adds it to a training's file."""
    print(name, json.dumps(line), flush=True)
    with (folder / f"{name}.jsonl").open("a") as log:
        log.write(json.dumps(line) + "\n")
