"""Training: how long it goes on and at what rate, the precision of each kind of device, and the files it leaves.

In:    seconds; a device's name, as torch has it; states and figures
Out:   the progress, the share of the highest rate; settings of torch; states written whole or not at all, and lines of JSON
Owns:  the shape of the rate
Never: optimisers, memory
"""

import json
import time
from pathlib import Path
from typing import Any

import torch


class Schedule:
    """A training of a number of seconds."""

    def __init__(self, seconds: float, trained_s: float = 0.0, *, warm_up: int = 100, last_part: float = 0.4) -> None:
        """
        Args:
            trained_s: what earlier runs have used of it.
            warm_up: steps until the highest rate.
            last_part: of the training, in which the rate falls to zero.
        """
        self._began, self._seconds, self._warm_up, self._last_part = time.monotonic() - trained_s, seconds, warm_up, last_part

    @property
    def trained_s(self) -> float:
        """The duration until now, earlier runs included [s]."""
        return time.monotonic() - self._began

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return min(1.0, self.trained_s / self._seconds)

    def share(self, step: int) -> float:
        """Returns the share of the highest rate: a warm-up, a plateau, a fall to zero."""
        return min(1.0, (step + 1) / self._warm_up, (1 - self.progress) / self._last_part)


def allow_tf32() -> None:
    """Lets a GPU multiply single precision in TF32, in convolutions too."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def autocast(device: str) -> torch.autocast:
    """Returns the block in which a GPU computes in bfloat16, and a CPU as it would."""
    return torch.autocast(device.split(":")[0], torch.bfloat16, enabled=device != "cpu")


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
