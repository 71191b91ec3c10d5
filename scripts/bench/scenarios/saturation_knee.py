"""B4, the knee: requests arrive at growing rates, whether or not earlier ones have been answered.

Arrivals are Poisson; each rate is a part of the peak rate. A rate holds when the first audio of 95 % of the requests comes
within the limit and none is refused. It is smooth when, besides, no stream has a gap.

In:    a Bench
Out:   a Report
Owns:  nothing
Never: a closed loop
"""

from typing import Any

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.load import Load
from scripts.bench.names import SERVICE
from scripts.bench.scenarios.peak_rate import requests_per_second
from scripts.bench.systems import System
from scripts.bench.timeline import Timeline, latency
from scripts.bench.workload import poisson, utterances

SMOOTH = 0.999


def run(bench: Bench) -> Report:
    """Loads the system with one rate after another."""
    quick, limit_s = bench.options.quick, bench.options.slo_ttfb_s
    parts = (0.3, 0.6, 0.9) if quick else (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    duration_s = 8.0 if quick else 60.0
    system = bench.system(SERVICE)
    peak = requests_per_second(bench, system)
    rows = []
    for part in parts:
        rate = part * peak
        bench.progress(f"{system.name}, {rate:.2f} requests per second for {duration_s:g} s")
        rows.append(
            {"part": part, "rate": rate, **judged(open_load(bench, system, rate, duration_s, part), limit_s, duration_s)}
        )
    knee = max((row["rate"] for row in rows if row["holds"]), default=0.0)
    smooth = max((row["rate"] for row in rows if row["holds"] and row["continuous"] >= SMOOTH), default=0.0)
    table = Table(
        "requests per second", "of the peak", "first audio p50 (s)", "p95 (s)", "without a gap", "refused", "in time / s",
        title=f"B4  the knee: first audio within {limit_s:g} s, p95",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            f"{row['rate']:.2f}", f"{row['part']:.0%}", f"{row['ttfb_p50_s']:.2f}", f"{row['ttfb_p95_s']:.2f}",
            f"{row['continuous']:.1%}", str(row["refused"]), f"{row['goodput']:.2f}",
        )  # fmt: skip
    table.caption = f"holds up to {knee:.2f} requests per second, smooth up to {smooth:.2f}; peak {peak:.2f}"
    result = {"limit_ttfb_s": limit_s, "peak_rate": peak, "rates": rows, "knee": knee, "smooth_knee": smooth}
    return Report(result, [table])


def open_load(bench: Bench, system: System, rate: float, duration_s: float, *path: object) -> list[Timeline]:
    """Runs a Poisson load of the run's lengths."""
    times = poisson(rate, duration_s, bench.options.seed, "open", *path) or [0.0]
    asked = utterances(len(times), bench.options.lengths, bench.options.seed, "open", *path)
    return bench.run(system, Load(tuple(asked), arrivals_s=tuple(times)))


def judged(lines: list[Timeline], limit_s: float, duration_s: float) -> dict[str, Any]:
    """Returns the figures of one rate, and whether it holds."""
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
