"""B6, overload: ten times the peak rate for a moment, then twice the peak rate for longer.

Refusals must be immediate and say when to retry, admitted requests must be served, and afterwards all must be as before.

In:    a Bench
Out:   a Report
Owns:  nothing
Never: judging the service's own choice of which requests to refuse
"""

from typing import Any

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.names import SERVICE
from scripts.bench.scenarios.peak_rate import requests_per_second
from scripts.bench.scenarios.saturation_knee import open_load
from scripts.bench.timeline import REFUSALS, Timeline, percentile


def run(bench: Bench) -> Report:
    """A burst, then a flood."""
    quick = bench.options.quick
    system = bench.system(SERVICE)
    peak = requests_per_second(bench, system)
    idle = bench.alone(system, bench.utterance(2.0, "before")).ttfb_s
    rows: dict[str, dict[str, Any]] = {}
    for name, times, duration_s in (("burst", 10, 2.0 if quick else 5.0), ("flood", 2, 10.0 if quick else 60.0)):
        bench.progress(f"{system.name}, {times} x {peak:.2f} requests per second for {duration_s:g} s")
        lines = open_load(bench, system, times * peak, duration_s, name)
        after = bench.alone(system, bench.utterance(2.0, "after", name)).ttfb_s
        rows[name] = {"times": times, "duration_s": duration_s, **shed(lines), "idle_ttfb_s": idle, "ttfb_after_s": after}
    table = Table("", *rows, title="B6  overload")
    for key, label in LABELS.items():
        table.add_row(label, *(f"{row[key]:.3f}" if isinstance(row[key], float) else str(row[key]) for row in rows.values()))
    return Report({"peak_rate": peak, "loads": rows}, [table])


LABELS = {
    "times": "times the peak rate",
    "requests": "requests",
    "shed": "refused, share of all",
    "refusal_p50_s": "refusal p50 (s)",
    "refusal_p99_s": "refusal p99 (s)",
    "with_retry_after": "refusals with Retry-After",
    "admitted_ttfb_p50_s": "admitted: first audio p50 (s)",
    "admitted_ttfb_p99_s": "admitted: first audio p99 (s)",
    "drained_s": "last answer after the last arrival (s)",
    "idle_ttfb_s": "first audio alone, before (s)",
    "ttfb_after_s": "first audio alone, after (s)",
}


def shed(lines: list[Timeline]) -> dict[str, Any]:
    """Returns how many requests were refused, how quickly, and what the others got."""
    refused = [line for line in lines if line.status in REFUSALS]
    admitted = [line.ttfb_s for line in lines if line.complete]
    refusals = [line.taken_s for line in refused] or [0.0]
    return {
        "requests": len(lines),
        "shed": len(refused) / len(lines),
        "refusal_p50_s": percentile(refusals, 50),
        "refusal_p99_s": percentile(refusals, 99),
        "with_retry_after": sum(line.retry_after_s is not None for line in refused),
        "admitted_ttfb_p50_s": percentile(admitted, 50),
        "admitted_ttfb_p99_s": percentile(admitted, 99),
        "drained_s": max(line.ended_s for line in lines) - max(line.due_s for line in lines),
    }
