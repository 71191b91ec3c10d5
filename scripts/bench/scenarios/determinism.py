"""B8, determinism: the same text and seed give the same bytes in every number format, whatever else runs.

The reference is the MD5 of each utterance alone and streamed. It must be the same when the reply is sent whole, in changing
crowds, and from another process.

In:    a Bench
Out:   a Report
Owns:  nothing
Never: the ChatTTS package, which makes no such promise
"""

from dataclasses import replace
from typing import Any

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.load import Load
from scripts.bench.names import IN_PROCESS, SERVICE
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
    "int4 weights, int8 keys and values": ("bfloat16", "int4", "int8"),
}
"""engine.dtype, engine.weights and engine.kv"""


def run(bench: Bench) -> Report:
    """Compares bytes in every number format that the engine offers."""
    quick = bench.options.quick
    watched = utterances(3 if quick else 8, bench.options.lengths, bench.options.seed, "b8")
    others = utterances(CROWD if quick else 2 * CROWD, bench.options.lengths, bench.options.seed, "b8", "others")
    rows = {name: compare_format(bench, name, number_format, watched, others) for name, number_format in FORMATS.items()}
    columns = list(next(iter(rows.values())))
    table = Table("", *columns, title="B8  equal bytes, share of all comparisons")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[column]:.0%}" for column in columns))
    equality = [value for row in rows.values() for value in row.values()]
    figures = {"same_seed_equality": spread([min(equality)])}
    return Report({"utterances": len(watched), "equal": rows}, [table], figures)


def compare_format(
    bench: Bench, name: str, number_format: tuple[str, str, str], watched: list[Utterance], others: list[Utterance]
) -> dict[str, float]:
    """Returns the share of equal replies per situation, in one number format."""
    options = bench.options
    settings = with_format(options.settings, *number_format)
    bench.progress(f"{name}, alone")
    bench.systems.drop(IN_PROCESS)
    # Two services of full size are slow to start: the shorter run uses the service in the format that is running already.
    served = not options.quick or number_format == (options.dtype, options.weights, options.kv)
    first = bench.service(settings) if served else bench.in_process(settings)
    reference = checksums(bench, first, watched)
    row = {"buffered": matches(reference, checksums(bench, first, watched, streamed=False))}
    crowds = [crowd(bench, first, watched, others, turn, name) for turn in range(1 if options.quick else 8)]
    row["in changing crowds"] = sum(matches(reference, found) for found in crowds) / len(crowds)
    bench.progress(f"{name}, another process")
    if not served:
        bench.systems.drop(IN_PROCESS)
    row["another process"] = matches(reference, checksums(bench, bench.in_process(settings), watched))
    if not options.quick:
        bench.progress(f"{name}, after a restart")
        bench.systems.drop(SERVICE)
        row["after a restart"] = matches(reference, checksums(bench, bench.service(settings), watched))
    return row


def with_format(settings: Settings, dtype: str, weights: str, kv: str) -> Settings:
    """Returns the same settings with another number format."""
    engine = {"dtype": dtype, "weights": weights, "kv": kv}
    number_format: dict[str, Any] = {f"pipeline.engine.{key}": value for key, value in engine.items()}
    return replace(settings, changes=settings.changes | number_format)


def checksums(bench: Bench, system: System, watched: list[Utterance], *, streamed: bool = True) -> dict[str, str]:
    """Returns the MD5 of each text's reply, requested alone."""
    return {one.text: bench.alone(system, one, streamed=streamed).md5 for one in watched}


def crowd(
    bench: Bench, system: System, watched: list[Utterance], others: list[Utterance], turn: int, name: str
) -> dict[str, str]:
    """Returns the MD5 of each watched text's reply, requested among others in an order of this turn, eight in flight."""
    bench.progress(f"{name}, crowd {turn + 1}")
    together = [*watched, *others]
    order = random_of(bench.options.seed, "b8", turn).permutation(len(together))
    shuffled = [together[place] for place in order]
    lines = bench.run(system, Load(tuple(shuffled), clients=CROWD))
    found = {shuffled[line.index].text: line.md5 for line in lines}
    return {one.text: found[one.text] for one in watched}


def matches(reference: dict[str, str], found: dict[str, str]) -> float:
    """Returns the share of utterances that have the reference's bytes."""
    return sum(found[text] == md5 for text, md5 in reference.items()) / len(reference)
