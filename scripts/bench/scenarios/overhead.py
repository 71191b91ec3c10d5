"""Overhead: what Serve adds to the same speech without it, and what the processes around the model cost.

B10 uses the demo checkpoint, whose steps take a few milliseconds, so that everything else shows. "Added" is the service's
time to first audio less that of the same engine in one process, round by round. The round trip alone is GET /live, which
does no work.

B13 uses small-random, whose model costs next to nothing, so what remains are messages, queues and HTTP. The rows of `this
engine, without Serve` are the model's own part. Audio is sent as fast as it is made, to listeners in a closed loop.

In:    a Bench
Out:   Reports of B10 and B13
Never: the real dimensions
"""

import time
from dataclasses import replace
from typing import Any

import requests
from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.client import SPEECH, wait_until_idle
from scripts.bench.names import IN_PROCESS, SERVICE, TWO_INGRESS, label
from scripts.bench.processes import by_kind, cpu_s
from scripts.bench.settings import Settings
from scripts.bench.systems import Served, System
from scripts.bench.timeline import REFUSALS, audio_rate, latency, percentile, shown, spread, spreads
from scripts.bench.workload import Load, Utterance
from serve.config.config_file import PROCESS

SPOKEN_S = 2.0
LONG_S = 20.0
ROUND_TRIPS = 200
CROWD = 8
PROBES, PROBE_EVERY_S = 20, 0.05

CHECKPOINT = "small-random"
SERVICES = ("separate", "with_acoustic", TWO_INGRESS, PROCESS)
LISTENERS = (1, 16, 64, 256)
QUICK_LISTENERS = (1, 16, 64)
UTTERANCE_S = 5.0
SLOTS = 256

PathFigures = dict[str, dict[str, list[float]]]
"""`in_process` or a data path -> figure -> its value in each round"""
ListenerFigures = dict[str, dict[int, list[dict[str, float]]]]
"""system -> listeners -> the figures of each round"""


def serve(bench: Bench) -> Report:
    """B10, the overhead of Serve: the engine alone and the service in turns, on each data path.

    The last path is one process, without Serve. A quick run, or one on the plain path, has one of Serve's paths only.
    """
    count = 20 if bench.options.quick else 40
    serves = (bench.options.path,) if bench.options.quick or bench.options.path == "plain" else ("fast", "plain")
    paths = (*serves, PROCESS)
    rounds: PathFigures = {}
    for path in paths:
        compare_path(bench, path, count, rounds)
    figures = {name: {figure: spread(values) for figure, values in row.items()} for name, row in rounds.items()}
    table = Table("", label(IN_PROCESS), *paths, title="B10  the overhead of Serve, demo checkpoint")
    for figure, (text, scale) in LABELS.items():
        rows = [figures[name] for name in (IN_PROCESS, *paths)]
        table.add_row(text, *(shown(scaled(row[figure], scale)) if figure in row else "" for row in rows))
    added = {"added_by_serve_ms": paths[0], "added_by_process_ms": PROCESS}
    judged = {figure: scaled(figures[path]["added_ttfb_p50_s"], 1e3) for figure, path in added.items()}
    return Report({"systems": figures, "requests_per_round": count}, [table], judged)


LABELS = {
    "ttfb_p50_s": ("first audio p50 (ms)", 1e3),
    "ttfb_p95_s": ("first audio p95 (ms)", 1e3),
    "ttfb_p99_s": ("first audio p99 (ms)", 1e3),
    "added_ttfb_p50_s": ("added, p50 (ms)", 1e3),
    "added_ttfb_p99_s": ("added, p99 (ms)", 1e3),
    "hop_p50_s": ("a request that does no work, p50 (ms)", 1e3),
    "hop_p99_s": ("a request that does no work, p99 (ms)", 1e3),
    "ttfb_crowd_p50_s": (f"first audio, {CROWD} clients, p50 (ms)", 1e3),
    "audio_s_per_s": (f"audio s per s, {CROWD} clients", 1.0),
    "refusal_p50_s": ("refusal while full p50 (ms)", 1e3),
    "refusal_max_s": ("refusal while full, slowest (ms)", 1e3),
    "slots_free_s": ("slots free after a client disconnects (ms)", 1e3),
}


def compare_path(bench: Bench, path: str, count: int, rounds: PathFigures) -> None:
    """Measures the service on one data path and the engine alone in turns, and adds their figures to `rounds`."""
    settings = replace(bench.options.demo_settings, path=path)
    for turn, name in bench.turns((IN_PROCESS, SERVICE)):
        system: System = bench.in_process(settings) if name == IN_PROCESS else bench.service(settings)
        bench.progress(f"{name}, {path} path, round {turn + 1}")
        utterances = [bench.utterance(SPOKEN_S, path, turn, number) for number in range(count)]
        times = latency(bench.run(system, Load(tuple(utterances), clients=1)))
        key = IN_PROCESS if name == IN_PROCESS else path
        for figure in ("ttfb_p50_s", "ttfb_p95_s", "ttfb_p99_s"):
            rounds.setdefault(key, {}).setdefault(figure, []).append(times[figure])
        if isinstance(system, Served):
            for figure, value in measure_path(bench, system, path, turn).items():
                rounds[path].setdefault(figure, []).append(value)
    for figure in ("ttfb_p50_s", "ttfb_p99_s"):
        pairs = zip(rounds[path][figure], rounds[IN_PROCESS][figure][-bench.options.repeats :], strict=True)
        rounds[path][f"added_{figure}"] = [served - bare for served, bare in pairs]


def measure_path(bench: Bench, served: Served, path: str, turn: int) -> dict[str, float]:
    """Returns the figures of a data path that one request alone does not show."""
    round_trips = measure_round_trips(served.endpoint.url)
    crowd = [bench.utterance(SPOKEN_S, path, turn, "crowd", number) for number in range(4 * CROWD)]
    lines = bench.run(served, Load(tuple(crowd), clients=CROWD))
    refusals = measure_refusals(bench, served, bench.utterance(LONG_S, path, turn, "long"))
    return {
        "hop_p50_s": percentile(round_trips, 50),
        "hop_p99_s": percentile(round_trips, 99),
        "ttfb_crowd_p50_s": latency(lines)["ttfb_p50_s"],
        "audio_s_per_s": audio_rate(lines, len(crowd)),
        "refusal_p50_s": percentile(refusals, 50),
        "refusal_max_s": max(refusals),
        "slots_free_s": measure_disconnect(served, bench.utterance(LONG_S, path, turn, "leave")),
    }


def measure_round_trips(url: str) -> list[float]:
    """Returns the seconds of requests that do no work, after the first tenth of them."""
    times = []
    with requests.Session() as session:
        for _ in range(ROUND_TRIPS):
            began = time.perf_counter()
            session.get(f"{url}/live", timeout=10).raise_for_status()
            times.append(time.perf_counter() - began)
    return times[ROUND_TRIPS // 10 :]


def measure_refusals(bench: Bench, served: Served, long: Utterance) -> list[float]:
    """Returns the seconds until a request is refused while the service is at capacity."""
    capacity = served.health()["admission"]["capacity"]
    arrivals_s = [0.0] * capacity + [1.0 + PROBE_EVERY_S * number for number in range(PROBES)]
    utterances = tuple(replace(long, seed=seed) for seed in range(len(arrivals_s)))
    lines = bench.run(served, Load(utterances, arrivals_s=tuple(arrivals_s), completions=1))
    refusals_s = [line.ttfb_s for line in lines if line.index >= capacity and line.status in REFUSALS]
    assert len(refusals_s) >= PROBES / 2, f"only {len(refusals_s)} of {PROBES} were refused: the service was not at capacity"
    return refusals_s


def measure_disconnect(served: Served, long: Utterance) -> float:
    """Returns the seconds from a disconnect until no slot is taken."""
    wait_until_idle(served.endpoint.url)
    body = {"input": long.text, "response_format": "pcm"}
    with requests.post(served.endpoint.url + SPEECH, json=body, stream=True, timeout=120) as reply:
        next(reply.iter_content(chunk_size=None))
    return wait_until_idle(served.endpoint.url)


def scaled(values: dict[str, float | int], scale: float) -> dict[str, float | int]:
    """Returns a spread in another unit."""
    return {key: value if key == "n" else value * scale for key, value in values.items()}


def around_the_model(bench: Bench) -> Report:
    """B13, the overhead: what a second of audio costs in the processes around the model.

    By where the vocoder sits, and by how many replicas the ingress has.
    """
    listeners = QUICK_LISTENERS if bench.options.quick else LISTENERS
    rounds: ListenerFigures = {}
    for turn, name in bench.turns((*SERVICES, IN_PROCESS)):
        settings = settings_of(bench, name)  # the service's ports allow one at a time: the other one ends
        system: System = bench.in_process(settings) if name == IN_PROCESS else bench.service(settings)
        for count in listeners:
            bench.progress(f"{name}, {count} listeners, round {turn + 1}")
            figures = measure_listeners(bench, system, count, turn)
            rounds.setdefault(name, {}).setdefault(count, []).append(figures)
    most = listeners[-1]
    costs = {name: [figures["core_ms"] for figures in rounds[name][most]] for name in rounds}
    costs_around = {
        name: spread([ours - model for ours, model in zip(costs[name], costs[IN_PROCESS], strict=True)]) for name in SERVICES
    }
    summary = {name: {str(count): spreads(turns) for count, turns in loads.items()} for name, loads in rounds.items()}
    result: dict[str, Any] = {"systems": summary, "house_core_ms": costs_around, "listeners": most}
    judged = {"house_core_ms": costs_around["with_acoustic"], "process_core_ms": costs_around[PROCESS]}
    return Report(result, [table_of(summary, most)], judged)


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
        placements = ("separate", "separate") if name == "separate" else ("with_acoustic", "ingress")
        changes["pipeline.vocoder.placement"], changes["text.placement"] = placements
    replicas = {"Ingress": 2} if name == TWO_INGRESS else {}
    settings = bench.options.demo_settings
    path = PROCESS if name == PROCESS else settings.path
    return replace(settings, checkpoint=CHECKPOINT, path=path, changes=changes, replicas=replicas, waiting_calls=4 * SLOTS)


def measure_listeners(bench: Bench, system: System, listeners: int, turn: int) -> dict[str, float]:
    """Returns the figures of one round."""
    utterances = tuple(bench.utterance(UTTERANCE_S, turn, listeners, number) for number in range(max(8, 4 * listeners)))
    before = cpu_of(system)
    lines = bench.run(system, Load(utterances, clients=listeners))
    audio_s = sum(line.received_s for line in lines)
    spent = {kind: 1e3 * max(0.0, after - before.get(kind, 0.0)) / audio_s for kind, after in cpu_of(system).items()}
    times = latency(lines)
    return {
        "audio_s_per_s": audio_rate(lines, len(utterances)),
        "ttfb_p50_s": times["ttfb_p50_s"],
        "ttfb_p95_s": times["ttfb_p95_s"],
        "pieces_per_audio_s": sum(len(line.arrivals) for line in lines) / audio_s,
        "core_ms": sum(spent.values()),
        **({f"core_ms_{kind}": value for kind, value in spent.items()} if isinstance(system, Served) else {}),
    }


def cpu_of(system: System) -> dict[str, float]:
    """Returns the processor time of a system by kind of process [s]."""
    return {kind: sum(map(cpu_s, processes)) for kind, processes in by_kind(system.processes()).items()}


def table_of(summary: dict[str, Any], most: int) -> Table:
    """Returns the figures at the most listeners; those of the processes in core-milliseconds a second of audio."""
    names = list(summary)
    columns = (label(name) if name == IN_PROCESS else name for name in names)
    table = Table(f"{most} listeners", *columns, title="B13  overhead of the service")
    figures = dict.fromkeys(figure for name in names for figure in summary[name][str(most)])
    for figure in figures:
        measured = (summary[name][str(most)].get(figure) for name in names)
        table.add_row(figure, *("" if values is None else shown(values) for values in measured))
    return table
