"""B4, the knee: requests that come whether or not the ones before are answered, at growing rates.

Arrivals are Poisson, the rate a part of what the system can answer at all. A rate is held when the first audio of 95 of 100
comes within the limit and nobody is refused; it is smooth when no listener ever waits in between besides.
"""

from typing import Any

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.load import Load
from scripts.bench.scenarios.pace import requests_per_second
from scripts.bench.systems import System
from scripts.bench.timeline import Timeline, latency
from scripts.bench.workload import poisson, utterances

SMOOTH = 0.999


def run(bench: Bench) -> Report:
    """One rate after another."""
    quick, limit_s = bench.options.quick, bench.options.slo_ttfb_s
    parts = (0.3, 0.6, 0.9) if quick else (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    duration_s = 8.0 if quick else 60.0
    system = bench.speaker("P")
    pace = requests_per_second(bench, system)
    rows = []
    for part in parts:
        rate = part * pace
        bench.say(f"{system.name}, {rate:.2f} requests a second for {duration_s:g} s")
        rows.append(
            {"part": part, "rate": rate, **judged(open_load(bench, system, rate, duration_s, part), limit_s, duration_s)}
        )
    knee = max((row["rate"] for row in rows if row["holds"]), default=0.0)
    smooth = max((row["rate"] for row in rows if row["holds"] and row["continuous"] >= SMOOTH), default=0.0)
    table = Table(
        "requests a second", "of what it can", "first audio p50 (s)", "p95 (s)", "continuous", "refused", "in time / s",
        title=f"B4  the knee: first audio within {limit_s:g} s, p95",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            f"{row['rate']:.2f}", f"{row['part']:.0%}", f"{row['ttfb_p50_s']:.2f}", f"{row['ttfb_p95_s']:.2f}",
            f"{row['continuous']:.1%}", str(row["refused"]), f"{row['goodput']:.2f}",
        )  # fmt: skip
    table.caption = f"held up to {knee:.2f} requests a second, smooth up to {smooth:.2f}; at all {pace:.2f}"
    result = {"limit_ttfb_s": limit_s, "pace": pace, "rates": rows, "knee": knee, "smooth_knee": smooth}
    return Report(result, [table])


def open_load(bench: Bench, system: System, rate: float, duration_s: float, *path: object) -> list[Timeline]:
    """A Poisson load of the run's lengths."""
    times = poisson(rate, duration_s, bench.options.seed, "open", *path) or [0.0]
    asked = utterances(len(times), bench.options.lengths, bench.options.seed, "open", *path)
    return bench.run(system, Load(tuple(asked), arrivals_s=tuple(times)))


def judged(lines: list[Timeline], limit_s: float, duration_s: float) -> dict[str, Any]:
    """What an open load gave."""
    refused = sum(not line.complete for line in lines)
    good = sum(line.is_continuous and line.ttfb_s <= limit_s for line in lines)
    answered = latency(lines) if refused < len(lines) else {"ttfb_p50_s": 0.0, "ttfb_p95_s": float("inf"), "continuous": 0.0}
    return {
        **answered,
        "requests": len(lines),
        "refused": refused,
        "goodput": good / duration_s,
        "holds": refused == 0 and answered["ttfb_p95_s"] <= limit_s,
        "late_sending_s": max(line.sent_s - line.due_s for line in lines),
    }
