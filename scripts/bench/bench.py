"""Bench: what every scenario gets: the systems, the rounds, and a line that shows the progress.

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

from scripts.bench import names
from scripts.bench.client import Endpoint
from scripts.bench.settings import Settings
from scripts.bench.systems import (
    Remote,
    Served,
    System,
    SystemPool,
    WorkerProcess,
    copy_bandwidth,
    set_batch_size,
    start_in_process,
    start_service,
    start_static,
    start_upstream,
)
from scripts.bench.timeline import Timeline, failures
from scripts.bench.workload import Lengths, Load, Utterance, utterance

WARM_UP_S = 1.0
MAX_PROMPT = 512
MAX_STEPS = 1280  # 25 s and more
KV_MIB = {"cpu": 4096, "cuda": 16384}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    quick: bool = False
    seed: int = 1
    repeats: int = 3
    config: Path = Path("configs/dev.yaml")
    checkpoint: str = "full-random"
    dtype: str = "bfloat16"
    weights: str = "int8"  # as configs/cpu.yaml, like the next two
    kv: str = "int8"
    placement: str = "with_acoustic"
    path: str = "fast"
    device: str = "cpu"
    threads: int = os.cpu_count() or 1
    vocoder_threads: int = 1
    slo_ttfb_s: float = 2.5
    endpoint: Endpoint | None = None

    @property
    def lengths(self) -> Lengths:
        """Returns the distribution of the lengths."""
        return Lengths(median_s=2.0, longest_s=5.0) if self.quick else Lengths()

    @property
    def settings(self) -> Settings:
        """Returns the settings of the service under test."""
        engine: dict[str, Any] = {
            "dtype": self.dtype,
            "weights": self.weights,
            "kv": self.kv,
            "max_prompt": MAX_PROMPT,
            "max_steps": MAX_STEPS,
            "kv_budget_mib": KV_MIB[self.device],
        }
        changes: dict[str, Any] = {f"pipeline.engine.{key}": value for key, value in engine.items()}
        if self.device == "cpu":
            changes |= {"pipeline.engine.threads": self.threads, "pipeline.vocoder.threads": self.vocoder_threads}
            changes |= {"pipeline.vocoder.placement": self.placement}
        return Settings(self.config, self.checkpoint, self.path, changes)

    @property
    def demo_settings(self) -> Settings:
        """Returns the settings of the service as a newcomer starts it: the demo checkpoint, whose steps take little time."""
        return Settings(self.config, "demo", self.path)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a scenario."""

    result: dict[str, Any]
    tables: Sequence[Table]
    figures: dict[str, dict[str, float | int]] = field(default_factory=dict)
    """name -> median, min, max, n: the figures that the summary compares with their limits"""


class ScenarioFailed(Exception):
    """A request failed, so the scenario has no figure."""


class Bench:
    """One run of scenarios."""

    def __init__(self, options: Options, console: Console) -> None:
        self.options = options
        self.systems = SystemPool()
        self._console = console
        self._status: Status | None = None
        self._scenario = ""

    @contextmanager
    def scenario(self, name: str) -> Iterator[None]:
        """Shows the progress of one scenario."""
        self._scenario = name
        with self._console.status(name) as self._status:
            yield
        self._status = None

    def progress(self, activity: str) -> None:
        """Shows what is being measured now."""
        line = f"{self._scenario}: {activity}"
        if self._console.is_terminal and self._status is not None:
            self._status.update(line)
        else:
            self._console.print(line, highlight=False)

    def turns(self, systems: Sequence[str], repeats: int | None = None) -> Iterator[tuple[int, str]]:
        """Yields (round, system) as A B C, C B A, A B C: a drift of the machine favours none of them."""
        for turn in range(self.options.repeats if repeats is None else repeats):
            for name in systems if turn % 2 == 0 else reversed(systems):
                yield turn, name

    def utterance(self, audio_s: float, *path: object) -> Utterance:
        """Returns a text that is unique to this scenario and path."""
        return utterance(audio_s, self.options.seed, self._scenario, *path)

    def system(self, name: str) -> System:
        """Returns a system by its name, or the server at --url, awake and warm."""
        if self.options.endpoint is not None:
            return Remote(names.URL, self.options.endpoint)
        match name:
            case names.UPSTREAM:
                return self.upstream()
            case names.IN_PROCESS:
                return self.in_process(self.options.settings)
            case names.STATIC:
                return self.static(8)
            case names.SERVICE:
                return self.service(self.options.settings)
            case _:
                raise ValueError(f"no system {name!r}; there are {', '.join(names.LABELS)}")

    @cached_property
    def bandwidth(self) -> float:
        """Returns the bytes per second this machine copies while nothing else runs."""
        self.systems.freeze()
        return copy_bandwidth(self.options.device)

    def upstream(self) -> WorkerProcess:
        """Returns the ChatTTS package, awake and warm."""
        key, threads, device = self.options.checkpoint, self.options.threads, self.options.device
        upstream: WorkerProcess = self._awake(names.UPSTREAM, key, lambda: start_upstream(key, threads, device))
        return upstream

    def in_process(self, settings: Settings, *, beside: str = "") -> WorkerProcess:
        """Returns this engine in one process, awake and warm, with the settings of a service.

        Args:
            beside: the name of a second one, which does not replace the first.
        """
        key = replace(settings, path="")
        ours: WorkerProcess = self._awake(f"{names.IN_PROCESS}{beside}", key, lambda: start_in_process(settings))
        return ours

    def static(self, batch_size: int) -> Served:
        """Returns the static batches, awake and warm, with a batch size."""
        key, threads, device = self.options.checkpoint, self.options.threads, self.options.device
        static: Served = self._awake(names.STATIC, key, lambda: start_static(key, threads, device))
        set_batch_size(static, batch_size)
        return static

    def service(self, settings: Settings) -> Served:
        """Returns this service, awake and warm."""
        service: Served = self._awake(names.SERVICE, settings, lambda: start_service(settings))
        return service

    def run(self, system: System, load: Load) -> list[Timeline]:
        """Runs a load against a system. Each request must be answered, refused, or abandoned by its client.

        Raises:
            ScenarioFailed: a request failed.
        """
        if self.options.endpoint is not None:  # the length of another server's audio is not known in advance
            load = replace(load, utterances=tuple(replace(utterance, steps=0) for utterance in load.utterances))
        timelines = system.run(load)
        if errors := failures(timelines):
            raise ScenarioFailed(f"{len(errors)} of {len(timelines)} requests to {system.name} failed, the first: {errors[0]}")
        return timelines

    def alone(self, system: System, utterance: Utterance, *, streamed: bool = True) -> Timeline:
        """Runs one request with nothing beside it."""
        (line,) = self.run(system, Load((utterance,), clients=1, streamed=streamed))
        return line

    def _awake(self, name: str, key: object, start: Callable[[], Any]) -> Any:
        if self.systems.is_new(name, key):
            self.progress(f"starting {name}")
            system = self.systems.take(name, key, start)
            for streamed in (True, False):
                self.alone(system, utterance(WARM_UP_S, "warm-up", streamed), streamed=streamed)
            return system
        return self.systems.take(name, key, start)
