"""B12, soak: 70 % of what the service can answer, for as long as asked; memory and latency at the end against the beginning."""

import threading
import time

import numpy as np
from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.scenarios.knee import open_load
from scripts.bench.scenarios.pace import requests_per_second
from scripts.bench.timeline import latency

PART = 0.7
SAMPLES = 120
QUICK_MINUTES = 0.75
LEAST_MINUTES = 5


def run(bench: Bench) -> Report:
    """One long open load."""
    minutes = min(bench.options.soak_minutes, QUICK_MINUTES) if bench.options.quick else bench.options.soak_minutes
    served = bench.service(bench.options.settings)
    rate = PART * requests_per_second(bench, served)
    bench.say(f"{rate:.2f} requests a second for {minutes:g} minutes")
    memory: list[tuple[float, int]] = []
    over = threading.Event()
    began = time.perf_counter()

    def watch() -> None:
        while not over.wait(60 * minutes / SAMPLES):
            memory.append((time.perf_counter() - began, served.resident_bytes()))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        lines = open_load(bench, served, rate, 60 * minutes, "soak")
    finally:
        over.set()
        watcher.join()
    half = 30 * minutes
    halves = {
        "first half": latency([line for line in lines if line.due_s < half]),
        "second half": latency([line for line in lines if line.due_s >= half]),
    }
    # What fills up at the beginning is no leak, and a slope over less than some minutes is noise.
    drift = mib_per_hour(memory[len(memory) // 5 :]) if minutes >= LEAST_MINUTES else None
    result = {
        "minutes": minutes,
        "rate": rate,
        "requests": len(lines),
        "complete": sum(line.complete for line in lines),
        "latency": halves,
        "resident_mib": [[round(when, 1), bytes_ / 2**20] for when, bytes_ in memory],
        "drift_mib_per_hour": drift,
    }
    table = Table("", *halves, title=f"B12  {minutes:g} minutes at {rate:.2f} requests a second")
    for key, label in (
        ("ttfb_p50_s", "first audio p50 (s)"),
        ("ttfb_p99_s", "first audio p99 (s)"),
        ("underruns", "underruns"),
    ):
        table.add_row(label, *(f"{half[key]:.2f}" for half in halves.values()))
    table.add_row("complete", f"{result['complete']} of {len(lines)}", "")
    table.add_row("memory (MiB)", f"{memory[0][1] / 2**20:.0f}", f"{memory[-1][1] / 2**20:.0f}")
    table.add_row("memory drift (MiB an hour)", "", "too short to say" if drift is None else f"{drift:+.1f}")
    return Report(result, [table])


def mib_per_hour(memory: list[tuple[float, int]]) -> float:
    """Slope of a straight line through the samples."""
    times, sizes = np.array(memory, dtype=np.float64).T
    slope: float = np.polyfit(times / 3600, sizes / 2**20, 1)[0]
    return float(slope)
