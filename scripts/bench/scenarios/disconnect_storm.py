"""B9, a storm of disconnects: half of the clients disconnect in the middle of their streams.

Their slots must be free at once, and the other clients must get the bytes that they get without the storm.

In:    a Bench
Out:   a Report
Owns:  nothing
Never: a client that disconnects before its first audio
"""

from dataclasses import replace

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.load import Load
from scripts.bench.scenarios.serve_overhead import measure_disconnect, wait_until_idle
from scripts.bench.show import shown
from scripts.bench.timeline import Timeline, latency, spread
from scripts.bench.workload import utterances

CLIENTS = 8
RECEIVED_SHARE = 0.3
"""part of the audio after which a client disconnects"""


def run(bench: Bench) -> Report:
    """Requests the same utterances with and without disconnects."""
    quick = bench.options.quick
    served = bench.service(bench.options.settings)
    asked = utterances(2 * CLIENTS if quick else 8 * CLIENTS, bench.options.lengths, bench.options.seed, "b9")
    leaving = [replace(one, leaves_after=RECEIVED_SHARE) if number % 2 else one for number, one in enumerate(asked)]
    bench.progress("no client disconnects")
    calm = bench.run(served, Load(tuple(asked), clients=CLIENTS))
    bench.progress("half of the clients disconnect")
    storm = bench.run(served, Load(tuple(leaving), clients=CLIENTS))
    idle_s = wait_until_idle(served)
    expected = {line.index: line.md5 for line in calm}
    stayed = [line for line in storm if asked[line.index] is leaving[line.index]]
    whole = sum(line.md5 == expected[line.index] for line in stayed) / len(stayed)
    freed_ms = []
    for turn in range(bench.options.repeats):
        bench.progress(f"one client disconnects, round {turn + 1}")
        freed_ms.append(1e3 * measure_disconnect(served, bench.utterance(5.0, "leaves", turn)))
    rates = {name: throughput(lines) for name, lines in (("calm", calm), ("storm", storm))}
    first = {name: latency(lines)["ttfb_p95_s"] for name, lines in (("calm", calm), ("storm", storm))}
    slots_free = spread(freed_ms)
    result = {
        "requests": len(asked),
        "left": sum(line.left for line in storm),
        "same_bytes_of_the_others": whole,
        "audio_s_per_s": rates,
        "ttfb_p95_s": first,
        "idle_after_the_storm_s": idle_s,
        "slots_free_ms": slots_free,
    }
    table = Table("", "calm", "storm", title="B9  half of the clients disconnect")
    table.add_row("audio s per s", *(f"{rate:.2f}" for rate in rates.values()))
    table.add_row("first audio p95 (s)", *(f"{value:.2f}" for value in first.values()))
    table.add_row("the other clients: same bytes", "", f"{whole:.0%}")
    table.add_row("slots free after one disconnects (ms)", "", shown(slots_free))
    return Report(result, [table])


def throughput(lines: list[Timeline]) -> float:
    """Returns the seconds of audio received per second, those of disconnected clients included."""
    return sum(line.received_s for line in lines) / max(line.ended_s for line in lines)
