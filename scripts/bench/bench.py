"""Bench: what every scenario is given: the systems, the repeats, a place to say how far it is.

In:    the options of one run
Out:   systems that are awake and warm
Owns:  the SystemPool, the line of progress on the terminal
Never: figures
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table

from scripts.bench.client import Endpoint
from scripts.bench.load import Load
from scripts.bench.settings import Settings
from scripts.bench.systems import (
    InProcess,
    Remote,
    Served,
    System,
    SystemPool,
    copy_bandwidth,
    set_batch_size,
    start_ours,
    start_service,
    start_static,
    start_upstream,
)
from scripts.bench.timeline import Timeline, failures
from scripts.bench.workload import Lengths, Utterance, utterance

WARM_UP_S = 1.0
MAX_PROMPT = 512
MAX_STEPS = 1280  # 25 s and more
KV_MIB = 4096


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    quick: bool = False
    seed: int = 1
    repeats: int = 3
    config: Path = Path("configs/dev.yaml")
    checkpoint: str = "full-random"
    dtype: str = "bfloat16"
    weights: str = "int8"  # as configs/cpu.yaml, like the next one
    kv: str = "int8"
    path: str = "fast"
    threads: int = os.cpu_count() or 1
    vocoder_threads: int = 1
    soak_minutes: float = 30.0
    slo_ttfb_s: float = 2.5
    endpoint: Endpoint | None = None

    @property
    def lengths(self) -> Lengths:
        """What is drawn where lengths are drawn."""
        return Lengths(median_s=2.0, longest_s=5.0) if self.quick else Lengths()

    @property
    def settings(self) -> Settings:
        """The service under test."""
        engine: dict[str, Any] = {
            "dtype": self.dtype,
            "weights": self.weights,
            "kv": self.kv,
            "threads": self.threads,
            "max_prompt": MAX_PROMPT,
            "max_steps": MAX_STEPS,
            "kv_budget_mib": KV_MIB,
        }
        changes: dict[str, Any] = {f"pipeline.engine.{key}": value for key, value in engine.items()}
        changes |= {"pipeline.vocoder.threads": self.vocoder_threads}
        return Settings(self.config, self.checkpoint, self.path, changes)

    @property
    def demo_settings(self) -> Settings:
        """The service as a newcomer starts it: the small checkpoint, whose steps cost little, so that all the rest shows."""
        return Settings(self.config, "demo", self.path)


@dataclass(frozen=True, slots=True)
class Report:
    """What a scenario found."""

    result: dict[str, Any]
    tables: Sequence[Table]
    figures: dict[str, dict[str, float | int]] = field(default_factory=dict)
    """what the summary judges, by its name: median, min, max, n"""


class ScenarioFailed(Exception):
    """A figure would have been made of answers that were none."""


class Bench:
    """One run."""

    def __init__(self, options: Options, console: Console) -> None:
        self.options = options
        self.systems = SystemPool()
        self.paces: dict[str, float] = {}
        """requests a second each system can answer at all, once it is known"""
        self._console = console
        self._status: Status | None = None
        self._scenario = ""

    @contextmanager
    def scenario(self, name: str) -> Iterator[None]:
        """Show how far one scenario is."""
        self._scenario = name
        with self._console.status(name) as self._status:
            yield
        self._status = None

    def say(self, what: str) -> None:
        """Where we are."""
        line = f"{self._scenario}: {what}"
        if self._console.is_terminal and self._status is not None:
            self._status.update(line)
        else:
            self._console.print(line, highlight=False)

    def turns(self, names: Sequence[str], repeats: int | None = None) -> Iterator[tuple[int, str]]:
        """A B C, C B A, A B C: whatever drifts does not favour one side."""
        for turn in range(self.options.repeats if repeats is None else repeats):
            for name in names if turn % 2 == 0 else reversed(names):
                yield turn, name

    def utterance(self, audio_s: float, *path: object) -> Utterance:
        """A text of its own."""
        return utterance(audio_s, self.options.seed, self._scenario, *path)

    def speaker(self, name: str) -> System:
        """U, S, P, P0 or the server at --url, awake and warm."""
        if self.options.endpoint is not None:
            return Remote("url", self.options.endpoint)
        match name:
            case "U":
                return self.upstream()
            case "P0":
                return self.ours(self.options.settings)
            case "S":
                return self.static(8)
            case "P":
                return self.service(self.options.settings)
            case _:
                raise ValueError(f"no system {name!r}; there are U, S, P, P0")

    @cached_property
    def bandwidth(self) -> float:
        """Bytes a second this machine copies while nothing else runs."""
        self.systems.freeze()
        return copy_bandwidth()

    def upstream(self) -> InProcess:
        """U."""
        key = self.options.checkpoint
        upstream: InProcess = self._awake("U", key, lambda: start_upstream(key, self.options.threads))
        return upstream

    def ours(self, settings: Settings) -> InProcess:
        """P0 with the settings of a service."""
        key = replace(settings, path="")
        ours: InProcess = self._awake("P0", key, lambda: start_ours(settings))
        return ours

    def static(self, batch_size: int) -> Served:
        """S with a batch size."""
        key = self.options.checkpoint
        static: Served = self._awake("S", key, lambda: start_static(key, self.options.threads))
        set_batch_size(static, batch_size)
        return static

    def service(self, settings: Settings) -> Served:
        """P."""
        service: Served = self._awake("P", settings, lambda: start_service(settings))
        return service

    def run(self, system: System, load: Load) -> list[Timeline]:
        """Put a load on it; every answer must be one, a refusal or a leaving.

        Raises:
            ScenarioFailed
        """
        if self.options.endpoint is not None:  # nobody can say how long somebody else's server speaks
            load = replace(load, utterances=tuple(replace(what, steps=0) for what in load.utterances))
        timelines = system.run(load)
        if wrong := failures(timelines):
            raise ScenarioFailed(f"{len(wrong)} of {len(timelines)} requests to {system.name} failed, the first: {wrong[0]}")
        return timelines

    def alone(self, system: System, what: Utterance, *, streamed: bool = True) -> Timeline:
        """One request with nothing beside it."""
        (line,) = self.run(system, Load((what,), clients=1, streamed=streamed))
        return line

    def _awake(self, name: str, key: object, start: Callable[[], Any]) -> Any:
        if self.systems.is_new(name, key):
            self.say(f"starting {name}")
            system = self.systems.take(name, key, start)
            for streamed in (True, False):
                self.alone(system, utterance(WARM_UP_S, "warm-up", streamed), streamed=streamed)
            return system
        return self.systems.take(name, key, start)
