"""B10, the overhead of Serve: the same speech with and without Serve, and each of Serve's data paths under load.

It uses the demo checkpoint, whose steps take a few milliseconds, so that everything else shows. "Added" is the service's
time to first audio less that of the same engine in one process, round by round. The round trip alone is GET /live, which
does no work.

In:    a Bench
Out:   a Report
Owns:  nothing
Never: the real dimensions
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import requests
from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.load import Load
from scripts.bench.names import IN_PROCESS, SERVICE, label
from scripts.bench.show import shown
from scripts.bench.systems import Served, System
from scripts.bench.timeline import audio_rate, latency, percentile, spread
from scripts.bench.workload import Utterance

SPOKEN_S = 2.0
LONG_S = 20.0
ROUND_TRIPS = 200
CROWD = 8
PROBES = 20

Figures = dict[str, dict[str, list[float]]]
"""`in_process` or a data path -> figure -> its value in each round"""


def run(bench: Bench) -> Report:
    """Measures the engine alone and the service in turns, on both data paths unless the run is quick or on the plain one."""
    each = 20 if bench.options.quick else 40
    paths = (bench.options.path,) if bench.options.quick or bench.options.path == "plain" else ("fast", "plain")
    found: Figures = {}
    for path in paths:
        compare_path(bench, path, each, found)
    figures = {name: {figure: spread(values) for figure, values in them.items()} for name, them in found.items()}
    table = Table("", label(IN_PROCESS), *paths, title="B10  the overhead of Serve, demo checkpoint")
    for figure, (text, scale) in LABELS.items():
        columns = (IN_PROCESS, *paths)
        table.add_row(text, *(shown(scaled(figures[one][figure], scale)) if figure in figures[one] else "" for one in columns))
    judged = {"added_by_serve_ms": scaled(figures[paths[0]]["added_ttfb_p50_s"], 1e3)}
    return Report({"systems": figures, "requests_per_round": each}, [table], judged)


LABELS = {
    "ttfb_p50_s": ("first audio p50 (ms)", 1e3),
    "ttfb_p95_s": ("first audio p95 (ms)", 1e3),
    "ttfb_p99_s": ("first audio p99 (ms)", 1e3),
    "added_ttfb_p50_s": ("added by Serve, p50 (ms)", 1e3),
    "added_ttfb_p99_s": ("added by Serve, p99 (ms)", 1e3),
    "hop_p50_s": ("a request that does no work, p50 (ms)", 1e3),
    "hop_p99_s": ("a request that does no work, p99 (ms)", 1e3),
    "ttfb_crowd_p50_s": (f"first audio, {CROWD} clients, p50 (ms)", 1e3),
    "audio_s_per_s": (f"audio s per s, {CROWD} clients", 1.0),
    "refusal_p50_s": ("refusal while full p50 (ms)", 1e3),
    "refusal_max_s": ("refusal while full, slowest (ms)", 1e3),
    "slots_free_s": ("slots free after a client disconnects (ms)", 1e3),
}


def compare_path(bench: Bench, path: str, each: int, found: Figures) -> None:
    """Measures the service on one data path and the engine alone in turns, and adds their figures to `found`."""
    settings = replace(bench.options.demo_settings, path=path)
    for turn, name in bench.turns((IN_PROCESS, SERVICE)):
        system: System = bench.in_process(settings) if name == IN_PROCESS else bench.service(settings)
        bench.progress(f"{name}, {path} path, round {turn + 1}")
        asked = [bench.utterance(SPOKEN_S, path, turn, number) for number in range(each)]
        times = latency(bench.run(system, Load(tuple(asked), clients=1)))
        key = IN_PROCESS if name == IN_PROCESS else path
        for figure in ("ttfb_p50_s", "ttfb_p95_s", "ttfb_p99_s"):
            found.setdefault(key, {}).setdefault(figure, []).append(times[figure])
        if isinstance(system, Served):
            for figure, value in measure_path(bench, system, path, turn).items():
                found[path].setdefault(figure, []).append(value)
    for figure in ("ttfb_p50_s", "ttfb_p99_s"):
        pairs = zip(found[path][figure], found[IN_PROCESS][figure][-bench.options.repeats :], strict=True)
        found[path][f"added_{figure}"] = [served - bare for served, bare in pairs]


def measure_path(bench: Bench, served: Served, path: str, turn: int) -> dict[str, float]:
    """Returns the figures of a data path that one request alone does not show."""
    round_trips = measure_round_trips(served.endpoint.url)
    crowd = [bench.utterance(SPOKEN_S, path, turn, "crowd", number) for number in range(4 * CROWD)]
    lines = bench.run(served, Load(tuple(crowd), clients=CROWD))
    refusals = measure_refusals(served, bench.utterance(LONG_S, path, turn, "long"))
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


def measure_refusals(served: Served, long: Utterance) -> list[float]:
    """Returns the seconds until a request is refused while the service is at capacity."""
    speech = served.endpoint.url + "/v1/audio/speech"
    body = {"input": long.text, "response_format": "pcm", "cache": "no-store"}
    capacity = served.health()["admission"]["capacity"]
    refused = []
    with ThreadPoolExecutor(capacity) as pool:
        crowd = [
            pool.submit(requests.post, speech, json=body | {"seed": seed}, stream=True, timeout=120) for seed in range(capacity)
        ]
        time.sleep(1)
        for _ in range(PROBES):
            began = time.perf_counter()
            with requests.post(speech, json=body, stream=True, timeout=120) as reply:
                if reply.status_code in (429, 503):
                    refused.append(time.perf_counter() - began)
        for one in crowd:
            one.result().close()
    assert len(refused) >= PROBES / 2, f"only {len(refused)} of {PROBES} were refused: the service was not at capacity"
    return refused


def measure_disconnect(served: Served, long: Utterance) -> float:
    """Returns the seconds from a disconnect until no slot is taken."""
    wait_until_idle(served)
    body = {"input": long.text, "response_format": "pcm"}
    with requests.post(served.endpoint.url + "/v1/audio/speech", json=body, stream=True, timeout=120) as reply:
        next(reply.iter_content(chunk_size=None))
    return wait_until_idle(served)


def wait_until_idle(served: Served, timeout_s: float = 60.0) -> float:
    """Returns the seconds until no slot is taken and no request waits for one."""
    began = time.perf_counter()
    while is_busy(served.health()):
        time.sleep(0.005)
        if time.perf_counter() - began > timeout_s:
            raise TimeoutError(f"slots stay taken for {timeout_s:g} s")
    return time.perf_counter() - began


def is_busy(health: dict[str, Any]) -> bool:
    """True if any request is in flight."""
    return (
        any(engine["slots_used"] + engine["waiting"] for engine in health["acoustic"]) or health["admission"]["in_flight"] > 0
    )


def scaled(values: dict[str, float | int], scale: float) -> dict[str, float | int]:
    """Returns a spread in another unit."""
    return {key: value if key == "n" else value * scale for key, value in values.items()}
