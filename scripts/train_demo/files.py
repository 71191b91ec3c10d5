"""Files: the states of trainings, written whole or not at all."""

from pathlib import Path
from typing import Any

import torch


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes a state."""
    draft = path.with_suffix(".draft")
    torch.save(state, draft)
    draft.rename(path)
