"""Cold start: from the command to the first audio, and from the first refused request of a service that sleeps.

With the demo checkpoint and with one of real dimensions.

In:    a Bench
Out:   the Report of B11
Owns:  the services it starts
Never: a system that is already running
"""

import time
from dataclasses import replace
from typing import Any

import requests
from rich.table import Table

from scripts.bench.bench import Bench, Report, ScenarioFailed
from scripts.bench.client import SPEECH
from scripts.bench.names import SERVICE
from scripts.bench.systems import Served, start_service
from scripts.bench.timeline import shown, spread, spreads

IDLE_S = 10.0  # without work, until a stage goes to sleep: longer than one of them takes to start
ASLEEP_TIMEOUT_S = 300.0
LOOK_S = 0.5
IMPATIENT = {"input": "Hello.", "response_format": "pcm", "deadline_ms": 50}


def run(bench: Bench) -> Report:
    """B11, cold start: starts the service and sends a request, several times; then lets its stages sleep and wakes them."""
    bench.systems.drop(SERVICE)
    kinds = {"demo": bench.options.demo_settings}
    if not bench.options.quick:
        kinds[bench.options.checkpoint] = bench.options.settings
    repeats = 1 if bench.options.quick else bench.options.repeats
    starts: dict[str, Any] = {}
    wakes: dict[str, Any] = {}
    cold = Table("", "ready (s)", "first audio of the first request (s)", title="B11  cold start")
    woken = Table("", "first audio after the first refusal (s)", "refusal (ms)", "Retry-After (s)", title="B11  from zero")
    for kind, settings in kinds.items():
        ready, first = [], []
        for turn in range(repeats):
            bench.progress(f"{kind}, start {turn + 1}")
            bench.systems.freeze()
            served = start_service(settings)
            try:
                ready.append(served.start_s)
                first.append(bench.alone(served, bench.utterance(2.0, kind, turn)).ttfb_s)
            finally:
                served.close()
        starts[kind] = {"ready_s": spread(ready), "first_request_ttfb_s": spread(first)}
        cold.add_row(kind, shown(starts[kind]["ready_s"]), shown(starts[kind]["first_request_ttfb_s"]))
        served = start_service(replace(settings, sleeps_after_s=IDLE_S))
        try:
            rows = [wake(bench, served, kind, turn) for turn in range(repeats)]
        finally:
            served.close()
        wakes[kind] = spreads(rows)
        refusal_ms = {name: 1e3 * value if name != "n" else value for name, value in wakes[kind]["refusal_s"].items()}
        retries = ", ".join(f"{row['retry_after_s']:g}" for row in rows)
        woken.add_row(kind, shown(wakes[kind]["first_audio_s"]), shown(refusal_ms), retries)
    return Report({"starts": starts, "wakes": wakes}, [cold, woken])


def wake(bench: Bench, served: Served, kind: str, turn: int) -> dict[str, float]:
    """Waits until all stages sleep, sends a request that is refused, and at once one that waits.

    Returns:
        refusal_s: until the refusal; retry_after_s: its Retry-After; first_audio_s: from its sending to the first audio [s].

    Raises:
        ScenarioFailed: the stages do not sleep, or the request is not refused.
    """
    bench.progress(f"{kind}, wake {turn + 1}")
    ends_at = time.monotonic() + ASLEEP_TIMEOUT_S
    while set(served.health()["stages"].values()) != {"asleep"}:
        if time.monotonic() > ends_at:
            raise ScenarioFailed(f"after {ASLEEP_TIMEOUT_S:g} s the stages are {served.health()['stages']}")
        time.sleep(LOOK_S)
    began = time.monotonic()
    refusal = requests.post(served.endpoint.url + SPEECH, json=IMPATIENT, timeout=60)
    refusal_s = time.monotonic() - began
    if refusal.status_code != 503:
        raise ScenarioFailed(f"a request while all stages sleep was answered with {refusal.status_code}, not refused with 503")
    waits = bench.alone(served, bench.utterance(2.0, kind, "wake", turn))
    return {
        "refusal_s": refusal_s,
        "retry_after_s": float(refusal.headers["Retry-After"]),
        "first_audio_s": refusal_s + waits.ttfb_s,
    }
