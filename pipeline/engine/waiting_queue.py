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
from collections.abc import Iterator

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

    def predict(self, sequence: Sequence) -> float:
        """Returns how many steps the sequence will probably make in all."""
        least = max(sequence.sampling.min_steps, sequence.steps + 1.0)
        return min(float(sequence.max_steps), max(least, self._share.value * sequence.max_steps))

    def longest(self, sequence: Sequence) -> float:
        """Returns after how many steps the sequence will almost certainly have ended; one that outlived that is half-way."""
        share = self._share.value + DEVIATIONS * self._deviation.value
        steps = max(float(sequence.sampling.min_steps), share * sequence.max_steps)
        if sequence.steps >= steps:
            steps = (sequence.steps + sequence.max_steps) / 2
        return min(float(sequence.max_steps), steps + 1)  # the end is drawn in a step of its own

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
        left = [sequence for sequence in self._waiting if id(sequence) in gone]
        self._waiting = [sequence for sequence in self._waiting if id(sequence) not in gone]
        for sequence in sorted(left, key=lambda each: each.virtual_start, reverse=True):
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
        order = Order()
        for sequence in self._waiting:
            order.push(sequence)
        if newcomer is not None:
            self.place(newcomer)
            order.push(newcomer)
        return order

    def place(self, sequence: Sequence) -> None:
        """Sets the rank and the virtual start of a sequence that would join now: behind those of its tenant."""
        lane, tenant = sequence.lane, sequence.tenant
        siblings = (each.virtual_start for each in self._waiting if each.lane is lane and each.tenant == tenant)
        sequence.virtual_start = max(self._served[lane], self._ends.get((lane, tenant), 0.0), max(siblings, default=0.0))
        sequence.rank = sequence.submitted_at + self._patience[lane]

    def _advance_siblings(self, gone: Sequence) -> None:
        """Moves those that a tenant has put behind a sequence which got no slot forward, though past no promised sequence."""
        earliest = max(self._served[gone.lane], gone.virtual_start)
        lane = (each for each in self._waiting if each.lane is gone.lane)
        for each in sorted(lane, key=lambda each: each.virtual_start):
            if each.tenant == gone.tenant and each.virtual_start >= gone.virtual_start and each.preempted_state is None:
                each.virtual_start = max(earliest, each.virtual_start - gone.charged + gone.steps)
            if each.promised_at is not None:
                earliest = max(earliest, each.virtual_start)

    def _remove(self, gone: set[int]) -> None:
        self._waiting = [sequence for sequence in self._waiting if id(sequence) not in gone]
        present = {sequence.lane for sequence in self._waiting}
        # Tenants are held to their shares only while they compete: an empty lane forgets them.
        self._ends = {owner: end for owner, end in self._ends.items() if owner[0] in present}


class Order:
    """The waiting sequences in the order of service: the plan takes from it, and so does the playback of a promise."""

    def __init__(self) -> None:
        self._lanes = {lane: _LaneOrder() for lane in Lane}
        self._pushed = 0

    def push(self, sequence: Sequence) -> None:
        """Adds a sequence."""
        self._lanes[sequence.lane].push(self._pushed, sequence)
        self._pushed += 1

    def listener(self) -> Sequence | None:
        """Returns the next sequence that somebody listens to; None if only bulk waits."""
        interactive, standard = self._lanes[Lane.INTERACTIVE], self._lanes[Lane.STANDARD]
        if interactive.oldest <= standard.oldest:
            return interactive.head(until=standard.oldest)
        return standard.head(until=interactive.oldest)

    def bulk(self, until: float = math.inf) -> Sequence | None:
        """Returns the next bulk sequence, of those that rank up to `until`."""
        return self._lanes[Lane.BULK].head(until)

    def pop(self, sequence: Sequence) -> None:
        """Removes what `listener` or `bulk` has just returned."""
        self._lanes[sequence.lane].pop()


class _LaneOrder:
    """One lane: of the sequences that rank up to a limit, the one with the earliest virtual start comes first."""

    def __init__(self) -> None:
        self._ranks: list[tuple[float, int]] = []
        self._popped: set[int] = set()
        self._later: list[tuple[float, int, Sequence]] = []  # by rank
        self._ready: list[tuple[float, int, Sequence]] = []  # by virtual start

    def push(self, number: int, sequence: Sequence) -> None:
        heapq.heappush(self._ranks, (sequence.rank, number))
        heapq.heappush(self._later, (sequence.rank, number, sequence))

    @property
    def oldest(self) -> float:
        while self._ranks and self._ranks[0][1] in self._popped:
            heapq.heappop(self._ranks)
        return self._ranks[0][0] if self._ranks else math.inf

    def head(self, until: float) -> Sequence | None:
        while self._later and self._later[0][0] <= until:
            _, number, sequence = heapq.heappop(self._later)
            heapq.heappush(self._ready, (sequence.virtual_start, number, sequence))
        while self._ready and self._ready[0][2].rank > until:
            _, number, sequence = heapq.heappop(self._ready)
            heapq.heappush(self._later, (sequence.rank, number, sequence))
        return self._ready[0][2] if self._ready else None

    def pop(self) -> None:
        self._popped.add(heapq.heappop(self._ready)[1])
