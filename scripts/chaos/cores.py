"""Cores: which processes held the cores while a load ran, and which of them had to wait for one.

In:    the address of a running service
Out:   cores by kind of process: those of the service, the clients', and everything else on the machine
Owns:  nothing
Never: a sample in between: two looks at /proc cost the load nothing
"""

import os
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Self

from scripts.bench.processes import core_use, kind_of, title
from scripts.chaos.soak import service_processes


class Cores:
    """Context manager around a load; `by_kind` has the figures once it is over."""

    def __init__(self, url: str) -> None:
        self._kinds = {each.pid: kind_of(title(each.pid)) for each in service_processes(url)} | {os.getpid(): "clients"}
        self.by_kind: dict[str, dict[str, float]] = {}

    def __enter__(self) -> Self:
        self._began, self._busy, self._used = time.perf_counter(), busy_s(), self._look()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        took, busy, used = time.perf_counter() - self._began, busy_s() - self._busy, self._look()
        ran = {name: (now - self._used[name][0]) / took for name, (now, _) in used.items()}
        waited = {name: (now - self._used[name][1]) / took for name, (_, now) in used.items()}
        found = {name: {"ran": round(ran[name], 3), "waited": round(waited[name], 3)} for name in sorted(ran)}
        self.by_kind = found | {"others": {"ran": round(max(0.0, busy / took - sum(ran.values())), 3)}}

    def _look(self) -> dict[str, tuple[float, float]]:
        """Returns the time that each kind has run, and has waited for a core [s]."""
        sums: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        for pid, kind in self._kinds.items():
            ran, waited = core_use(pid)
            sums[kind] = sums[kind][0] + ran, sums[kind][1] + waited
        return dict(sums)


def busy_s() -> float:
    """Returns the time that the cores of this machine were not idle, since it started [s]."""
    user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
