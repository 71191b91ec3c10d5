"""Saturation: seconds of audio per second by the number of requests in flight, in a closed loop.

Counted from the load's start to its last wanted completion, with what the other requests had received by then. The clients
that are still being served then disconnect, so no system is measured while it runs empty. This service streams. The ChatTTS
package and the static batches answer with whole utterances, which is faster for them. Static batches are shown at each
batch size and judged at the best one.

In:    a Bench
Out:   the Reports of B3 and B19
"""

import statistics
from dataclasses import replace
from typing import Any

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.names import SERVICE, STATIC, UPSTREAM, URL, kind, label, static_name
from scripts.bench.systems import System
from scripts.bench.timeline import audio_rate, latency, shown, spread, spreads
from scripts.bench.workload import saturating

CROWD = 8
BATCH_SIZES = (4, 8)
TITLE = "B3  saturation, closed loop"

Rounds = dict[str, dict[int, list[dict[str, Any]]]]
"""system -> requests in flight -> figures of each round"""


def run(bench: Bench) -> Report:
    """B3, saturation: loads every system with each number of requests in flight that concerns it."""
    is_url = bench.options.endpoint is not None
    names = [URL] if is_url else [UPSTREAM, *map(static_name, BATCH_SIZES), SERVICE]
    in_flight = (1, CROWD) if bench.options.quick else (1, 2, 4, CROWD)
    rounds: Rounds = {name: {} for name in names}
    for turn, name in bench.turns(names):
        system = awake(bench, name)
        for clients in in_flight:
            if concerns(name, clients, turn):
                rounds[name].setdefault(clients, []).append(measure(bench, system, name, clients, turn))
    systems = {name: {clients: spreads(turns) for clients, turns in loads.items()} for name, loads in rounds.items()}
    result: dict[str, Any] = {"lengths": lengths_of(bench), "systems": systems}
    table = rates_table(rounds, in_flight)
    figures = {}
    if not is_url:
        best = best_batch(rounds)
        for other, figure in ((UPSTREAM, "audio_rate_to_upstream"), (best, "audio_rate_to_static")):
            pairs = zip(rounds[SERVICE][CROWD], rounds[other][CROWD], strict=True)
            figures[figure] = spread([ours["audio_s_per_s"] / theirs["audio_s_per_s"] for ours, theirs in pairs])
            title = f"{CROWD}: {label(SERVICE)} / {label(other)}"
            table.add_row(title, *[""] * (len(names) - 1), shown(figures[figure]), "")
        result |= {"best_batch": best, "ratios": figures}
    result["rates_at_crowd"] = {name: rate_of(rounds[name][CROWD]) for name in names}
    return Report(result, [table], figures)


def bulk(bench: Bench) -> Report:
    """B19, books: whole answers in the bulk lane, which no listener's pace slows, beside the other systems' whole answers."""
    names, rounds = [UPSTREAM, static_name(CROWD), SERVICE], list[tuple[str, int, float]]()
    for turn, name in bench.turns(names):
        system = awake(bench, name)
        for clients in (CROWD, 2 * CROWD) if name == SERVICE else (CROWD,):
            bench.progress(f"{name}, {clients} in flight, round {turn + 1}")
            count = completions(name, clients, quick=bench.options.quick)
            load = saturating(clients, count, bench.options.lengths, bench.options.seed, "b19", turn, clients, streamed=False)
            lane = "bulk" if name == SERVICE else ""
            load = replace(load, utterances=tuple(replace(utterance, lane=lane) for utterance in load.utterances))
            rounds.append((name, clients, audio_rate(bench.run(system, load), count)))
    kinds = dict.fromkeys((name, clients) for name, clients, _ in rounds)
    rates = {pair: spread([rate for name, clients, rate in rounds if (name, clients) == pair]) for pair in kinds}
    table = Table("in flight", "system", "audio s per s", title="B19  books, closed loop")
    for (name, clients), rate in rates.items():
        table.add_row(str(clients), label(name), shown(rate))
    books = [rate for name, clients, rate in rounds if (name, clients) == (SERVICE, 2 * CROWD)]
    systems = {f"{name}, {clients} in flight": rate for (name, clients), rate in rates.items()}
    figures = {"bulk_rate": spread(books), "core_hours": spread([bench.options.threads / rate for rate in books])}
    return Report({"systems": systems}, [table], figures)


def awake(bench: Bench, name: str) -> System:
    """Returns a system by its name in this scenario: `static_4` is the static batches with four requests each."""
    return bench.static(int(name.removeprefix(f"{STATIC}_"))) if kind(name) == STATIC else bench.system(name)


def concerns(name: str, clients: int, turn: int) -> bool:
    """True if a system is measured with this many clients in this turn.

    The lock and the batches are the same for every crowd, and one request at a time is the question of B1.
    """
    if name in (SERVICE, URL):
        return True
    if clients == 1:
        return turn == 0 and name != static_name(min(BATCH_SIZES))
    return clients == CROWD


def measure(bench: Bench, system: System, name: str, clients: int, turn: int) -> dict[str, Any]:
    """Returns the figures of one round."""
    bench.progress(f"{name}, {clients} in flight, round {turn + 1}")
    count = completions(name, clients, quick=bench.options.quick)
    path, streamed = (bench.options.seed, "b3", turn, clients), name in (SERVICE, URL)
    lines = bench.run(system, saturating(clients, count, bench.options.lengths, *path, streamed=streamed))
    return {"audio_s_per_s": audio_rate(lines, count), **latency(lines)}


def completions(name: str, clients: int, *, quick: bool) -> int:
    """Returns how many answers make a figure: several times the crowd, in whole batches."""
    if name == UPSTREAM:
        return 3 if quick else 6  # one after another: its rate does not depend on how many wait
    if quick:
        return clients if kind(name) == STATIC else 2 * clients
    return 3 * clients


def rates_table(rounds: Rounds, in_flight: tuple[int, ...]) -> Table:
    """Returns the rate of each system, and the first audio of the last one, by the number of requests in flight."""
    names = list(rounds)
    columns = (f"{label(name)}: audio s per s" for name in names)
    table = Table("in flight", *columns, f"{label(names[-1])}: first audio p50 / p95 (s)", title=TITLE)
    for clients in in_flight:
        row = [shown(rate_of(rounds[name][clients])) if clients in rounds[name] else "" for name in names]
        last = rounds[names[-1]][clients]
        first = [statistics.median(figures[key] for figures in last) for key in ("ttfb_p50_s", "ttfb_p95_s")]
        table.add_row(str(clients), *row, " / ".join(f"{value:.2f}" for value in first))
    return table


def rate_of(figures: list[dict[str, Any]]) -> dict[str, float | int]:
    """Returns the spread of the seconds of audio per second."""
    return spread([turn["audio_s_per_s"] for turn in figures])


def best_batch(rounds: Rounds) -> str:
    """Returns the name of the static batches with the highest rate."""
    sizes = [name for name in rounds if kind(name) == STATIC]
    return max(sizes, key=lambda name: rate_of(rounds[name][CROWD])["median"])


def lengths_of(bench: Bench) -> dict[str, float]:
    """Returns the distribution from which the lengths were drawn."""
    lengths = bench.options.lengths
    return {name: getattr(lengths, name) for name in lengths.__slots__}
