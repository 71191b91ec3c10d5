"""B16, fewer bits: a decode step of one row, and of eight, with weights of 4 bits beside weights of 8.

Both engines decode the same texts in turns, each in a process of its own that sleeps while the other works.

In:    a Bench
Out:   a Report
Owns:  nothing
Never: the ChatTTS package, how the audio sounds (scripts/evaluate)
"""

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.names import IN_PROCESS
from scripts.bench.scenarios.determinism import with_format
from scripts.bench.scenarios.single import ROWS
from scripts.bench.show import shown
from scripts.bench.timeline import spread

FORMATS = ("int8", "int4")
RATIO = "int4/int8"
TURNS = 4
"""for each of the usual repeats: a turn takes a second, and a busy machine disturbs some of them"""


def run(bench: Bench) -> Report:
    """Measures both formats in turns."""
    table = Table("", *FORMATS, RATIO, title="B16  milliseconds per decode step, by the weights")
    result = {f"decode_{rows}": measure(bench, rows, table) for rows in ROWS}
    for name in FORMATS:
        bench.systems.drop(f"{IN_PROCESS} {name}")
    return Report(result, [table], {"step_int4_over_int8": result["decode_1"][RATIO]})


def measure(bench: Bench, rows: int, table: Table) -> dict[str, dict[str, float | int]]:
    """Returns the time of a step with this many rows [ms], format by format, and their ratio turn by turn."""
    options, taken = bench.options, {name: list[float]() for name in FORMATS}
    batch = [bench.utterance(2.0 if options.quick else 4.0, "decode", row) for row in range(rows)]
    for turn, name in bench.turns(FORMATS, TURNS * options.repeats):
        engine = bench.in_process(with_format(options.settings, "bfloat16", name, options.kv), beside=f" {name}")
        bench.progress(f"{IN_PROCESS}, {name} weights, decode loop of {rows}, turn {turn + 1}")
        taken[name].append(1e3 * engine.call("decode", batch) / batch[0].steps)
    of_each = {name: spread(values) for name, values in taken.items()}
    ratio = spread([four / eight for eight, four in zip(*taken.values(), strict=True)])
    table.add_row(f"{rows} row{'s' * (rows > 1)}", *(shown(of_each[name]) for name in FORMATS), shown(ratio))
    return {**of_each, RATIO: ratio}
