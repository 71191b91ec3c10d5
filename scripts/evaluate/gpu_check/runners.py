"""Runners: the GPU's runner on a device, and its work as calls; on a CPU through Triton's interpreter, for a rehearsal.

In:    a device, settings of an engine, a checkpoint
Out:   a runner; calls without arguments
Never: sequences, time
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig


def config_of(device: str, settings: dict[str, Any]) -> EngineConfig:
    """Returns the settings, checked as for a GPU: the interpreter takes its place."""
    return EngineConfig.varied(settings | {"device": "cuda"}).model_copy(update={"device": device})


def runner_class() -> Any:
    """Returns GpuRunner; not every platform has Triton."""
    return importlib.import_module("pipeline.engine.gpu_runner").GpuRunner


def bare_runner(device: str, checkpoint: Checkpoint, settings: dict[str, Any]) -> Any:
    """Returns a runner without an engine around it."""
    return runner_class()(config_of(device, settings), checkpoint)


def round_of(runner: Any) -> Callable[[], object]:
    """Returns a call that runs one round: its graph, where it has been recorded."""
    graph = runner._rounds.get(False)
    return graph.replay if graph else partial(runner._round, with_text=False)


def prefill_of(runner: Any, length: int) -> Callable[[], object]:
    """Returns a call that runs a prefill of `length` positions: its graph, where it has been recorded."""
    graph = runner._prefills.get(length)
    return graph.replay if graph else partial(runner._prefill, runner._make_prompts(length))
