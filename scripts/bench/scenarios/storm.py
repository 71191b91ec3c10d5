"""B9, a storm of disconnects: half of the listeners hang up in the middle, again and again.

Their slots have to be free at once, and those who stay have to get everything they would have got without the storm.
"""

from dataclasses import replace

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.load import Load
from scripts.bench.scenarios.hop import measure_leave, wait_until_idle
from scripts.bench.show import shown
from scripts.bench.timeline import Timeline, latency, spread
from scripts.bench.workload import utterances

CLIENTS = 8
HEARD = 0.3


def run(bench: Bench) -> Report:
    """The same utterances with and without leavers."""
    quick = bench.options.quick
    served = bench.service(bench.options.settings)
    asked = utterances(2 * CLIENTS if quick else 8 * CLIENTS, bench.options.lengths, bench.options.seed, "b9")
    leaving = [replace(one, leaves_after=HEARD) if number % 2 else one for number, one in enumerate(asked)]
    bench.say("nobody leaves")
    calm = bench.run(served, Load(tuple(asked), clients=CLIENTS))
    bench.say("half of the listeners leave")
    storm = bench.run(served, Load(tuple(leaving), clients=CLIENTS))
    idle_s = wait_until_idle(served)
    expected = {line.index: line.md5 for line in calm}
    stayed = [line for line in storm if asked[line.index] is leaving[line.index]]
    whole = sum(line.md5 == expected[line.index] for line in stayed) / len(stayed)
    reclaimed = []
    for turn in range(bench.options.repeats):
        bench.say(f"one leaves, round {turn + 1}")
        reclaimed.append(1e3 * measure_leave(served, bench.utterance(5.0, "leaves", turn)))
    rates = {name: throughput(lines) for name, lines in (("calm", calm), ("storm", storm))}
    first = {name: latency(lines)["ttfb_p95_s"] for name, lines in (("calm", calm), ("storm", storm))}
    slots_free = spread(reclaimed)
    result = {
        "requests": len(asked),
        "left": sum(line.left for line in storm),
        "stayed_with_the_same_bytes": whole,
        "audio_s_per_s": rates,
        "ttfb_p95_s": first,
        "idle_after_the_storm_s": idle_s,
        "slots_free_ms": slots_free,
    }
    table = Table("", "calm", "storm", title="B9  half of the listeners hang up")
    table.add_row("audio seconds a second", *(f"{rate:.2f}" for rate in rates.values()))
    table.add_row("first audio p95 (s)", *(f"{value:.2f}" for value in first.values()))
    table.add_row("those who stay: same bytes", "", f"{whole:.0%}")
    table.add_row("slots free after one leaves (ms)", "", shown(slots_free))
    return Report(result, [table])


def throughput(lines: list[Timeline]) -> float:
    """Audio heard a second, whoever left included."""
    return sum(line.heard_s for line in lines) / max(line.ended_s for line in lines)
