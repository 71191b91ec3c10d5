"""Data path: the same service on Serve's default path and on the fast one. `python -m scripts.bench.data_path`

In:    a configuration whose model is small, so that the path is what is measured
Out:   a table; one JSON line; results/data_path.json
Owns:  one server at a time

Both servers run in one call, fast - default - fast - default, and the better of each two is reported. TTFB is the time
from sending a request to the first byte of audio (raw pcm, so that byte is audio). A refusal is what an overloaded
service answers a request more. `leave` is how long the slots of a client that hung up stay taken.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests
from rich.console import Console
from rich.table import Table

from scripts.bench.record import publish
from scripts.start import http_address, wait_until_ready
from serve.config_file import check_file

SPEECH = "/v1/audio/speech"
# Drawn almost evenly from all codes, so that the end is seldom among them: every segment runs long.
LONG = {"input": "Many words follow one another here. " * 20, "temperature": 2.0, "top_p": 1.0, "top_k": 626}
START_TIMEOUT_S = 300


def speak(address: str, body: dict[str, object]) -> tuple[float, float, int]:
    """One request: seconds to the first byte, seconds a piece after it, bytes."""
    began = time.perf_counter()
    with requests.post(address + SPEECH, json={"response_format": "pcm"} | body, stream=True, timeout=120) as reply:
        reply.raise_for_status()
        pieces = reply.iter_content(chunk_size=None)
        count = len(next(pieces))
        first_s = time.perf_counter() - began
        for piece in pieces:
            count += len(piece)
    return first_s, time.perf_counter() - began, count


def measure_ttfb(address: str, clients: int, each: int) -> list[float]:
    """First-byte times of `clients` at once, `each` requests one after another."""

    def client(number: int) -> list[float]:
        return [speak(address, {"input": "Hello there.", "seed": 1000 * number + turn})[0] for turn in range(each)]

    with ThreadPoolExecutor(clients) as pool:
        return [first_s for times in pool.map(client, range(clients)) for first_s in times]


def measure_throughput(address: str, clients: int) -> float:
    """Audio seconds a second with `clients` long requests at once."""
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        counts = [count for *_, count in pool.map(lambda seed: speak(address, LONG | {"seed": seed}), range(clients))]
    return sum(counts) / 2 / 24_000 / (time.perf_counter() - began)


def measure_refusal(address: str, probes: int) -> list[float]:
    """Seconds until a request is refused, while more have come than there are places."""
    crowd_size = requests.get(address + "/health", timeout=10).json()["door"]["max_in_flight"]
    with ThreadPoolExecutor(crowd_size) as pool:
        body = LONG | {"response_format": "pcm"}
        crowd = [pool.submit(requests.post, address + SPEECH, json=body, stream=True, timeout=120) for _ in range(crowd_size)]
        time.sleep(1)
        refused = []
        for _ in range(probes):
            began = time.perf_counter()
            with requests.post(address + SPEECH, json={"input": "One more."}, stream=True, timeout=120) as reply:
                taken_s = time.perf_counter() - began
                if reply.status_code in (429, 503):
                    assert int(reply.headers["Retry-After"]) >= 1
                    refused.append(taken_s)
        for one in crowd:
            one.result().close()
    assert len(refused) >= probes / 2, f"only {len(refused)} of {probes} were refused: the house was not full"
    return refused


def measure_leave(address: str) -> float:
    """Seconds from hanging up until no slot is taken."""
    with requests.post(address + SPEECH, json=LONG | {"response_format": "pcm"}, stream=True, timeout=120) as reply:
        next(reply.iter_content(chunk_size=None))
    began = time.perf_counter()
    while any(engine["slots_used"] for engine in requests.get(address + "/health", timeout=10).json()["acoustic"]):
        time.sleep(0.005)
        assert time.perf_counter() - began < 30, "slots stay taken"
    return time.perf_counter() - began


def measure(address: str) -> dict[str, float]:
    """Everything, on one running service."""
    measure_ttfb(address, 2, 5)
    alone, eight = measure_ttfb(address, 1, 40), measure_ttfb(address, 8, 10)
    refused = measure_refusal(address, 20)
    return {
        "ttfb_p50_ms": 1e3 * statistics.median(alone),
        "ttfb_p95_ms": 1e3 * statistics.quantiles(alone, n=20)[-1],
        "ttfb_8_clients_p50_ms": 1e3 * statistics.median(eight),
        "audio_s_per_s_8_clients": measure_throughput(address, 8),
        "refusal_p50_ms": 1e3 * statistics.median(refused),
        "refusal_max_ms": 1e3 * max(refused),
        "leave_ms": 1e3 * max(measure_leave(address) for _ in range(3)),
    }


def run_server(config: Path, arguments: list[str], address: str, work: Callable[[str], dict[str, float]]) -> dict[str, float]:
    """Start the service, measure, stop it."""
    log = Path(f"/tmp/data_path_{os.getpid()}.log").open("w")  # noqa: SIM115
    command = [sys.executable, "-m", "scripts.start", str(config), *arguments]
    server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        if (code := wait_until_ready(server, address)) is not None:
            raise SystemExit(f"the server ended with {code}; see {log.name}")
        return work(address)
    finally:
        os.killpg(server.pid, signal.SIGINT)
        server.wait(timeout=90)
        log.close()


def main() -> int:
    """Measure both paths."""
    parser = argparse.ArgumentParser(description="Compare Serve's default data path with the fast one.")
    parser.add_argument("config", type=Path, nargs="?", default=Path("configs/dev.yaml"))
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    address = http_address(check_file(args.config))
    console = Console()
    runs: dict[str, list[dict[str, float]]] = {"fast": [], "default": []}
    for repeat in range(args.repeats):
        for name, arguments in (("fast", []), ("default", ["--plain"])):
            with console.status(f"{name}, run {repeat + 1} of {args.repeats}"):
                runs[name].append(run_server(args.config, arguments, address, measure))
    best = {name: {key: pick(key)(run[key] for run in them) for key in them[0]} for name, them in runs.items()}
    table = Table("figure", *best, title=f"data path, {args.config}")
    for key in best["fast"]:
        table.add_row(key, *(f"{figures[key]:.1f}" for figures in best.values()))
    console.print(table)
    publish("data_path", {"config": str(args.config), "best": best, "runs": json.loads(json.dumps(runs))})
    return 0


def pick(key: str) -> Callable[..., float]:
    """The better of several values of a figure."""
    return max if key == "audio_s_per_s_8_clients" else min


if __name__ == "__main__":
    sys.exit(main())
