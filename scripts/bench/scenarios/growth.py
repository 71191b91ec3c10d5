"""B7, growth: the real-time factor of a stream by its length. If the work is proportional to the audio, it does not grow.

In:    a Bench
Out:   a Report
Owns:  nothing
Never: more than one request at a time
"""

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.names import SERVICE, UPSTREAM, label
from scripts.bench.show import shown
from scripts.bench.timeline import spread

SHORT_S, LONG_S = 5.0, 25.0
UPSTREAM_S = (5.0, 10.0)


def run(bench: Bench) -> Report:
    """Requests streams of growing length."""
    quick = bench.options.quick
    lengths = (SHORT_S, LONG_S) if quick else (SHORT_S, 10.0, 15.0, LONG_S)
    factors: dict[float, list[float]] = {length: [] for length in lengths}
    system = bench.system(SERVICE)
    for turn in range(bench.options.repeats):
        for length in lengths if turn % 2 == 0 else reversed(lengths):
            bench.progress(f"{SERVICE}, {length:g} s of audio, round {turn + 1}")
            factors[length].append(bench.alone(system, bench.utterance(length, turn)).rtf)
    growth = spread([long / short for long, short in zip(factors[LONG_S], factors[SHORT_S], strict=True)])
    rtf = {SERVICE: {length: spread(values) for length, values in factors.items()}}
    if not quick:
        rtf[UPSTREAM] = {}
        upstream = bench.system(UPSTREAM)
        for length in UPSTREAM_S:
            bench.progress(f"{UPSTREAM}, {length:g} s of audio")
            rtf[UPSTREAM][length] = spread([bench.alone(upstream, bench.utterance(length, UPSTREAM)).rtf])
    columns = (f"{label(name)}: RTF" for name in (SERVICE, UPSTREAM))
    table = Table("seconds of audio", *columns, title="B7  growth with length, streamed")
    for length in lengths:
        upstream_rtf = rtf.get(UPSTREAM, {}).get(length)
        table.add_row(f"{length:g}", shown(rtf[SERVICE][length]), shown(upstream_rtf) if upstream_rtf else "")
    table.add_row(f"{LONG_S:g} s / {SHORT_S:g} s", shown(growth), "")
    return Report({"rtf": rtf, "growth": growth}, [table], {"rtf_growth": growth})
