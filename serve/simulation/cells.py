"""Cells: thousands of cards in virtual time, as cells whose rows are counted in bins of steps; chance is measured beforehand.

In:    cells of equal cards, the steps per second that listeners ask for
Out:   the first audio and the refusals of any stretch of time; what becomes of them in an hour in which much happens
Owns:  the rows, the queue and the state of each cell
Never: a single call: whether one of thousands of slots is free is a matter of load

What a cell makes of a load while nobody waits is what the exact simulator makes of a part of it. A key's home is one cell, and
while that is away, all others, as docs/cells.haproxy.cfg routes calls. A refused client comes again when Retry-After-Ms says,
and gives up after some tries.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from pipeline.engine.promises import RESERVE
from pipeline.engine.round_times import LEAST_RETRY_S
from serve.errors import MOST_SPREAD
from serve.simulation.fleets import MOST_CALLS, WARM, Figures, lengths, mean_steps, offer, service_of
from serve.simulation.virtual_time import MAX_WAITING, PROMISE_S, Device

Floats = NDArray[np.float64]
TICK_S, TICKS = 0.05, 10  # of the clock, and of a record
BIN, BINS = 20, 60  # steps that a row has left
TRIES = 6  # of a client, where it is refused
SPREADS = 5  # moments at which those come again that were refused together
DETECTION_S = 1.0  # of a dead cell, by the edge: two checks
KEYS = 100_000  # of equal traffic
LOADS = (0.1, 0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
LEVELS = (np.arange(40) + 0.5) / 40  # of a distribution of first audio
TIMES_S = np.geomspace(0.02, 60.0, 600)  # edges of the bins in which first audio is recorded
CURVE_S = 12.0  # of virtual time, for each load
LOOK_BACK_S, LEAST_GROWTH = 10.0, 0.01  # of autoscaling, as configs/gpu.yaml; share of the cards that it adds at least

# An hour.
DOUBLED, STORM, DEATH, ROLLOUT = 300.0, 900.0, 1200.0, 1800.0  # when it begins [s]
STORM_S, AFTER_S = 30.0, 60.0
STORM_TIMES = 2.0
DRAIN_S, START_S = 25.0, 60.0  # of a cell that is replaced: its longest call, and its start
GROUPS = 20  # of cells that are replaced one after another
RETURN_S = 300.0  # after which a dead cell is there again


@cache
def length_shares() -> Floats:
    """Returns which share of calls has about BIN, 2 BIN, ... steps: (BINS,)."""
    drawn = list(islice(lengths(random.Random(5)), 50_000))
    shares: Floats = np.histogram(drawn, BINS, (BIN / 2, BIN * (BINS + 0.5)))[0] / len(drawn)
    return shares


@cache
def repeated_share() -> float:
    """Returns the steps of a call that was interrupted, all of which are made anew, as a share of those of any: longer ones."""
    steps, shares = BIN * (np.arange(BINS) + 1), length_shares()
    return float((shares * steps**2).sum() / (shares * steps).sum() ** 2)


@cache
def first_audio_curve(device: Device, cards: int) -> Floats:
    """Returns the first audio of calls by the share of the steps that is used: (LOADS, LEVELS) [s].

    Args:
        cards: of a cell; of many, as many as can be simulated call by call.
    """
    most = max(1, math.floor(MOST_CALLS * mean_steps() / (device.steps_per_s * CURVE_S)))
    rows = list[Floats]()
    for load in LOADS:
        service = service_of([device] * min(cards, most))
        calls = offer(service, load * service.steps_per_s, CURVE_S)
        service.agenda.run(2 * CURVE_S)
        firsts = [call.first_s for call in calls if call.first_s is not None and call.at >= WARM * CURVE_S]
        rows.append(np.quantile(firsts, LEVELS))
    return np.array(rows)


def cells_of(cards: Sequence[Device], most: int) -> list[tuple[Device, int]]:
    """Returns cards as cells of equal ones, as many in each as may be."""
    cells = list[tuple[Device, int]]()
    for device, number in Counter(cards).items():
        count = math.ceil(number / most)
        cells += [(device, number // count + (place < number % count)) for place in range(count)]
    return cells


@dataclass(frozen=True, slots=True)
class Record:
    """What happened in TICKS of the clock."""

    at: float
    calls: float
    """of new clients"""
    refusals: float
    lost: float
    """clients that gave up"""
    used: float
    first_audio: Floats
    """calls by TIMES_S"""


class Cells:
    """Cells in virtual time."""

    def __init__(
        self,
        cells: Sequence[tuple[Device, int]],
        *,
        utilisation: float | None = None,
        wake_s: float = 0.0,
        tries: int = TRIES,
        keys: int = KEYS,
        balance: float | None = None,
        seed: int = 1,
    ) -> None:
        """
        Args:
            cells: each a card and how many of them.
            utilisation: that autoscaling keeps; None: the cards are as many as they are.
            wake_s: until a card that was asked for speaks [s].
            balance: a cell with more calls for its size than so many times the mean passes them on; None: none does.
        """
        self.now = 0.0
        self.cards = np.array([number for _, number in cells], float)
        self._first_cards = self.cards.copy()
        self._draws = np.random.default_rng(seed)
        devices = [device for device, _ in cells]
        self._slots = np.array([device.slots for device in devices], float)
        self._full_s = np.array([device.full_s for device in devices])
        self._row_s = np.array([device.step_s(2) - device.step_s(1) + device.prefill_s / mean_steps() for device in devices])
        self._none_s = np.array([device.step_s(0) for device in devices])
        self._first_steps = np.array([device.first_steps for device in devices])
        self._curves = np.array([first_audio_curve(device, number) for device, number in cells])  # (cells, LOADS, LEVELS)
        capacity = self._slots / self._full_s * self.cards
        self._homes = self._draws.multinomial(keys, capacity / capacity.sum()) / keys
        self.is_open = np.ones(len(cells), bool)
        """cells that take calls"""
        self._rows = np.zeros((len(cells), BINS))
        self._queue = np.zeros(len(cells))
        self._returns: defaultdict[int, Floats] = defaultdict(lambda: np.zeros(tries))
        self._tick = 0
        self._tries, self._balance = tries, balance
        self._utilisation, self._wake_s = utilisation, wake_s
        self._busy = list[float]()
        self._coming = list[tuple[float, float]]()  # when, which share of the cards of each cell
        self._ordered_share = 1.0  # cards that are there or will come, as a share of the first ones
        self.records = list[Record]()
        self._sums = np.zeros(3)
        self._starts, self._waits_s = np.zeros(len(cells)), np.zeros(len(cells))

    @property
    def steps_per_s(self) -> float:
        """The most steps per second of all cells."""
        return float(self._capacity.sum())

    @property
    def _capacity(self) -> Floats:
        capacity: Floats = self._slots / self._full_s * self.cards
        return capacity

    def run(self, until: float, steps_per_s: Callable[[float], float]) -> None:
        """Lets time pass.

        Args:
            until: [s]
            steps_per_s: that new calls ask for at a time.
        """
        while self.now < until - TICK_S / 2:
            self._advance(self._draws.poisson(steps_per_s(self.now) / mean_steps() * TICK_S))
            self._scale()
            self._tick += 1
            self.now = self._tick * TICK_S

    def close(self, cell: int, *, dies: bool = False) -> float:
        """Ends a cell, or drains it; its clients come again elsewhere. Returns how many calls were interrupted."""
        self.is_open[cell] = False
        interrupted = float(self._rows[cell].sum()) if dies else 0.0
        if dies:
            self._rows[cell] = 0.0
            self._returns[self._tick + round(DETECTION_S / TICK_S)][0] += interrupted * repeated_share() + self._queue[cell]
            self._queue[cell] = 0.0
        return interrupted

    def open(self, cell: int) -> None:
        """Lets a cell take calls again."""
        self.is_open[cell] = True

    def figures(self, begin: float, end: float) -> Figures:
        """Returns what became of the calls of a stretch of time [s]; those count as refused that gave up."""
        records = [record for record in self.records if begin <= record.at < end]
        calls = sum(record.calls for record in records)
        cumulative = np.cumsum(sum((record.first_audio for record in records), np.zeros(len(TIMES_S))))
        places = [int(np.searchsorted(cumulative, share * cumulative[-1])) for share in (0.5, 0.95, 0.99)]
        p50, p95, p99 = (float(TIMES_S[min(place, len(TIMES_S) - 1)]) for place in places)
        used = sum(record.used for record in records) / max(1, len(records))
        return Figures(round(calls), sum(record.lost for record in records) / max(1.0, calls), (p50, p95, p99), used)

    def refusals(self, begin: float, end: float) -> float:
        """Returns how many refusals there were of a stretch of time [s]."""
        return sum(record.refusals for record in self.records if begin <= record.at < end)

    def _advance(self, calls: int) -> None:
        """Makes one tick: rows go on, slots are given, the rest waits or is refused."""
        tries = self._returns.pop(self._tick, np.zeros(self._tries))
        tries[0] += calls
        step_s = self._step_s()
        bins = TICK_S / (step_s * BIN)  # that each row goes on
        parts = math.ceil(bins.max())
        for _ in range(parts):
            flow = self._rows * (bins / parts)[:, None]
            self._rows -= flow
            self._rows[:, :-1] += flow[:, 1:]
        arriving = self._shares() * tries.sum()
        free = np.maximum(0.0, self._slots * self.cards - self._rows.sum(1))
        wait_s = np.maximum(0.0, self._queue - free) * mean_steps() / self._capacity
        room = np.where(RESERVE * wait_s < PROMISE_S, free + MAX_WAITING * self.cards - self._queue, 0.0)
        queued = np.clip(arriving, 0.0, np.maximum(0.0, room))
        starts = np.minimum(self._queue + queued, free)
        self._queue += queued - starts
        self._rows += starts[:, None] * length_shares()
        refused = arriving - queued
        lost = self._refuse(tries, refused, step_s)
        self._starts += starts
        self._waits_s += starts * wait_s
        self._sums += calls, refused.sum(), lost
        if self._tick % TICKS == TICKS - 1:
            self._record()

    def _shares(self) -> Floats:
        """Returns which share of the calls each cell gets: its own, and of those of cells that are away or too full."""
        takes = self.is_open
        if self._balance is not None:
            inside = (self._rows.sum(1) + self._queue) / self._capacity
            takes = takes & (inside <= self._balance * (takes * inside).sum() / max(1, takes.sum()))
        homes, others = np.where(takes, self._homes, 0.0), np.where(takes, self._capacity, 0.0)
        shares: Floats = homes + (1 - homes.sum()) * others / max(1e-9, others.sum())
        return shares

    def _refuse(self, tries: Floats, refused: Floats, step_s: Floats) -> float:
        """Sends refused clients away until Retry-After. Returns how many give up."""
        if not refused.any():
            return 0.0
        by_try = tries * refused.sum() / tries.sum()
        of_sequence_s = mean_steps() * step_s
        hint_s = np.maximum(LEAST_RETRY_S, of_sequence_s * (self._queue / self.cards + 1) / self._slots)
        mean_s = float((hint_s * refused).sum() / refused.sum())
        for spread in MOST_SPREAD * (np.arange(SPREADS) + 0.5) / SPREADS:
            at = self._tick + max(1, round(mean_s * (1 + spread) / TICK_S))
            self._returns[at][1:] += by_try[:-1] / SPREADS
        return float(by_try[-1])

    def _step_s(self) -> Floats:
        """Returns the duration of a step of the rows of each cell, with its share of prefills."""
        step_s: Floats = self._none_s + self._row_s * np.clip(self._rows.sum(1) / self.cards, 1, self._slots)
        return step_s

    def _record(self) -> None:
        step_s = self._step_s()
        used = np.minimum(self._rows.sum(1) / step_s / self._capacity, LOADS[-1])
        places = np.interp(used, LOADS, np.arange(len(LOADS)))
        low, cells = np.minimum(places.astype(int), len(LOADS) - 2), np.arange(len(self.cards))
        share = (places - low)[:, None]
        first_s = self._curves[cells, low] * (1 - share) + self._curves[cells, low + 1] * share  # (cells, LEVELS)
        first_s = np.maximum(first_s, (self._first_steps * step_s)[:, None])
        first_s += (self._waits_s / np.maximum(1e-9, self._starts))[:, None]
        weights = np.repeat(self._starts / len(LEVELS), len(LEVELS))
        bins = np.minimum(np.searchsorted(TIMES_S, first_s.ravel()), len(TIMES_S) - 1)
        counts: Floats = np.bincount(bins, weights, len(TIMES_S)).astype(float)
        calls, refusals, lost = self._sums
        busy = float((self._rows.sum(1) / step_s).sum() / self.steps_per_s)
        self.records.append(Record(self.now, calls, refusals, lost, busy, counts))
        self._sums[:] = self._starts[:] = self._waits_s[:] = 0.0

    def _scale(self) -> None:
        """Takes the cards that have come, and asks for more where steps are used or refused beyond the utilisation."""
        if self._utilisation is None:
            return
        for coming in [entry for entry in self._coming if entry[0] <= self.now]:
            self._coming.remove(coming)
            self.cards += coming[1] * self._first_cards
        if self._tick % round(1 / TICK_S) or not self.records:
            return
        recent = self.records[-round(LOOK_BACK_S / (TICK_S * TICKS)) :]
        present = self.cards.sum() / self._first_cards.sum()
        refused = sum(record.refusals for record in recent) * mean_steps() / (TICKS * TICK_S * self.steps_per_s)
        need = present * (sum(record.used for record in recent) + refused) / len(recent) / self._utilisation
        if need > (1 + LEAST_GROWTH) * self._ordered_share:
            self._coming.append((self.now + self._wake_s, need - self._ordered_share))
            self._ordered_share = need


def hour(cells: Cells, steps_per_s: float) -> Iterator[tuple[str, Figures]]:
    """Yields what happens, each time with its figures.

    Args:
        steps_per_s: that all listeners ask for; half of them are there when it begins.
    """

    def demand(now: float) -> float:
        share = min(1.0, 0.5 + 0.5 * max(0.0, now - DOUBLED) / DOUBLED)
        return steps_per_s * share * (STORM_TIMES if STORM <= now < STORM + STORM_S else 1.0)

    def after(name: str, begin: float, seconds: float) -> tuple[str, Figures]:
        cells.run(begin + seconds, demand)
        return name, cells.figures(begin, begin + seconds)

    yield after("half of the listeners", AFTER_S, DOUBLED - AFTER_S)
    yield after("twice as many within 5 minutes", DOUBLED, DOUBLED)
    yield after("all of them", 2 * DOUBLED, STORM - 2 * DOUBLED)
    yield after(f"a storm: {STORM_TIMES:g} times as many, {STORM_S:g} s", STORM, STORM_S)
    yield after("the minute after", STORM + STORM_S, AFTER_S)
    cells.run(DEATH, demand)
    interrupted = cells.close(0, dies=True)
    yield after(f"a cell dies, with {interrupted:,.0f} calls", DEATH, AFTER_S)
    cells.run(DEATH + RETURN_S, demand)
    cells.open(0)
    cells.run(ROLLOUT, demand)
    numbers = range(len(cells.cards))
    groups = [numbers[first :: min(GROUPS, len(numbers))] for first in range(min(GROUPS, len(numbers)))]
    for place, group in enumerate(groups):
        for cell in group:
            cells.close(cell)
        cells.run(ROLLOUT + (place + 1) * (DRAIN_S + START_S + DETECTION_S), demand)
        for cell in group:
            cells.open(cell)
    yield f"a rollout, {len(groups)} groups", cells.figures(ROLLOUT, cells.now)
