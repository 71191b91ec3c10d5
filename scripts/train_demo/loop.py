"""Loop: training by steps for the two small networks; writes down where it is, and goes on from there.

In:    a model, a loss for a step, a number of steps
Out:   FILE.pt and FILE.jsonl
Owns:  the optimiser, the cosine
Never: what is learned
"""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

WARM_UP_STEPS = 100
LAST_RATE = 0.02  # of the first
REPORT_STEPS = 100
Loss = tuple[Tensor, dict[str, float]]


def train(
    model: nn.Module,
    file: Path,
    *,
    steps: int,
    rate: float,
    learn: Callable[[int], Loss],
    judge: Callable[[], Loss],
) -> None:
    """Minimise.

    Args:
        learn: the loss of a step's examples, and its parts.
        judge: the loss of held-out examples.
    """
    optimiser = torch.optim.AdamW(model.parameters(), rate, betas=(0.8, 0.99))
    first = 0
    if file.exists():
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        first = saved["steps"]
    started = time.time()
    for step in range(first, steps):
        warm, cosine = min(1.0, (step + 1) / WARM_UP_STEPS), 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = rate * warm * (LAST_RATE + (1 - LAST_RATE) * cosine)
        total, _ = learn(step)
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
        optimiser.zero_grad()
        if (step + 1) % REPORT_STEPS == 0 or step + 1 == steps:
            with torch.no_grad():
                held_out = {name: round(value, 4) for name, value in judge()[1].items()}
            line = json.dumps({"minutes": round((time.time() - started) / 60, 1), "steps": step + 1, "held_out": held_out})
            print(line, flush=True)
            with file.with_suffix(".jsonl").open("a") as log:
                log.write(line + "\n")
            draft = file.with_suffix(".draft")
            torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "steps": step + 1}, draft)
            draft.rename(file)
