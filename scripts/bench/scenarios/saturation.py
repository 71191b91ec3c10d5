"""B3, saturation: audio seconds a second over the number of requests in flight, in a closed loop.

Counted from the load's start to its last wanted completion, with what the others had heard by then; whoever is still under
way then hangs up, so no system is measured while it runs empty. P streams; U and S answer with whole utterances, which is
their faster way. S is shown at each batch size and judged at its best.
"""

import statistics
from typing import Any

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.load import Load
from scripts.bench.show import shown
from scripts.bench.systems import System
from scripts.bench.timeline import audio_rate, latency, spread
from scripts.bench.workload import utterances

CROWD = 8
BATCH_SIZES = (4, 8)


def run(bench: Bench) -> Report:
    """Every system at every number of requests in flight it is asked for."""
    quick, url = bench.options.quick, bench.options.endpoint is not None
    in_flight = (1, CROWD) if quick else (1, 2, 4, CROWD)
    names = ["url"] if url else ["U", *(f"S{size}" for size in BATCH_SIZES), "P"]
    found: dict[str, dict[int, list[dict[str, Any]]]] = {name: {} for name in names}
    for turn, name in bench.turns(names):
        system = awake(bench, name)
        for clients in in_flight:
            if name not in ("P", "url") and clients not in (1, CROWD):
                continue  # the lock and the batch have no more to show
            if name[0] in "US" and clients == 1 and (turn > 0 or name == "S4"):
                continue  # one request at a time is B1's question
            bench.say(f"{name}, {clients} in flight, round {turn + 1}")
            count = completions(name, clients, quick=quick)
            asked = utterances(count + clients, bench.options.lengths, bench.options.seed, "b3", turn, clients)
            load = Load(tuple(asked), clients=clients, completions=count, streamed=name in ("P", "url"))
            lines = bench.run(system, load)
            found[name].setdefault(clients, []).append({"audio_s_per_s": audio_rate(lines, count), **latency(lines)})
    result: dict[str, Any] = {"lengths": vars_of(bench), "systems": summarised(found)}
    best = names[0] if url else best_batch(found)
    rates = {name: spread([one["audio_s_per_s"] for one in found[name][CROWD]]) for name in names}
    table = Table("in flight", *(f"{name}: audio s a second" for name in names), "P: first audio p50 / p95 (s)", title=TITLE)
    for clients in in_flight:
        row = [
            shown(spread([one["audio_s_per_s"] for one in found[name][clients]])) if clients in found[name] else ""
            for name in names
        ]
        last = found[names[-1]][clients]
        first = [statistics.median(one[key] for one in last) for key in ("ttfb_p50_s", "ttfb_p95_s")]
        table.add_row(str(clients), *row, " / ".join(f"{value:.2f}" for value in first))
    figures = {}
    if not url:
        for other, figure in (("U", "audio_rate_to_upstream"), (best, "audio_rate_to_static")):
            pairs = zip(found["P"][CROWD], found[other][CROWD], strict=True)
            figures[figure] = spread([p["audio_s_per_s"] / o["audio_s_per_s"] for p, o in pairs])
            table.add_row(f"{CROWD}: P / {other}", *[""] * (len(names) - 1), shown(figures[figure]), "")
        result |= {"best_batch": best, "ratios": figures}
    result["rates_at_crowd"] = rates
    return Report(result, [table], figures)


TITLE = "B3  saturation, closed loop"


def awake(bench: Bench, name: str) -> System:
    """The system by its name in this scenario: S4 is S with batches of four."""
    return bench.static(int(name[1:])) if name.startswith("S") else bench.speaker(name)


def completions(name: str, clients: int, *, quick: bool) -> int:
    """How many answers make a figure: several times the crowd, and whole batches."""
    if name == "U":
        return 3 if quick else 6  # one after another: its rate does not depend on how many wait
    if quick:
        return clients if name.startswith("S") else 2 * clients
    return 3 * clients


def best_batch(found: dict[str, dict[int, list[dict[str, Any]]]]) -> str:
    """S at the batch size that gives it the most."""
    sizes = [name for name in found if name.startswith("S")]
    return max(sizes, key=lambda name: statistics.median(one["audio_s_per_s"] for one in found[name][CROWD]))


def summarised(found: dict[str, dict[int, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Median, least and greatest of everything."""
    return {
        name: {clients: {key: spread([one[key] for one in turns]) for key in turns[0]} for clients, turns in loads.items()}
        for name, loads in found.items()
    }


def vars_of(bench: Bench) -> dict[str, float]:
    """The distribution the lengths were drawn from."""
    lengths = bench.options.lengths
    return {name: getattr(lengths, name) for name in lengths.__slots__}
