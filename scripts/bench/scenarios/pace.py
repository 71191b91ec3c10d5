"""Pace: what one system can do at all, measured once a run: open loads are stated as parts of it."""

from scripts.bench.bench import Bench
from scripts.bench.load import Load
from scripts.bench.systems import System
from scripts.bench.timeline import audio_rate
from scripts.bench.workload import utterances

CLIENTS = 8


def requests_per_second(bench: Bench, system: System) -> float:
    """How many requests of the run's lengths a second the system answers, with eight always in flight."""
    if system.name not in bench.paces:
        bench.say(f"how much {system.name} can do at all")
        count = CLIENTS * (2 if bench.options.quick else 4)
        asked = utterances(count + CLIENTS, bench.options.lengths, bench.options.seed, "pace")
        lines = bench.run(system, Load(tuple(asked), clients=CLIENTS, completions=count))
        heard = [line.audio_s or line.heard_s for line in lines if line.complete]
        bench.paces[system.name] = audio_rate(lines, count) / (sum(heard) / len(heard))
    return bench.paces[system.name]
