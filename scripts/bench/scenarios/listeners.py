"""Listeners: when their streams have no gap: at random times, in real time, and beside a book.

In:    a Bench
Out:   Reports of B4, B5 and B18
Owns:  the job of B18, which is deleted at the end
"""

from typing import Any

import requests
from rich.table import Table

from scripts.bench.bench import Bench, Report, ScenarioFailed
from scripts.bench.names import SERVICE
from scripts.bench.scenarios.saturation import CROWD
from scripts.bench.systems import System
from scripts.bench.timeline import Timeline, latency, request_rate, spread
from scripts.bench.workload import Load, open_loop, saturating, utterances

SMOOTH_STREAMS = 0.999
SMOOTH = 0.95
PROMPT_S = 1.0  # first audio, p95
MOST = 16
TEXTS, ROUNDS = 6, 3
QUICK_TEXTS, QUICK_ROUNDS = 4, 1
SENTENCES = 8_000  # some nine hours: no machine speaks them while listeners are measured
TIMEOUT_S = 60


def knee(bench: Bench) -> Report:
    """B4, the knee: requests arrive at growing rates, whether or not earlier ones have been answered.

    Arrivals are Poisson; each rate is a part of the peak rate. A rate holds when the first audio of 95 % of the requests comes
    within the limit and none is refused. It is smooth when, besides, no stream has a gap.
    """
    quick, limit_s = bench.options.quick, bench.options.slo_ttfb_s
    parts = (0.3, 0.6, 0.9) if quick else (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    duration_s = 8.0 if quick else 60.0
    system = bench.system(SERVICE)
    peak = requests_per_second(bench, system)
    rows = []
    for part in parts:
        rate = part * peak
        bench.progress(f"{system.name}, {rate:.2f} requests per second for {duration_s:g} s")
        lines = bench.run(system, open_loop(rate, duration_s, bench.options.lengths, bench.options.seed, "open", part))
        rows.append({"part": part, "rate": rate, **judged(lines, limit_s, duration_s)})
    knee = max((row["rate"] for row in rows if row["holds"]), default=0.0)
    smooth = max((row["rate"] for row in rows if row["holds"] and row["continuous"] >= SMOOTH_STREAMS), default=0.0)
    table = Table(
        "requests per second", "of the peak", "first audio p50 (s)", "p95 (s)", "without a gap", "refused", "in time / s",
        title=f"B4  the knee: first audio within {limit_s:g} s, p95",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            f"{row['rate']:.2f}", f"{row['part']:.0%}", f"{row['ttfb_p50_s']:.2f}", f"{row['ttfb_p95_s']:.2f}",
            f"{row['continuous']:.1%}", str(row["refused"]), f"{row['goodput']:.2f}",
        )  # fmt: skip
    table.caption = f"holds up to {knee:.2f} requests per second, smooth up to {smooth:.2f}; peak {peak:.2f}"
    result = {"limit_ttfb_s": limit_s, "peak_rate": peak, "rates": rows, "knee": knee, "smooth_knee": smooth}
    return Report(result, [table])


def requests_per_second(bench: Bench, system: System) -> float:
    """Returns the requests per second, of the run's lengths, that a system answers with eight always in flight."""
    bench.progress(f"peak rate of {system.name}")
    count = CROWD * (2 if bench.options.quick else 4)
    lines = bench.run(system, saturating(CROWD, count, bench.options.lengths, bench.options.seed, "pace"))
    return request_rate(lines, count)


def judged(lines: list[Timeline], limit_s: float, duration_s: float) -> dict[str, Any]:
    """Returns the figures of one rate, and whether it holds."""
    refused = sum(not line.complete for line in lines)
    good = sum(line.is_continuous and line.ttfb_s <= limit_s for line in lines)
    answered = latency(lines) if refused < len(lines) else {"ttfb_p50_s": 0.0, "ttfb_p95_s": float("inf"), "continuous": 0.0}
    return {
        **answered,
        "requests": len(lines),
        "refused": refused,
        "goodput": good / duration_s,
        "holds": refused == 0 and answered["ttfb_p95_s"] <= limit_s,
        "late_sending_s": max(line.sent_s - line.due_s for line in lines),
    }


def at_once(bench: Bench, *, title: str = "B5  listeners at once") -> Report:
    """B5, listeners: how many people can listen at the same time without a gap.

    Each listener requests a text, plays it in real time from its first audio on, and requests the next one when it has been
    played. A number of listeners is smooth when 95 % of the streams have no gap. They are added one by one, until two numbers
    in a row are not smooth.
    """
    rows: list[dict[str, Any]] = []
    while len(rows) < MOST and not (len(rows) > 1 and all(row["continuous"] < SMOOTH for row in rows[-2:])):
        rows.append(measure(bench, len(rows) + 1))
    smooth = next((number for number, row in enumerate(rows) if row["continuous"] < SMOOTH), len(rows))
    prompt = prompt_listeners(rows)
    table = Table("listeners", "streams", "without a gap", "first audio p50 (s)", "p95 (s)", title=title)
    for row in rows:
        figures = (f"{row['continuous']:.0%}", f"{row['ttfb_p50_s']:.2f}", f"{row['ttfb_p95_s']:.2f}")
        table.add_row(str(row["listeners"]), str(row["answers"]), *figures)
    table.caption = (
        f"{SMOOTH:.0%} of the streams of up to {smooth} listeners have no gap; of up to {prompt} they are in time too"
    )
    judged_figures = {"prompt_listeners": spread([prompt]), "smooth_listeners": spread([smooth])}
    return Report({"listeners": rows, "smooth": smooth}, [table], judged_figures)


def prompt_listeners(rows: list[dict[str, Any]]) -> int:
    """Returns how many listeners hear no gap and wait for PROMPT_S at most, of 95 % each."""
    is_prompt = (row["continuous"] >= SMOOTH and row["ttfb_p95_s"] <= PROMPT_S for row in rows)
    return next((number for number, prompt in enumerate(is_prompt) if not prompt), len(rows))


def measure(bench: Bench, listeners: int) -> dict[str, Any]:
    """Returns the figures of so many listeners, over all rounds."""
    texts, rounds = (QUICK_TEXTS, QUICK_ROUNDS) if bench.options.quick else (TEXTS, ROUNDS)
    system, lines = bench.system(SERVICE), []
    for turn in range(rounds):
        bench.progress(f"{system.name}, {listeners} listeners, round {turn + 1}")
        requested = utterances(listeners * texts, bench.options.lengths, bench.options.seed, "b5", turn, listeners)
        lines += bench.run(system, Load(tuple(requested), clients=listeners, in_real_time=True))
    return {"listeners": listeners, **latency(lines)}


def beside_a_book(bench: Bench) -> Report:
    """B18, listeners beside a book: B5 once more, while a job speaks a book in the bulk lane."""
    endpoint = bench.service(bench.options.settings).endpoint
    sentences = utterances(SENTENCES, bench.options.lengths, bench.options.seed, "b18")
    text = " ".join(f"{sentence.text}." for sentence in sentences)
    book = {"model": endpoint.model, "voice": endpoint.voice, "input": text}
    accepted = requests.post(f"{endpoint.url}/v1/audio/jobs", json=book, timeout=TIMEOUT_S)
    accepted.raise_for_status()
    job = f"{endpoint.url}/v1/audio/jobs/{accepted.json()['id']}"
    try:
        report = at_once(bench, title="B18  listeners at once beside a book")
        state = requests.get(job, timeout=TIMEOUT_S).json()
    finally:
        requests.delete(job, timeout=TIMEOUT_S)
    if state["status"] != "running":
        raise ScenarioFailed(f"the book was {state['status']} before all listeners had come")
    figures = {"smooth_beside_a_book": report.figures["smooth_listeners"]}
    return Report(report.result | {"book": state["progress"]}, report.tables, figures)
