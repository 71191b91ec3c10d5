"""B10, the cost of Serve: the same speech with Serve and without, and what each of Serve's data paths does under load.

The demo checkpoint, whose steps cost a few milliseconds, so that everything else shows. "Added" is P's time to first audio
less P0's, round by round; the hop alone is GET /live, which does nothing.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import requests
from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.load import Load
from scripts.bench.show import shown
from scripts.bench.systems import Served, System
from scripts.bench.timeline import audio_rate, latency, percentile, spread
from scripts.bench.workload import Utterance

SPOKEN_S = 2.0
LONG_S = 20.0
HOPS = 200
CROWD = 8
PROBES = 20


def run(bench: Bench) -> Report:
    """P0 and P in turns, then the rest of the path; on both paths when there is time and the fast one is asked for."""
    each = 20 if bench.options.quick else 40
    paths = (bench.options.path,) if bench.options.quick or bench.options.path == "plain" else ("fast", "plain")
    found: dict[str, dict[str, list[float]]] = {}
    for path in paths:
        settings = replace(bench.options.demo_settings, path=path)
        for turn, name in bench.turns(("P0", "P")):
            system: System = bench.ours(settings) if name == "P0" else bench.service(settings)
            bench.say(f"{name}, {path} path, round {turn + 1}")
            asked = [bench.utterance(SPOKEN_S, path, turn, number) for number in range(each)]
            heard = latency(bench.run(system, Load(tuple(asked), clients=1)))
            key = "P0" if name == "P0" else path
            for figure in ("ttfb_p50_s", "ttfb_p95_s", "ttfb_p99_s"):
                found.setdefault(key, {}).setdefault(figure, []).append(heard[figure])
            if isinstance(system, Served):
                for figure, value in measure_path(bench, system, path, turn).items():
                    found[path].setdefault(figure, []).append(value)
        for figure in ("ttfb_p50_s", "ttfb_p99_s"):
            pairs = zip(found[path][figure], found["P0"][figure][-bench.options.repeats :], strict=True)
            found[path][f"added_{figure}"] = [served - bare for served, bare in pairs]
    figures = {name: {figure: spread(values) for figure, values in them.items()} for name, them in found.items()}
    table = Table("", "P0", *paths, title="B10  the cost of Serve, demo checkpoint")
    for figure, (label, scale) in LABELS.items():
        cells = [shown(scaled(figures[name][figure], scale)) if figure in figures[name] else "" for name in ("P0", *paths)]
        table.add_row(label, *cells)
    judged = {"added_by_serve_ms": scaled(figures[paths[0]]["added_ttfb_p50_s"], 1e3)}
    return Report({"systems": figures, "requests_a_round": each}, [table], judged)


LABELS = {
    "ttfb_p50_s": ("first audio p50 (ms)", 1e3),
    "ttfb_p95_s": ("first audio p95 (ms)", 1e3),
    "ttfb_p99_s": ("first audio p99 (ms)", 1e3),
    "added_ttfb_p50_s": ("added by Serve, p50 (ms)", 1e3),
    "added_ttfb_p99_s": ("added by Serve, p99 (ms)", 1e3),
    "hop_p50_s": ("the hop alone p50 (ms)", 1e3),
    "hop_p99_s": ("the hop alone p99 (ms)", 1e3),
    "ttfb_crowd_p50_s": (f"first audio, {CROWD} clients, p50 (ms)", 1e3),
    "audio_s_per_s": (f"audio seconds a second, {CROWD} clients", 1.0),
    "refusal_p50_s": ("refusal while full p50 (ms)", 1e3),
    "refusal_max_s": ("refusal while full, slowest (ms)", 1e3),
    "leave_s": ("slots free after a client hangs up (ms)", 1e3),
}


def measure_path(bench: Bench, served: Served, path: str, turn: int) -> dict[str, float]:
    """What a data path does beyond one request."""
    hops = measure_hops(served.endpoint.url)
    crowd = [bench.utterance(SPOKEN_S, path, turn, "crowd", number) for number in range(4 * CROWD)]
    lines = bench.run(served, Load(tuple(crowd), clients=CROWD))
    refusals = measure_refusals(served, bench.utterance(LONG_S, path, turn, "long"))
    return {
        "hop_p50_s": percentile(hops, 50),
        "hop_p99_s": percentile(hops, 99),
        "ttfb_crowd_p50_s": latency(lines)["ttfb_p50_s"],
        "audio_s_per_s": audio_rate(lines, len(crowd)),
        "refusal_p50_s": percentile(refusals, 50),
        "refusal_max_s": max(refusals),
        "leave_s": measure_leave(served, bench.utterance(LONG_S, path, turn, "leave")),
    }


def measure_hops(url: str) -> list[float]:
    """Seconds of a request that does nothing."""
    hops = []
    with requests.Session() as session:
        for _ in range(HOPS):
            began = time.perf_counter()
            session.get(f"{url}/live", timeout=10).raise_for_status()
            hops.append(time.perf_counter() - began)
    return hops[HOPS // 10 :]


def measure_refusals(served: Served, long: Utterance) -> list[float]:
    """Seconds until a request is refused, while more have come than there are places."""
    speech = served.endpoint.url + "/v1/audio/speech"
    body = {"input": long.text, "response_format": "pcm", "cache": "no-store"}
    places = served.health()["admission"]["capacity"]
    refused = []
    with ThreadPoolExecutor(places) as pool:
        crowd = [
            pool.submit(requests.post, speech, json=body | {"seed": seed}, stream=True, timeout=120) for seed in range(places)
        ]
        time.sleep(1)
        for _ in range(PROBES):
            began = time.perf_counter()
            with requests.post(speech, json=body, stream=True, timeout=120) as reply:
                if reply.status_code in (429, 503):
                    refused.append(time.perf_counter() - began)
        for one in crowd:
            one.result().close()
    assert len(refused) >= PROBES / 2, f"only {len(refused)} of {PROBES} were refused: the house was not full"
    return refused


def measure_leave(served: Served, long: Utterance) -> float:
    """Seconds from hanging up until no slot is taken."""
    wait_until_idle(served)
    body = {"input": long.text, "response_format": "pcm"}
    with requests.post(served.endpoint.url + "/v1/audio/speech", json=body, stream=True, timeout=120) as reply:
        next(reply.iter_content(chunk_size=None))
    return wait_until_idle(served)


def wait_until_idle(served: Served, timeout_s: float = 60.0) -> float:
    """Seconds until no slot is taken and nobody waits for one."""
    began = time.perf_counter()
    while busy(served.health()):
        time.sleep(0.005)
        if time.perf_counter() - began > timeout_s:
            raise TimeoutError(f"slots stay taken for {timeout_s:g} s")
    return time.perf_counter() - began


def busy(health: dict[str, Any]) -> bool:
    """Whether anything is under way."""
    return (
        any(engine["slots_used"] + engine["waiting"] for engine in health["acoustic"]) or health["admission"]["in_flight"] > 0
    )


def scaled(values: dict[str, float | int], scale: float) -> dict[str, float | int]:
    """A spread in another unit."""
    return {key: value if key == "n" else value * scale for key, value in values.items()}
