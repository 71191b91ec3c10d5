"""The account: where the time of a closed loop goes, from the engine's rounds to the cores.

The load is B3's, eight in flight. Every process's use of the cores is sampled, and the engine's counters say how much of the
time it spent in prefill calls, in rounds and in neither. Rounds of as many rows in one process, with nothing beside them, show
what they cost; what they take longer here is lost to sharing the cores.

In:    a Bench
Out:   the Report of B15
Never: another system than this service
"""

from typing import Any

import numpy as np
import psutil
from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.names import SERVICE
from scripts.bench.processes import CoreWatch, by_kind
from scripts.bench.scenarios.saturation import CROWD, completions
from scripts.bench.systems import Served
from scripts.bench.timeline import audio_rate
from scripts.bench.workload import saturating

CLIENT = "client"
ROWS = (2, 4, 8)
ALONE_S = 2.0
COUNTERS = ("rounds", "steps", "sequences", "prefill_s", "decode_s")


def run(bench: Bench) -> Report:
    """B15, the account: measures rounds alone, then one load."""
    alone = [round_alone(bench, rows) for rows in ROWS]
    service = bench.system(SERVICE)
    assert isinstance(service, Served)
    bench.progress(f"{SERVICE}, {CROWD} in flight")
    count = 3 * completions(SERVICE, CROWD, quick=bench.options.quick)
    before = counters(service)
    with CoreWatch({CLIENT: [psutil.Process()]} | by_kind(service.processes())) as watch:
        lines = bench.run(service, saturating(CROWD, count, bench.options.lengths, bench.options.seed, "b15"))
    spent = {name: value - before[name] for name, value in counters(service).items()}
    result = {
        "audio_s_per_s": audio_rate(lines, count),
        "round_alone_ms": [(rows, 1e3 * round_s) for rows, round_s in alone],
        **engine_account(spent, watch.samples.times_s[-1], alone),
        "cores": watch.samples.means(),
        "timeline": {"times_s": watch.samples.times_s, "cores": watch.samples.running},
    }
    return Report(result, tables_of(result))


def round_alone(bench: Bench, rows: int) -> tuple[float, float]:
    """Returns the mean number of rows and the mean duration [s] of the rounds of so many requests, with nothing beside them."""
    batch = [bench.utterance(ALONE_S, "alone", row) for row in range(rows)]
    bench.progress(f"rounds of {rows}, alone")
    rounds: tuple[float, float] = bench.in_process(bench.options.settings).call("rounds", batch)
    return rounds


def counters(service: Served) -> dict[str, float]:
    """Returns the engine's counters, summed over the replicas."""
    replicas = service.health()["acoustic"]
    return {name: sum(replica[name] for replica in replicas) for name in COUNTERS}


def engine_account(spent: dict[str, float], wall_s: float, alone: list[tuple[float, float]]) -> dict[str, float]:
    """Returns where the engine's time went [s]: rounds as alone, what they took longer, prefill calls, and neither."""
    rows = spent["steps"] / spent["rounds"]
    cost_s = spent["rounds"] * float(np.interp(rows, [number for number, _ in alone], [round_s for _, round_s in alone]))
    return {
        "wall_s": wall_s,
        "rows_per_round": rows,
        "round_ms": 1e3 * spent["decode_s"] / spent["rounds"],
        "rounds_alone_s": cost_s,
        "rounds_longer_s": spent["decode_s"] - cost_s,
        "prefill_s": spent["prefill_s"],
        "prefill_ms_each": 1e3 * spent["prefill_s"] / max(spent["sequences"], 1),
        "neither_s": wall_s - spent["decode_s"] - spent["prefill_s"],
    }


def tables_of(result: dict[str, Any]) -> list[Table]:
    """Returns the engine's account and the cores'."""
    engine = Table("", "share of the time", "s", title=f"B15  the engine's time, {CROWD} in flight")
    for key, place in (
        ("rounds_alone_s", f"rounds of {result['rows_per_round']:.1f} rows, as long as alone"),
        ("rounds_longer_s", "rounds, longer than alone"),
        ("prefill_s", f"prefill calls, {result['prefill_ms_each']:.0f} ms for a text"),
        ("neither_s", "neither: between rounds, and nobody to decode"),
    ):
        engine.add_row(place, f"{result[key] / result['wall_s']:.0%}", f"{result[key]:.2f}")
    engine.caption = f"{result['audio_s_per_s']:.2f} seconds of audio per second; a round takes {result['round_ms']:.1f} ms"
    cores = Table("process", "runs on (cores)", "threads that wait for a core", title="B15  who holds the cores")
    for kind, use in sorted(result["cores"].items(), key=lambda item: -item[1]["running"]):
        cores.add_row(kind, f"{use['running']:.2f}", f"{use['waiting']:.2f}")
    return [engine, cores]
