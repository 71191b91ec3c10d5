"""B8, determinism: the same text and seed are the same bytes, whatever else runs, in every number format there is.

Each utterance alone and streamed is the reference; buffered, in changing crowds, and from another process it has to have the
same MD5.
"""

from dataclasses import replace
from typing import Any

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.load import Load
from scripts.bench.settings import Settings
from scripts.bench.systems import System
from scripts.bench.timeline import spread
from scripts.bench.workload import Utterance, random_of, utterances

CROWD = 8
FORMATS = {
    "float32": ("float32", "dtype", "dtype"),
    "bfloat16": ("bfloat16", "dtype", "dtype"),
    "int8 weights": ("bfloat16", "int8", "dtype"),
    "int8 weights, keys and values": ("bfloat16", "int8", "int8"),
}
"""engine.dtype, engine.weights and engine.kv"""


def run(bench: Bench) -> Report:
    """Every number format the engine offers."""
    quick = bench.options.quick
    watched = utterances(3 if quick else 8, bench.options.lengths, bench.options.seed, "b8")
    others = utterances(CROWD if quick else 2 * CROWD, bench.options.lengths, bench.options.seed, "b8", "others")
    rows: dict[str, dict[str, float]] = {}
    for name, number_format in FORMATS.items():
        settings = with_format(bench.options.settings, *number_format)
        bench.say(f"{name}, alone")
        bench.systems.drop("P0")
        # Two services of full size are slow to start: the shorter run looks at the one that is there already.
        served = not quick or number_format == (bench.options.dtype, bench.options.weights, bench.options.kv)
        first = bench.service(settings) if served else bench.ours(settings)
        reference = {one.text: bench.alone(first, one).md5 for one in watched}
        row = {"buffered": matches(reference, {one.text: bench.alone(first, one, streamed=False).md5 for one in watched})}
        crowds = [crowd(bench, first, watched, others, turn, name) for turn in range(1 if quick else 8)]
        row["in changing crowds"] = sum(matches(reference, found) for found in crowds) / len(crowds)
        bench.say(f"{name}, another process")
        if served:
            second: System = bench.ours(settings)
        else:
            bench.systems.drop("P0")
            second = bench.ours(settings)
        row["another process"] = matches(reference, {one.text: bench.alone(second, one).md5 for one in watched})
        if not quick:
            bench.say(f"{name}, after a restart")
            bench.systems.drop("P")
            again = bench.service(settings)
            row["after a restart"] = matches(reference, {one.text: bench.alone(again, one).md5 for one in watched})
        rows[name] = row
    columns = list(next(iter(rows.values())))
    table = Table("", *columns, title="B8  the same bytes, part of all comparisons")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[column]:.0%}" for column in columns))
    equality = [value for row in rows.values() for value in row.values()]
    figures = {"same_seed_equality": spread([min(equality)])}
    return Report({"utterances": len(watched), "equal": rows}, [table], figures)


def with_format(settings: Settings, dtype: str, weights: str, kv: str) -> Settings:
    """The same service with another number format."""
    engine = {"dtype": dtype, "weights": weights, "kv": kv}
    number_format: dict[str, Any] = {f"pipeline.engine.{key}": value for key, value in engine.items()}
    return replace(settings, changes=settings.changes | number_format)


def crowd(
    bench: Bench, system: System, watched: list[Utterance], others: list[Utterance], turn: int, name: str
) -> dict[str, str]:
    """The watched ones among others, in an order of this turn's own, eight in flight."""
    bench.say(f"{name}, crowd {turn + 1}")
    together = [*watched, *others]
    order = random_of(bench.options.seed, "b8", turn).permutation(len(together))
    shuffled = [together[place] for place in order]
    lines = bench.run(system, Load(tuple(shuffled), clients=CROWD))
    found = {shuffled[line.index].text: line.md5 for line in lines}
    return {one.text: found[one.text] for one in watched}


def matches(reference: dict[str, str], found: dict[str, str]) -> float:
    """Part of the utterances with the reference's bytes."""
    return sum(found[text] == md5 for text, md5 in reference.items()) / len(reference)
