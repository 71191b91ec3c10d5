"""B7, growth: the real-time factor of a stream over its length. Work in proportion to the audio has none."""

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.show import shown
from scripts.bench.timeline import spread

SHORT_S, LONG_S = 5.0, 25.0
UPSTREAM_S = (5.0, 10.0)


def run(bench: Bench) -> Report:
    """Streams of growing length."""
    quick = bench.options.quick
    lengths = (SHORT_S, LONG_S) if quick else (SHORT_S, 10.0, 15.0, LONG_S)
    factors: dict[float, list[float]] = {length: [] for length in lengths}
    system = bench.speaker("P")
    for turn in range(bench.options.repeats):
        for length in lengths if turn % 2 == 0 else reversed(lengths):
            bench.say(f"P, {length:g} s of audio, round {turn + 1}")
            factors[length].append(bench.alone(system, bench.utterance(length, turn)).rtf)
    growth = spread([long / short for long, short in zip(factors[LONG_S], factors[SHORT_S], strict=True)])
    rtf = {"P": {length: spread(values) for length, values in factors.items()}}
    if not quick:
        rtf["U"] = {}
        upstream = bench.speaker("U")
        for length in UPSTREAM_S:
            bench.say(f"U, {length:g} s of audio")
            rtf["U"][length] = spread([bench.alone(upstream, bench.utterance(length, "U")).rtf])
    table = Table("seconds of audio", "P: RTF", "U: RTF", title="B7  growth with length, streamed")
    for length in lengths:
        upstream_rtf = rtf.get("U", {}).get(length)
        table.add_row(f"{length:g}", shown(rtf["P"][length]), shown(upstream_rtf) if upstream_rtf else "")
    table.add_row(f"{LONG_S:g} s / {SHORT_S:g} s", shown(growth), "")
    return Report({"rtf": rtf, "growth": growth}, [table], {"rtf_growth": growth})
