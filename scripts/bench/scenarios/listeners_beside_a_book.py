"""B18, listeners beside a book: B5 once more, while a job speaks a book in the bulk lane.

In:    a Bench
Out:   a Report
Owns:  one job, which is deleted at the end
Never: another load than B5's
"""

import requests

from scripts.bench.bench import Bench, Report, ScenarioFailed
from scripts.bench.scenarios import listeners
from scripts.bench.workload import utterances

SENTENCES = 8_000  # some nine hours: no machine speaks them while listeners are measured
TIMEOUT_S = 60


def run(bench: Bench) -> Report:
    """Adds listeners one by one, as B5 does, beside a book."""
    endpoint = bench.service(bench.options.settings).endpoint
    sentences = utterances(SENTENCES, bench.options.lengths, bench.options.seed, "b18")
    book = {"model": endpoint.model, "voice": endpoint.voice, "input": " ".join(f"{each.text}." for each in sentences)}
    accepted = requests.post(f"{endpoint.url}/v1/audio/jobs", json=book, timeout=TIMEOUT_S)
    accepted.raise_for_status()
    job = f"{endpoint.url}/v1/audio/jobs/{accepted.json()['id']}"
    try:
        report = listeners.run(bench, title="B18  listeners at once beside a book")
        found = requests.get(job, timeout=TIMEOUT_S).json()
    finally:
        requests.delete(job, timeout=TIMEOUT_S)
    if found["status"] != "running":
        raise ScenarioFailed(f"the book was {found['status']} before all listeners had come")
    return Report(
        report.result | {"book": found["progress"]}, report.tables, {"smooth_beside_a_book": report.figures["smooth_listeners"]}
    )
