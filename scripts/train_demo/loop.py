"""Loop: trains the two small networks by steps, saves the state, and resumes from it.

In:    the command line; a model, a loss per step, a number of steps
Out:   FILE.pt and FILE.jsonl
Owns:  the options, the optimiser, the learning rate
Never: the networks and their losses
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

WARM_UP_STEPS = 100
LAST_RATE = 0.02  # relative to the first
REPORT_STEPS = 100
Loss = tuple[Tensor, dict[str, float]]


def options(description: str, *, steps: int) -> argparse.Namespace:
    """Parses the command line of a training script and applies its seed and its number of threads.

    Args:
        description: what the script trains.
        steps: the default number of steps.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("work", type=Path, help="folder with corpus/, where the results are written")
    parser.add_argument("--steps", type=int, default=steps, help="steps to train (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and examples (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    return args


def train(
    model: nn.Module,
    file: Path,
    *,
    steps: int,
    rate: float,
    learn: Callable[[int], Loss],
    judge: Callable[[], Loss],
) -> None:
    """Minimises the loss, and saves the state every REPORT_STEPS.

    Args:
        model: the network; its weights change.
        file: the state, from which an interrupted run resumes.
        steps: steps of the whole run.
        rate: highest learning rate.
        learn: returns the loss of a step's examples, and its parts.
        judge: returns the loss of held-out examples, and its parts.
    """
    optimiser = torch.optim.AdamW(model.parameters(), rate, betas=(0.8, 0.99))
    first = 0
    if file.exists():
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        if "optimiser" in saved:  # not of weights from a checkpoint (warm_start.py), with which a run begins
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
