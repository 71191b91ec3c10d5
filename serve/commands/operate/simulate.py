"""Simulate: how a fleet of cards serves so many listeners, and how many cards are enough, in virtual time.

`chattts-serve simulate --gpus 4*H100+4*L4 --listeners 2000`
`chattts-serve simulate --gpus L4 --listeners 2000`: how many of them are enough
`chattts-serve simulate --gpus 10000*H100 --listeners 3000000`: an hour of as many cells as that makes

In:    cards, listeners
Out:   a table; exit code 1 where the fleet is too small
Never: a figure without its source: each card's is measured or predicted
"""

import argparse
import sys
from functools import partial

from pipeline.errors import ConfigError
from serve.simulation.cells import Cells, cells_of, hour
from serve.simulation.fleets import (
    DEVICES,
    GOAL_S,
    MOST_REFUSED,
    Figures,
    fewest,
    offered,
    parse_fleet,
    run,
    service_of,
)

SECONDS, MOST_SECONDS = 12.0, 3600
CELL = 128
COLUMNS = "{:34} {:>8} {:>9} {:>9} {:>9} {:>9}"


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 the fleet is enough, 1 it is not, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve simulate",
        description="Show what a fleet makes of its listeners, in virtual time: scheduler, promises and routing are the "
        "service's own.",
        epilog=f"Enough: first audio within {GOAL_S * 1e3:.0f} ms for 95 %, and at most {MOST_REFUSED:.1%} refused. "
        "Exit codes: 0 the fleet is enough, 1 it is not, 2 wrong usage.",
    )
    parser.add_argument(
        "--gpus", required=True, help=f"cards, as 4*H100+4*L4; one name alone: how many are enough; {', '.join(DEVICES)}"
    )
    parser.add_argument("--listeners", type=_count, required=True, help="who always listen: one second of audio a second each")
    parser.add_argument("--seconds", type=_seconds, default=SECONDS, help="of virtual time (default: %(default)g)")
    parser.add_argument(
        "--cell",
        type=_count,
        default=CELL,
        help="cards of a cell; of more, an hour is counted in cells (default: %(default)g)",
    )
    args = parser.parse_args(arguments)
    try:
        cards = parse_fleet(args.gpus)
    except ConfigError as error:
        parser.error(str(error))
    for card in dict.fromkeys(cards):
        print(f"{card.name}: {card.slots} slots, {card.full_s * 1e3:.1f} ms for a step of all of them, {card.source}")
    if args.gpus in DEVICES:
        number, figures = fewest(cards[0], args.listeners, args.seconds)
        answer = "enough" if figures.is_enough else "not enough, nor would more be,"
        print(f"{number} {args.gpus} are {answer} for {args.listeners} listeners")
        show([(f"{number}*{args.gpus}, or a part of them", figures)])
        return int(not figures.is_enough)
    if len(cards) > args.cell:
        cells = Cells(cells_of(cards, args.cell))
        print(f"{len(cells.cards)} cells of at most {args.cell} cards, an hour")
        rows = list(hour(cells, offered(args.listeners)))
        show(rows)
        return int(not rows[2][1].is_enough)
    simulate = partial(run, steps_per_s=offered(args.listeners), seconds=args.seconds)
    whole, less_one = service_of(cards), service_of(cards)
    fastest = max(less_one.engines.values(), key=lambda engine: engine.device.steps_per_s).name
    rows = [(f"{args.listeners} listeners", simulate(whole))]
    if len(cards) > 1:
        rows.append((f"the same, {fastest} dies meanwhile", simulate(less_one, at_half=lambda: less_one.kill(fastest))))
    show(rows)
    return int(not rows[0][1].is_enough)


def show(rows: list[tuple[str, Figures]]) -> None:
    """Prints figures, a line each."""
    print(COLUMNS.format("", "refused", "p50", "p95", "p99", "steps"))
    for name, figures in rows:
        firsts = (f"{first * 1e3:.0f} ms" for first in figures.first_audio_s)
        print(COLUMNS.format(name, f"{figures.refused:.1%}", *firsts, f"{figures.used:.0%}"))


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, found {text}")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 1 <= seconds <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"must be between 1 and {MOST_SECONDS}, found {text}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
