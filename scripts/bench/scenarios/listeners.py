"""B5, listeners: how many people can listen at the same time without a gap.

Each listener requests a text, plays it in real time from its first audio on, and requests the next one when it has been played.
A number of listeners is smooth when 95 % of the streams have no gap. B4 asks the same of random arrivals.

In:    a Bench
Out:   a Report
Owns:  nothing
Never: an open loop
"""

from typing import Any

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.load import Load
from scripts.bench.names import SERVICE
from scripts.bench.timeline import latency, spread
from scripts.bench.workload import utterances

SMOOTH = 0.95
MOST = 16
TEXTS, ROUNDS = 6, 3
QUICK_TEXTS, QUICK_ROUNDS = 4, 1


def run(bench: Bench, *, title: str = "B5  listeners at once") -> Report:
    """Adds listeners one by one, until two numbers in a row are not smooth."""
    rows: list[dict[str, Any]] = []
    while len(rows) < MOST and not (len(rows) > 1 and all(row["continuous"] < SMOOTH for row in rows[-2:])):
        rows.append(measure(bench, len(rows) + 1))
    smooth = next((number for number, row in enumerate(rows) if row["continuous"] < SMOOTH), len(rows))
    table = Table("listeners", "streams", "without a gap", "first audio p50 (s)", "p95 (s)", title=title)
    for row in rows:
        figures = (f"{row['continuous']:.0%}", f"{row['ttfb_p50_s']:.2f}", f"{row['ttfb_p95_s']:.2f}")
        table.add_row(str(row["listeners"]), str(row["answers"]), *figures)
    table.caption = f"{SMOOTH:.0%} of the streams of up to {smooth} listeners have no gap"
    return Report({"listeners": rows, "smooth": smooth}, [table], {"smooth_listeners": spread([smooth])})


def measure(bench: Bench, listeners: int) -> dict[str, Any]:
    """Returns the figures of so many listeners, over all rounds."""
    texts, rounds = (QUICK_TEXTS, QUICK_ROUNDS) if bench.options.quick else (TEXTS, ROUNDS)
    system, lines = bench.system(SERVICE), []
    for turn in range(rounds):
        bench.progress(f"{system.name}, {listeners} listeners, round {turn + 1}")
        asked = utterances(listeners * texts, bench.options.lengths, bench.options.seed, "b5", turn, listeners)
        lines += bench.run(system, Load(tuple(asked), clients=listeners, in_real_time=True))
    return {"listeners": listeners, **latency(lines)}
