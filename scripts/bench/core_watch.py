"""Core watch: who holds the cores, sampled while a load runs.

In:    process ids by kind
Out:   Samples: per kind, how much of a core it ran and waited for in each period
Owns:  a thread of this process
Never: the load; kinds of processes that are none of its business
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from scripts.bench.processes import core_use

PERIOD_S = 0.25  # a sample reads some hundred files; the process of the benchmark, "client", pays for it


@dataclass(slots=True)
class Samples:
    """Periods of a load. Cores: seconds of processor time per second."""

    times_s: list[float] = field(default_factory=list)
    """the end of each period, since the start"""
    running: dict[str, list[float]] = field(default_factory=dict)
    """kind -> cores it ran on"""
    waiting: dict[str, list[float]] = field(default_factory=dict)
    """kind -> threads of it that waited for a core"""

    def core_s(self, kind: str) -> float:
        """Returns the processor time of a kind [s]."""
        return self._total(self.running[kind])

    def waited_s(self, kind: str) -> float:
        """Returns the time that threads of a kind waited for a core [s]."""
        return self._total(self.waiting[kind])

    def _total(self, values: Sequence[float]) -> float:
        starts = [0.0, *self.times_s]
        return sum(value * (end - start) for value, start, end in zip(values, starts, self.times_s, strict=False))


class CoreWatch:
    """Context manager that samples while it is open."""

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._pids = pids
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="core-watch", daemon=True)
        self.samples = Samples(
            running={kind: [] for kind in pids},
            waiting={kind: [] for kind in pids},
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        began = before = time.perf_counter()
        seen = self._now()
        while not self._ended.wait(PERIOD_S):
            now, found = time.perf_counter(), self._now()
            self.samples.times_s.append(now - began)
            for kind, (ran, waited) in found.items():
                self.samples.running[kind].append(max(0.0, ran - seen[kind][0]) / (now - before))
                self.samples.waiting[kind].append(max(0.0, waited - seen[kind][1]) / (now - before))
            seen, before = found, now

    def _now(self) -> dict[str, tuple[float, float]]:
        sums = {}
        for kind, pids in self._pids.items():
            each = [core_use(pid) for pid in pids]
            sums[kind] = sum(ran for ran, _ in each), sum(waited for _, waited in each)
        return sums
