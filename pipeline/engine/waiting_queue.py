"""WaitQueue: the sequences that wait for a slot, and the order in which they get one.

In:    sequences
Out:   the order in which slots go to them
Owns:  the waiting sequences, each tenant's virtual time
Never: slots, clocks, torch

Between lanes patience decides: a sequence ranks by when it was submitted, delayed by its lane's patience. So an interactive
sequence overtakes standard ones that arrived up to `standard_patience_s` before it and no older one.

Within a lane tenants get equal shares of steps (start-time fair queueing): in virtual time a sequence starts when its tenant's
previous one ended, and not before the one served last started. A tenant with many sequences delays only its own, and pays for
the steps that were made: what was predicted beyond them is given back when a sequence ends or leaves.
"""

import heapq
import math
from bisect import insort
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from pipeline.config import EngineConfig
from pipeline.engine.sequence import Sequence
from pipeline.ewma import Ewma
from pipeline.types import Lane

EWMA_WEIGHT = 0.1  # of the latest sequence in the mean share of its permitted steps that a sequence makes
DEVIATIONS = 2.5  # mean deviations above the mean share: promises assume that sequences are so long


class WaitQueue:
    """The waiting sequences, and their order of service."""

    def __init__(self, config: EngineConfig) -> None:
        self._patience = {
            Lane.INTERACTIVE: 0.0,
            Lane.STANDARD: config.standard_patience_s,
            Lane.BULK: max(config.standard_patience_s, config.bulk_patience_s),
        }
        self._most_steps = config.max_steps
        self._waiting: list[Sequence] = []
        self._served = dict.fromkeys(Lane, 0.0)  # virtual start of the last sequence that left each lane
        self._ends: dict[tuple[Lane, str], float] = {}  # virtual end of each tenant's last sequence
        self._share = Ewma(EWMA_WEIGHT, 0.5)  # steps that a sequence makes, as a share of its max_steps
        self._deviation = Ewma(EWMA_WEIGHT, 0.2)  # of one share from their mean

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        """Iterates over the waiting sequences, in order of arrival."""
        return iter(self._waiting)

    def count(self, lane: Lane) -> int:
        """Returns how many sequences of one lane wait."""
        return sum(sequence.lane is lane for sequence in self._waiting)

    @property
    def usual_steps(self) -> float:
        """Steps that a sequence of which nothing is known will probably make."""
        return self._share.value * self._most_steps

    def predict(self, sequence: Sequence) -> float:
        """Returns how many steps the sequence will probably make in all."""
        return self.predicted((sequence,))[0]

    def predicted(self, sequences: Iterable[Sequence]) -> list[float]:
        """Returns the same of several."""
        share, all_steps = self._share.value, list[float]()
        for sequence in sequences:  # conditions: this runs for every row of every report
            steps = share * sequence.max_steps
            if steps < sequence.steps + 1.0:
                steps = sequence.steps + 1.0
            if steps < sequence.sampling.min_steps:
                steps = float(sequence.sampling.min_steps)
            all_steps.append(steps if steps < sequence.max_steps else float(sequence.max_steps))
        return all_steps

    def longest(self, sequences: list[Sequence]) -> NDArray[np.float64]:
        """Returns after how many steps each will almost certainly have ended; one that outlived that is half-way: (n,)."""
        counts = [(sequence.steps, sequence.max_steps, sequence.sampling.min_steps) for sequence in sequences]
        current, most, least = np.array(counts, np.float64).reshape(-1, 3).T
        share = self._share.value + DEVIATIONS * self._deviation.value
        steps = np.maximum(least, share * most)
        steps = np.where(current >= steps, (current + most) / 2, steps)
        longest: NDArray[np.float64] = np.minimum(most, steps + 1)  # the end is drawn in a step of its own
        return longest

    def learn(self, sequence: Sequence) -> None:
        """Updates the prediction with a sequence that has ended by itself."""
        share = sequence.steps / sequence.max_steps
        self._deviation.add(abs(share - self._share.value))
        self._share.add(share)

    def join(self, sequence: Sequence) -> None:
        """Adds a sequence. Its place follows from its lane, its tenant and its time of submission."""
        self.place(sequence)
        sequence.charged = self.predict(sequence)
        owner = (sequence.lane, sequence.tenant)
        self._ends[owner] = max(self._served[sequence.lane], self._ends.get(owner, 0.0)) + sequence.charged
        self._waiting.append(sequence)

    def rejoin(self, sequence: Sequence) -> None:
        """Adds a preempted sequence again, at its old place in the order."""
        self._waiting.append(sequence)

    def serve(self, served: set[int]) -> None:
        """Removes the sequences with these ids, which have got a slot."""
        for sequence in self._waiting:
            if id(sequence) in served:
                self._served[sequence.lane] = max(self._served[sequence.lane], sequence.virtual_start)
        self._remove(served)

    def leave(self, gone: set[int]) -> None:
        """Removes the sequences with these ids, which get no slot; the steps that were not made are given back."""
        leaving = [sequence for sequence in self._waiting if id(sequence) in gone]
        self._waiting = [sequence for sequence in self._waiting if id(sequence) not in gone]
        for sequence in sorted(leaving, key=lambda entry: entry.virtual_start, reverse=True):
            self._advance_siblings(sequence)
            self.settle(sequence)
        self._remove(gone)

    def settle(self, sequence: Sequence) -> None:
        """Corrects what the tenant of a sequence that has ended pays: the steps it made, not those that were predicted."""
        owner = (sequence.lane, sequence.tenant)
        if owner in self._ends:
            self._ends[owner] += sequence.steps - sequence.charged

    def clear(self) -> None:
        """Removes all sequences."""
        self._waiting.clear()

    def order(self, newcomer: Sequence | None = None) -> "Order":
        """Returns the order of service; with a newcomer, as if it had joined."""
        if newcomer is None:
            return Order(self._waiting)
        self.place(newcomer)
        return Order([*self._waiting, newcomer])

    def place(self, sequence: Sequence) -> None:
        """Sets the rank and the virtual start of a sequence that would join now: behind those of its tenant."""
        lane, tenant = sequence.lane, sequence.tenant
        siblings = (sibling.virtual_start for sibling in self._waiting if sibling.lane is lane and sibling.tenant == tenant)
        sequence.virtual_start = max(self._served[lane], self._ends.get((lane, tenant), 0.0), max(siblings, default=0.0))
        sequence.rank = sequence.submitted_at + self._patience[lane]

    def _advance_siblings(self, gone: Sequence) -> None:
        """Moves those that a tenant has put behind a sequence which got no slot forward, though past no promised sequence."""
        earliest = max(self._served[gone.lane], gone.virtual_start)
        lane = (sibling for sibling in self._waiting if sibling.lane is gone.lane)
        for other in sorted(lane, key=lambda entry: entry.virtual_start):
            if other.tenant == gone.tenant and other.virtual_start >= gone.virtual_start and other.preempted_state is None:
                other.virtual_start = max(earliest, other.virtual_start - gone.charged + gone.steps)
            if other.promised_at is not None:
                earliest = max(earliest, other.virtual_start)

    def _remove(self, gone: set[int]) -> None:
        self._waiting = [sequence for sequence in self._waiting if id(sequence) not in gone]
        present = {sequence.lane for sequence in self._waiting}
        # Tenants are held to their shares only while they compete: an empty lane forgets them.
        self._ends = {owner: end for owner, end in self._ends.items() if owner[0] in present}


class Order:
    """The waiting sequences in the order of service: the plan takes from it, and so does the playback of a promise."""

    def __init__(self, waiting: list[Sequence]) -> None:
        entries: dict[Lane, list[tuple[float, int, Sequence]]] = {lane: [] for lane in Lane}
        for number, sequence in enumerate(waiting):
            entries[sequence.lane].append((sequence.rank, number, sequence))
        self._pushed = len(waiting)
        self._bulk = _LaneOrder(entries[Lane.BULK])
        self._listeners = self._merge(_LaneOrder(entries[Lane.INTERACTIVE]), _LaneOrder(entries[Lane.STANDARD]))
        self.listener = next(self._listeners, None)
        """the next sequence that somebody listens to; None if only bulk waits"""

    def bulk(self, until: float = math.inf) -> Sequence | None:
        """Returns the next bulk sequence, of those that rank up to `until`."""
        return self._bulk.head(until)

    def push(self, victim: Sequence) -> None:
        """Adds a bulk sequence that has been preempted."""
        self._bulk.push(self._pushed, victim)
        self._pushed += 1

    def pop(self, sequence: Sequence) -> None:
        """Removes `listener`, or what `bulk` has just returned."""
        if sequence is self.listener:
            self.listener = next(self._listeners, None)
        else:
            self._bulk.pop()

    def _merge(self, interactive: "_LaneOrder", standard: "_LaneOrder") -> Iterator[Sequence]:
        while True:
            older, other = (interactive, standard) if interactive.oldest <= standard.oldest else (standard, interactive)
            sequence = older.head(until=other.oldest)
            if sequence is None:
                return
            older.pop()
            yield sequence


class _LaneOrder:
    """One lane: of the sequences that rank up to a limit, the one with the earliest virtual start comes first."""

    def __init__(self, entries: list[tuple[float, int, Sequence]]) -> None:
        entries.sort()
        self._ranks = entries  # by rank: whoever has been popped stays in the list
        self._first = 0  # the oldest that has not been popped
        self._later = entries.copy()  # by rank
        self._next = 0  # the first that is not in `_ready`
        self._ready: list[tuple[float, int, Sequence]] = []  # a heap, by virtual start
        self._popped: set[int] = set()
        self.oldest = entries[0][0] if entries else math.inf
        """rank of the oldest"""

    def push(self, number: int, sequence: Sequence) -> None:
        entry = (sequence.rank, number, sequence)
        insort(self._ranks, entry, lo=self._first)
        insort(self._later, entry, lo=self._next)
        self.oldest = self._ranks[self._first][0]

    def head(self, until: float) -> Sequence | None:
        later, ready = self._later, self._ready
        while self._next < len(later) and later[self._next][0] <= until:
            _, number, sequence = later[self._next]
            heapq.heappush(ready, (sequence.virtual_start, number, sequence))
            self._next += 1
        while ready and ready[0][2].rank > until:
            _, number, sequence = heapq.heappop(ready)
            insort(later, (sequence.rank, number, sequence), lo=self._next)
        return ready[0][2] if ready else None

    def pop(self) -> None:
        ranks, popped = self._ranks, self._popped
        popped.add(heapq.heappop(self._ready)[1])
        while self._first < len(ranks) and ranks[self._first][1] in popped:
            self._first += 1
        self.oldest = ranks[self._first][0] if self._first < len(ranks) else math.inf
