"""Report: the promises, figures and aims of one section, printed as they are found.

In:    results of checks; the figures of the sections before
Out:   lines for people; the dictionaries of the JSON file
Owns:  those dictionaries
Never: a device
"""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Result = dict[str, Any]


@dataclass(slots=True)
class Report:
    """The findings of one section, printed as soon as they are known."""

    known: Result = field(default_factory=dict)
    """figures of earlier sections"""
    on_finding: "Callable[[Report], None]" = lambda report: None
    """called after every finding"""
    promises: dict[str, Result] = field(default_factory=dict)
    figures: Result = field(default_factory=dict)
    aims: dict[str, Result] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def section(self, name: str, check: Callable[[], None]) -> None:
        """Runs one section; an error in it is reported."""
        print(f"-- {name}", flush=True)
        started = time.perf_counter()
        try:
            check()
        except Exception as error:
            traceback.print_exc()
            self.failed[name] = f"{type(error).__name__}: {error}"
        self.on_finding(self)
        print(f"-- {name}: {time.perf_counter() - started:.1f} s", flush=True)

    def figure_of(self, name: str) -> Any:
        """Returns a figure of this section or of an earlier one; None if there is none."""
        return self.figures.get(name, self.known.get(name))

    def aim(self, name: str, value: float, target: float, *, at_least: bool) -> None:
        reached = value >= target if at_least else value <= target
        self.aims[name] = {"value": value, "aim": target, "reached": reached}
        wish = f"aim {'>=' if at_least else '<='} {target:g}"
        print(f"{'aim':>4}  {name}: {value:.4g}, {wish}: {'reached' if reached else 'missed'}", flush=True)
        self.on_finding(self)

    def promise(self, name: str, holds: bool, detail: str) -> None:
        self.promises[name] = {"holds": holds, "detail": detail}
        print(f"{'yes' if holds else 'NO':>4}  {name}: {detail}", flush=True)
        self.on_finding(self)

    def figure(self, name: str, value: object, shown: str) -> None:
        self.figures[name] = value
        print(f"      {name}: {shown}", flush=True)
        self.on_finding(self)

    @property
    def all_hold(self) -> bool:
        return not self.failed and all(promise["holds"] for promise in self.promises.values())

    def as_result(self) -> Result:
        """Returns what the JSON file keeps."""
        return {"promises": self.promises, "aims": self.aims, "failed": self.failed, "figures": self.figures}


def seconds_each(call: Callable[[], object], times: int) -> float:
    """Returns the mean seconds of a call, after one that does not count."""
    call()
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times
