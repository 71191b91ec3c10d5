"""B13, the house alone: what a second of audio costs in the processes around the model, by where the vocoder sits and by how
many replicas the ingress has.

The checkpoint is small-random, whose model costs next to nothing, so what remains are messages, queues and HTTP. The rows of
`this engine, without Serve` are the model's own part. Audio is sent as fast as it is made, to listeners in a closed loop.

In:    a Bench
Out:   a Report
Owns:  nothing
Never: the real dimensions
"""

from dataclasses import replace
from typing import Any

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.load import Load
from scripts.bench.names import IN_PROCESS, TWO_INGRESS, label
from scripts.bench.processes import cpu_s, kind_of, title
from scripts.bench.settings import Settings
from scripts.bench.show import shown
from scripts.bench.systems import Served, System
from scripts.bench.timeline import audio_rate, latency, spread

CHECKPOINT = "small-random"
SERVICES = ("separate", "with_acoustic", TWO_INGRESS)
LISTENERS = (1, 16, 64, 256)
QUICK_LISTENERS = (1, 16, 64)
SPOKEN_S = 5.0
SLOTS = 256

Figures = dict[str, dict[int, dict[str, list[float]]]]
"""system -> listeners -> figure -> its value in each round"""


def run(bench: Bench) -> Report:
    """Measures the service with the vocoder in either place, and the engine alone, in turns."""
    listeners = QUICK_LISTENERS if bench.options.quick else LISTENERS
    found: Figures = {}
    for turn, name in bench.turns((*SERVICES, IN_PROCESS)):
        system = awake(bench, name)
        for count in listeners:
            bench.progress(f"{name}, {count} listeners, round {turn + 1}")
            for figure, value in measure(bench, system, count, turn).items():
                found.setdefault(name, {}).setdefault(count, {}).setdefault(figure, []).append(value)
    most = listeners[-1]
    costs = {name: found[name][most]["core_ms"] for name in found}
    house = {
        name: spread([ours - model for ours, model in zip(costs[name], costs[IN_PROCESS], strict=True)]) for name in SERVICES
    }
    summary = {
        name: {str(count): {figure: spread(values) for figure, values in them.items()} for count, them in counts.items()}
        for name, counts in found.items()
    }
    result: dict[str, Any] = {"systems": summary, "house_core_ms": house, "listeners": most}
    return Report(result, [table_of(summary, most)], {"house_core_ms": house["with_acoustic"]})


def awake(bench: Bench, name: str) -> System:
    """Returns the service with its vocoder in that place, or the engine alone, awake."""
    settings = settings_of(bench, name)
    if name == IN_PROCESS:
        return bench.in_process(settings)
    return bench.service(settings)  # its ports allow one service at a time: the other one ends


def settings_of(bench: Bench, name: str) -> Settings:
    """Returns the settings of one system: enough slots and places for every listener."""
    changes: dict[str, Any] = {
        "pipeline.engine.slots": SLOTS,
        "pipeline.engine.max_waiting": SLOTS // 2,
        "pipeline.speech.parallel_segments": 1,  # so that all of it fits the limits of configs/dev.yaml
        "limits.max_in_flight": 2 * SLOTS,
        **{f"lanes.{lane}_timeout_s": 600.0 for lane in ("interactive", "bulk")},
    }
    if name != IN_PROCESS:
        changes["pipeline.vocoder.placement"] = "separate" if name == "separate" else "with_acoustic"
    replicas = {"Ingress": 2} if name == TWO_INGRESS else {}
    return replace(
        bench.options.demo_settings, checkpoint=CHECKPOINT, changes=changes, replicas=replicas, waiting_calls=4 * SLOTS
    )


def measure(bench: Bench, system: System, listeners: int, turn: int) -> dict[str, float]:
    """Returns the figures of one round."""
    asked = tuple(bench.utterance(SPOKEN_S, turn, listeners, number) for number in range(max(8, 4 * listeners)))
    before = cpu_of(system)
    lines = bench.run(system, Load(asked, clients=listeners))
    audio_s = sum(line.received_s for line in lines)
    spent = {kind: 1e3 * max(0.0, after - before.get(kind, 0.0)) / audio_s for kind, after in cpu_of(system).items()}
    times = latency(lines)
    return {
        "audio_s_per_s": audio_rate(lines, len(asked)),
        "ttfb_p50_s": times["ttfb_p50_s"],
        "ttfb_p95_s": times["ttfb_p95_s"],
        "pieces_per_audio_s": sum(len(line.arrivals) for line in lines) / audio_s,
        "core_ms": sum(spent.values()),
        **({f"core_ms_{kind}": value for kind, value in spent.items()} if isinstance(system, Served) else {}),
    }


def cpu_of(system: System) -> dict[str, float]:
    """Returns the processor time of a system by kind of process [s]."""
    spent: dict[str, float] = {}
    for pid in system.pids():
        kind = kind_of(title(pid))
        spent[kind] = spent.get(kind, 0.0) + cpu_s(pid)
    return spent


def table_of(summary: dict[str, Any], most: int) -> Table:
    """Returns the figures at the most listeners; those of the processes in core-milliseconds a second of audio."""
    names = list(summary)
    columns = (label(name) if name == IN_PROCESS else name for name in names)
    table = Table(f"{most} listeners", *columns, title="B13  the house alone")
    figures = dict.fromkeys(figure for name in names for figure in summary[name][str(most)])
    for figure in figures:
        measured = (summary[name][str(most)].get(figure) for name in names)
        table.add_row(figure, *("" if one is None else shown(one) for one in measured))
    return table
