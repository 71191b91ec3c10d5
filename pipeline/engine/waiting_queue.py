"""WaitQueue: the sequences that wait for a slot, and the order in which they get one.

In:    sequences
Out:   the order in which slots go to them
Owns:  the waiting sequences, each tenant's virtual time
Never: slots, clocks, torch

Between lanes patience decides: a lane is as urgent as its longest waiting sequence, delayed by the lane's patience. So an
interactive sequence overtakes bulk ones that arrived up to `bulk_patience_s` before it and no older one: no lane starves.

Within a lane tenants get equal shares of steps (start-time fair queueing): in virtual time a sequence starts when its tenant's
previous one ended, and not before the one served last started. A tenant with many sequences delays only its own.
"""

import heapq
from collections.abc import Iterator

from pipeline.config import EngineConfig
from pipeline.engine.sequence import Sequence
from pipeline.ewma import Ewma
from pipeline.types import Lane

EWMA_WEIGHT = 0.1  # of the latest sequence in the mean share of its permitted steps that a sequence makes


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
        least = sequence.sampling.min_steps
        return min(float(sequence.max_steps), max(least, self._share.value * sequence.max_steps, sequence.steps + 1.0))

    def learn(self, sequence: Sequence) -> None:
        """Updates the prediction with a sequence that has ended by itself."""
        self._share.add(sequence.steps / sequence.max_steps)

    def virtual_start_for(self, sequence: Sequence) -> float:
        """Returns the virtual start the sequence would have if it joined now [steps]."""
        return max(self._served[sequence.lane], self._ends.get((sequence.lane, sequence.tenant), 0.0))

    def join(self, sequence: Sequence) -> None:
        """Adds a sequence. Its place follows from its lane, its tenant and its time of submission."""
        sequence.virtual_start = self.virtual_start_for(sequence)
        self._ends[sequence.lane, sequence.tenant] = sequence.virtual_start + self.predict(sequence)
        self._waiting.append(sequence)

    def rejoin(self, sequence: Sequence) -> None:
        """Adds a preempted sequence again, at its old place in the order."""
        self._waiting.append(sequence)

    def leave(self, gone: set[int]) -> None:
        """Removes the sequences with these ids; those not cancelled count as served."""
        for sequence in self._waiting:
            if id(sequence) in gone and not sequence.cancelled:
                self._served[sequence.lane] = max(self._served[sequence.lane], sequence.virtual_start)
        self._waiting = [sequence for sequence in self._waiting if id(sequence) not in gone]
        present = {sequence.lane for sequence in self._waiting}
        # Tenants are held to their shares only while they compete: an empty lane forgets them.
        self._ends = {key: end for key, end in self._ends.items() if key[0] in present}

    def clear(self) -> None:
        """Removes all sequences."""
        self._waiting.clear()

    def priority_key(self, sequence: Sequence) -> float:
        """Returns the sequence's rank among lanes: the smaller, the sooner [monotonic s]."""
        return sequence.submitted_at + self._patience[sequence.lane]

    def order(self, newcomer: Sequence | None = None) -> Iterator[Sequence]:
        """Yields the sequences in the order of service; with a newcomer, as if it had joined."""
        heads: dict[Lane, list[tuple[float, int, Sequence]]] = {}
        oldest: dict[Lane, list[tuple[float, int]]] = {}
        waiting = [*self._waiting] if newcomer is None else [*self._waiting, newcomer]
        for number, sequence in enumerate(waiting):
            virtual_start = self.virtual_start_for(sequence) if sequence is newcomer else sequence.virtual_start
            heads.setdefault(sequence.lane, []).append((virtual_start, number, sequence))
            oldest.setdefault(sequence.lane, []).append((self.priority_key(sequence), number))
        for lane in heads:
            heapq.heapify(heads[lane])
            heapq.heapify(oldest[lane])
        gone: set[int] = set()
        while heads:
            for lane in heads:
                while oldest[lane][0][1] in gone:
                    heapq.heappop(oldest[lane])
            lane = min(heads, key=lambda each: oldest[each][0][0])
            _, number, sequence = heapq.heappop(heads[lane])
            gone.add(number)
            if not heads[lane]:
                del heads[lane]
            yield sequence
