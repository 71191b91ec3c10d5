"""The service with acoustic replicas that die of words: a real process that really ends, in the middle of a sequence."""

import asyncio
import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from ray import serve
from ray.serve import Application

from pipeline.errors import SynthesisError
from pipeline.types import Prompt, StepBlock
from serve import app
from serve.deployments.acoustic_model import AcousticModel

FRAGILE = "fragile"  # ends the first replica that speaks it, no other
POISON = "poison"  # ends every replica that speaks it
DEATHS_FILE = "deaths.txt"  # in $RAY_TMPDIR: a line a death
STEPS_BEFORE = 12  # handed on by a replica before it dies: some steps, no audio yet
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


def build_app(args: dict[str, Any]) -> Application:
    with mock.patch.object(app, "AcousticModel", serve.deployment(name="AcousticModel")(FragileModel)):
        return app.build_app(args)
