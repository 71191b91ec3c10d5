"""Replay: B4 and B5 of a set of results once more, in virtual time, beside what was measured.

In:    results of B4 and B5, whose texts and arrivals follow from their options
Out:   predicted and measured first audio; the mean error of the points that nothing was fitted to
Never: a measurement: the device is fitted to a quarter of the points of B5

    python -m scripts.fleet.replay [scripts/bench/results/epyc]
"""

import argparse
import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from scripts.bench.record import RESULTS, Result, read
from scripts.bench.scenarios.listeners import QUICK_TEXTS, TEXTS
from scripts.bench.workload import Lengths, Utterance, poisson, utterances
from serve.simulation.fleets import quantiles
from serve.simulation.virtual_time import Call, Device, VirtualService

FITTED = 4  # every so many-th number of listeners
FIRST_STEPS = (44, 52)  # until the first window of the vocoder is complete
PREFILL_S, OVERHEAD_S = 0.06, 0.05  # to begin with
SHARES = (1.4, 1.2, 1.1, 1.05)  # by which a figure is made larger or smaller, as long as the fit improves
DRAIN_S = 400.0
ENGINE: dict[str, Any] = {"max_waiting": 16, "max_prompt": 512, "max_steps": 1280, "ignore_eos": True}
Errors = list[float]


def replayed(
    device: Device,
    overhead_s: float,
    arrivals: list[tuple[float, Utterance]] | None,
    texts: list[Utterance],
    listeners: int,
) -> tuple[float, float]:
    """Returns p50 and p95 of the first audio [s]: at given times, or of listeners who ask again when they have listened."""
    service = VirtualService([device], ingresses=1, overhead_s=overhead_s, **ENGINE)
    agenda, calls = service.agenda, list[Call]()
    spoken: dict[Call, Utterance] = {}

    def ask(utterance: Utterance) -> None:
        call = Call(agenda.now, utterance.steps, promise_s=None)
        calls.append(call)
        spoken[call] = utterance
        service.ask(call)

    def listen_on(call: Call) -> None:
        if texts and call.first_s is not None:
            played_at = call.at + call.first_s + spoken[call].audio_s
            agenda.at(max(agenda.now, played_at), lambda: ask(texts.pop(0)) if texts else None)

    if arrivals is None:
        service.on_end = listen_on
        for _ in range(listeners):
            agenda.at(0.0, lambda: ask(texts.pop(0)))
    for at, utterance in arrivals or ():
        agenda.at(at, lambda utterance=utterance: ask(utterance))  # type: ignore[misc]
    agenda.run(DRAIN_S)
    p50, p95, _ = quantiles(sorted(call.first_s for call in calls if call.first_s is not None))
    return p50, p95


def of_listeners(device: Device, overhead_s: float, options: Result, number: int) -> tuple[float, float]:
    """Returns p50 and p95 of a row of B5 [s]."""
    texts = QUICK_TEXTS if options["quick"] else TEXTS
    requested = utterances(number * texts, lengths(options), options["seed"], "b5", 0, number)
    return replayed(device, overhead_s, None, requested, number)


def of_arrivals(device: Device, overhead_s: float, options: Result, row: Result) -> tuple[float, float]:
    """Returns p50 and p95 of a row of B4 [s]."""
    path = options["seed"], "open", row["part"]
    times = poisson(row["rate"], 8.0 if options["quick"] else 60.0, *path) or [0.0]
    requested = utterances(len(times), lengths(options), *path)
    return replayed(device, overhead_s, list(zip(times, requested, strict=True)), [], 0)


def lengths(options: Result) -> Lengths:
    """Returns the lengths of a run's texts."""
    return Lengths(median_s=2.0, longest_s=5.0) if options["quick"] else Lengths()


def fit(one_s: float, full_s: float, misfit: Callable[[Device, float], float]) -> tuple[Device, float]:
    """Returns the device, and the overhead of a first audio [s], that fit best, from what was measured alone.

    Args:
        misfit: of a device and an overhead.
    """

    def entry(values: Sequence[float], first_steps: int) -> tuple[Device, float]:
        one_s, full_s, prefill_s, overhead_s = values
        return Device("replayed", 8, one_s, full_s, prefill_s, first_steps), overhead_s

    fits: list[tuple[float, Sequence[float], int]] = []
    for first_steps in FIRST_STEPS:
        values: list[float] = [one_s, full_s, PREFILL_S, OVERHEAD_S]
        least = misfit(*entry(values, first_steps))
        for share, place in product(SHARES, range(len(values))):
            for factor in (share, 1 / share):
                other = [value * (factor if number == place else 1) for number, value in enumerate(values)]
                if (found := misfit(*entry(other, first_steps))) < least:
                    least, values = found, other
        fits.append((least, values, first_steps))
    _, best, first_steps = min(fits)
    return entry(best, first_steps)


def errors(predicted: tuple[float, float], row: Result) -> Errors:
    """Returns the relative errors of p50 and p95."""
    return [mine / measured - 1 for mine, measured in zip(predicted, (row["ttfb_p50_s"], row["ttfb_p95_s"]), strict=True)]


def main() -> None:
    """Fits, replays and prints."""
    parser = argparse.ArgumentParser(description="Replay B4 and B5 of a set of results in virtual time.")
    parser.add_argument("folder", type=Path, nargs="?", default=RESULTS / "epyc", help="with b1, b4 and b5 (default: epyc)")
    b1, b4, b5 = (read(name, parser.parse_args().folder) for name in ("b1", "b4", "b5"))
    if b1 is None or b5 is None:
        parser.error("there is no result of B1 or B5")
    rows: list[Any] = b5["listeners"]
    fitted = rows[FITTED - 1 :: FITTED]
    options = b5["options"]

    def misfit(device: Device, overhead_s: float) -> float:
        replays = ((row, of_listeners(device, overhead_s, options, row["listeners"])) for row in fitted)
        return sum(abs(error) for row, predicted in replays for error in errors(predicted, row))

    best = fit(*step_times(b1), misfit)
    print(best[0], f"overhead {best[1]} s")
    left: Errors = []
    for row in rows:
        predicted = of_listeners(*best, options, row["listeners"])
        left += [] if row in fitted else errors(predicted, row)
        show(f"B5, {row['listeners']} listeners{' (fitted)' if row in fitted else ''}", predicted, row)
    for row in b4["rates"] if b4 else ():
        predicted = of_arrivals(*best, b4["options"], row)
        left += errors(predicted, row)
        show(f"B4, {row['rate']:.2f} requests a second", predicted, row)
    mean = sum(map(abs, left)) / len(left)
    print(json.dumps({"mean_error": round(mean, 3), "worst": round(max(map(abs, left)), 3), "figures": len(left)}))


def step_times(b1: Result) -> tuple[float, float]:
    """Returns the duration of a step of one row and of eight, alone on the machine [s]."""
    one_ms, eight_ms = (b1[name]["step_ms"]["in_process"]["median"] for name in ("decode_1", "decode_8"))
    return one_ms / 1e3, eight_ms / 1e3


def show(name: str, predicted: tuple[float, float], row: Result) -> None:
    """Prints a row."""
    print(f"{name:34} p50 {predicted[0]:.2f} ({row['ttfb_p50_s']:.2f})  p95 {predicted[1]:.2f} ({row['ttfb_p95_s']:.2f})")


if __name__ == "__main__":
    main()
