"""Curves: the tables of docs/scale.md about many cards, from the simulator of cells.

In:    nothing
Out:   cards by listeners and what an hour of audio takes; cells by size; utilisation by the time that a card takes to wake; the
       error of cells against the exact simulator
Never: a price: a card's hour costs whatever its owner pays

    python -m scripts.fleet.curves [cards] [sizes] [waking] [error]
"""

import argparse
from collections.abc import Callable

from serve.simulation.cells import Cells
from serve.simulation.fleets import DEVICES, Figures, fewest, figures_of, offer, service_of

SECONDS = 12.0
LISTENERS = (1_000, 100_000, 1_000_000)
NAMES = ("H100", "H200", "L40S", "A100", "L4")
FLEET, SIZES, SIZED_LOADS = 10_000, (1_000, 500, 250, 125), (0.70, 0.80, 0.85, 0.90)
WAKING_S, UTILISATIONS = (10.0, 30.0, 60.0, 120.0, 300.0), (0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)
DOUBLING_S = 300.0
MOST_LOST = 0.001
PHASES = ((0.6, 20.0), (0.85, 50.0), (1.25, 60.0), (0.7, 65.0), (0.7, 95.0))  # loads, and until when [s]


def cards() -> None:
    """Cards that are enough, and the time of a card that an hour of audio takes."""
    for name in NAMES:
        numbers = [fewest(DEVICES[name], listeners, SECONDS)[0] for listeners in LISTENERS]
        print(f"{name:6}", *(f"{number:8,}" for number in numbers), f"{3600 * numbers[-1] / LISTENERS[-1]:6.1f} s of a card")


def sizes() -> None:
    """The minute after the death of a cell, by the size of cells and the load."""
    for size in SIZES:
        for load in SIZED_LOADS:
            fleet = Cells([(DEVICES["H100"], size)] * (FLEET // size))
            demand = _constant(load * fleet.steps_per_s)
            fleet.run(60.0, demand)
            before, interrupted = fleet.figures(20.0, 60.0), fleet.close(0, dies=True)
            fleet.run(120.0, demand)
            _show(f"{FLEET // size} x {size} at {load}, {interrupted:,.0f} interrupted", before, fleet.figures(60.0, 120.0))


def waking() -> None:
    """The highest utilisation at which nobody is lost while the load doubles within five minutes."""
    for wake_s in WAKING_S:
        for utilisation in UTILISATIONS:
            fleet = Cells([(DEVICES["H100"], 60)] * 4, utilisation=utilisation, wake_s=wake_s)
            begun = 0.97 * utilisation * fleet.steps_per_s
            fleet.run(900.0, lambda now, begun=begun: begun * (1 + min(1.0, max(0.0, now - 60.0) / DOUBLING_S)))  # type: ignore[misc]
            if (figures := fleet.figures(60.0, 900.0)).refused <= MOST_LOST:
                print(f"{wake_s:g} s to wake: {utilisation}", figures.first_audio_s)
                break


def error() -> None:
    """One cell by both simulators, through a load that changes."""
    for name, number in (("H100", 4), ("L4", 32)):
        service, fleet, begin = service_of([DEVICES[name]] * number), Cells([(DEVICES[name], number)], tries=1), 0.0
        phases = []
        for load, end in PHASES:
            calls = offer(service, load * service.steps_per_s, end, seed=11 + int(begin))
            service.agenda.run(end)
            fleet.run(end, _constant(sum(call.steps for call in calls) / (end - begin)))
            phases.append((f"{number}*{name} at {load} until {end:g} s", calls, fleet.figures(begin, end)))
            begin = end
        service.agenda.run(begin + 60.0)
        for phase, calls, figures in phases:
            _show(phase, figures_of(calls, figures.used), figures)


def _constant(steps_per_s: float) -> Callable[[float], float]:
    return lambda _: steps_per_s


def _show(name: str, *columns: Figures) -> None:
    texts = []
    for column in columns:
        texts.append(f"{100 * column.refused:6.2f} %" + "".join(f"{1e3 * first:7.0f}" for first in column.first_audio_s))
    print(f"{name:44}", *texts, sep=" | ")


def main() -> None:
    """Prints the chosen tables, or all."""
    tables = {table.__name__: table for table in (cards, sizes, waking, error)}
    parser = argparse.ArgumentParser(description="Simulate the tables of docs/scale.md about many cards.")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(tables)} (default: all)")
    args = parser.parse_args()
    if unknown := set(args.tables) - set(tables):
        parser.error(f"no table {', '.join(sorted(unknown))}: there are {', '.join(tables)}")
    for chosen in args.tables or tables:
        tables[chosen]()


if __name__ == "__main__":
    main()
