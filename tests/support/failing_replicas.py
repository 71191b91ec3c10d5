"""The service with acoustic replicas that fail: they die of words, or their GPU fails as CUDA does.

A replica that dies is a real process that really ends, in the middle of a sequence. The GPUs exist on
paper; which of them fails, and how, stands in a file. What is raised is what torch raises on a real one.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from ray import serve
from ray.serve import Application

from pipeline.engine.cpu_runner import CpuRunner
from pipeline.engine.scheduler import Plan
from pipeline.errors import SynthesisError
from pipeline.types import Prompt, StepBlock
from serve import app
from serve.deployments.acoustic_model import AcousticModel
from serve.remote.replica import replica_context

PLAN_FILE = "gpu-faults.json"  # in $RAY_TMPDIR: GPU -> fault
HITS_FILE = "gpu-hits.txt"  # a line each time that it fails
IN_A_STEP, AT_LOAD, GONE = "out of memory in a step", "out of memory at load", "gone"
STEPS_BEFORE = 12  # of the sequence, before its replica dies or its GPU fails: no audio yet
ERRORS: dict[str, RuntimeError] = {
    IN_A_STEP: torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB"
    ),
    AT_LOAD: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB"),
    GONE: torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors might be reported asynchronously"),
}


def folder() -> Path:
    return Path(os.environ["RAY_TMPDIR"])


def plan_faults(faults: dict[str, str]) -> None:
    """GPU -> fault, from now on. The name `*` is every GPU's."""
    path = folder() / PLAN_FILE
    path.with_suffix(".new").write_text(json.dumps(faults))
    path.with_suffix(".new").replace(path)


def hits() -> list[str]:
    """The faults that have happened, in order."""
    path = folder() / HITS_FILE
    return path.read_text().splitlines() if path.exists() else []


class FailingRunner(CpuRunner):
    """A GPU that exists on paper."""

    def launch(self, plan: Plan) -> None:
        if max(sequence.steps for sequence in plan.decode) >= STEPS_BEFORE:
            fail_if_planned(IN_A_STEP, GONE)
        super().launch(plan)


class FailingGpu(AcousticModel.func_or_class):  # type: ignore[misc, name-defined]
    """Its engine runs on one of those."""

    async def __init__(self, *args: Any) -> None:  # type: ignore[misc]  # Serve awaits it
        fail_if_planned(AT_LOAD, GONE)
        with mock.patch("pipeline.engine.engine.CpuRunner", FailingRunner):
            await super().__init__(*args)


def fail_if_planned(*kinds: str) -> None:
    """Raises what CUDA raises. Memory runs out in a step once; a GPU without memory, or gone, stays so."""
    path, gpus = folder() / PLAN_FILE, replica_context().gpus
    faults = json.loads(path.read_text()) if path.exists() else {}
    for gpu in (*map(str, gpus), "*"):
        kind = faults.get(gpu)
        if kind in kinds:
            if kind == IN_A_STEP:
                plan_faults({name: fault for name, fault in faults.items() if name != gpu})
            with (folder() / HITS_FILE).open("a") as file:
                file.write(f"{kind}\n")
            raise ERRORS[kind]


def failing_gpus(args: dict[str, Any]) -> Application:
    with mock.patch.object(app, "AcousticModel", serve.deployment(name="AcousticModel")(FailingGpu)):
        return app.build_app(args)


FRAGILE = "fragile"  # ends the first replica that speaks it, no other
POISON = "poison"  # ends every replica that speaks it
DEATHS_FILE = "deaths.txt"  # in $RAY_TMPDIR: a line a death
ON_THE_WAY_S = 0.1  # until they have left its process


class FragileModel(AcousticModel.func_or_class):  # type: ignore[misc, name-defined]
    """Dies of certain words."""

    async def generate(self, prompt: Prompt, *rest: Any) -> AsyncGenerator[StepBlock | SynthesisError, None]:
        text, path = prompt.segment.text.lower(), Path(os.environ["RAY_TMPDIR"]) / DEATHS_FILE
        async for block in super().generate(prompt, *rest):
            if isinstance(block, StepBlock) and (POISON in text or (FRAGILE in text and not path.exists())):
                yield replace(block, hidden=block.hidden[:STEPS_BEFORE], codes=block.codes[:STEPS_BEFORE], finish=None)
                await asyncio.sleep(ON_THE_WAY_S)
                with path.open("a") as deaths:
                    deaths.write(f"{os.getpid()}\n")
                os._exit(1)
            yield block


def fragile_replicas(args: dict[str, Any]) -> Application:
    with mock.patch.object(app, "AcousticModel", serve.deployment(name="AcousticModel")(FragileModel)):
        return app.build_app(args)
