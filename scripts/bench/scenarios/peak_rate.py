"""Peak rate: the requests per second that one system can answer, measured once per run. Open loads are stated as parts of it.

In:    a Bench, a system
Out:   requests per second
Owns:  nothing
Never: a table
"""

from scripts.bench.bench import Bench
from scripts.bench.load import Load
from scripts.bench.systems import System
from scripts.bench.timeline import audio_rate
from scripts.bench.workload import utterances

CLIENTS = 8


def requests_per_second(bench: Bench, system: System) -> float:
    """Returns the requests per second, of the run's lengths, that a system answers with eight always in flight."""
    if system.name not in bench.peak_rates:
        bench.progress(f"peak rate of {system.name}")
        count = CLIENTS * (2 if bench.options.quick else 4)
        asked = utterances(count + CLIENTS, bench.options.lengths, bench.options.seed, "pace")
        lines = bench.run(system, Load(tuple(asked), clients=CLIENTS, completions=count))
        received = [line.audio_s or line.received_s for line in lines if line.complete]
        bench.peak_rates[system.name] = audio_rate(lines, count) / (sum(received) / len(received))
    return bench.peak_rates[system.name]
