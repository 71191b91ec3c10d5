"""B12, soak: 70 % of the peak rate for as long as requested; memory and latency at the end against the beginning.

In:    a Bench
Out:   a Report
Owns:  the thread that samples the memory
Never: a verdict about memory from less than some minutes
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.scenarios.peak_rate import requests_per_second
from scripts.bench.scenarios.saturation_knee import open_load
from scripts.bench.systems import System
from scripts.bench.timeline import latency

PART = 0.7
SAMPLES = 120
QUICK_MINUTES = 0.75
LEAST_MINUTES = 5

Memory = list[tuple[float, int]]
"""(seconds since the start, bytes)"""


def run(bench: Bench) -> Report:
    """Runs one long open load."""
    minutes = min(bench.options.soak_minutes, QUICK_MINUTES) if bench.options.quick else bench.options.soak_minutes
    served = bench.service(bench.options.settings)
    rate = PART * requests_per_second(bench, served)
    bench.progress(f"{rate:.2f} requests per second for {minutes:g} minutes")
    with memory_samples(served, 60 * minutes / SAMPLES) as memory:
        lines = open_load(bench, served, rate, 60 * minutes, "soak")
    half_s = 30 * minutes
    halves = {
        "first half": latency([line for line in lines if line.due_s < half_s]),
        "second half": latency([line for line in lines if line.due_s >= half_s]),
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
    table = Table("", *halves, title=f"B12  {minutes:g} minutes at {rate:.2f} requests per second")
    for key, label in LABELS.items():
        table.add_row(label, *(f"{half[key]:.2f}" for half in halves.values()))
    table.add_row("complete", f"{result['complete']} of {len(lines)}", "")
    table.add_row("memory (MiB)", f"{memory[0][1] / 2**20:.0f}", f"{memory[-1][1] / 2**20:.0f}")
    table.add_row("memory drift (MiB per hour)", "", "unknown: too short" if drift is None else f"{drift:+.1f}")
    return Report(result, [table])


LABELS = {"ttfb_p50_s": "first audio p50 (s)", "ttfb_p99_s": "first audio p99 (s)", "underruns": "underruns"}


@contextmanager
def memory_samples(system: System, every_s: float) -> Iterator[Memory]:
    """Samples the memory of a system's processes on a thread of its own until the block ends."""
    memory: Memory = []
    over = threading.Event()
    began = time.perf_counter()

    def sample() -> None:
        while not over.wait(every_s):
            memory.append((time.perf_counter() - began, system.resident_bytes()))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        over.set()
        thread.join()


def mib_per_hour(memory: Memory) -> float:
    """Returns the slope of a straight line through the samples."""
    times, sizes = np.array(memory, dtype=np.float64).T
    slope: float = np.polyfit(times / 3600, sizes / 2**20, 1)[0]
    return float(slope)
