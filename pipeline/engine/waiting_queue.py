"""WaitQueue: everybody who waits for a slot, and whose turn it is.

In:    sequences
Out:   the order in which slots go to them
Owns:  who waits, each tenant's virtual time
Never: slots, clocks, torch

Between lanes patience decides: a lane is as urgent as its longest waiting sequence, moved by the lane's patience. So an
interactive sequence overtakes bulk ones that came up to `bulk_patience_s` before it and no older one: nobody starves.

Within a lane tenants get equal shares of steps (start-time fair queueing): in virtual time a sequence begins when its tenant's
previous one ended, and not before the one served last began. Whoever sends much waits behind himself.
"""

import heapq
from collections.abc import Iterator

from pipeline.config import EngineConfig
from pipeline.engine.sequence import Sequence
from pipeline.ewma import Ewma
from pipeline.types import Lane

EWMA_WEIGHT = 0.1  # of the latest sequence in the share of its steps that one makes


class WaitQueue:
    """Who waits, and in which order."""

    def __init__(self, config: EngineConfig) -> None:
        self._patience = {
            Lane.INTERACTIVE: 0.0,
            Lane.STANDARD: config.standard_patience_s,
            Lane.BULK: max(config.standard_patience_s, config.bulk_patience_s),
        }
        self._waiting: list[Sequence] = []
        self._served = dict.fromkeys(Lane, 0.0)  # virtual begin of the last one that left a lane's line
        self._ends: dict[tuple[Lane, str], float] = {}  # virtual end of a tenant's last one
        self._share = Ewma(EWMA_WEIGHT, 0.5)  # steps a sequence makes of those it may

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        """Everybody, in the order they came."""
        return iter(self._waiting)

    def count(self, lane: Lane) -> int:
        """Of one lane."""
        return sum(sequence.lane is lane for sequence in self._waiting)

    def predict(self, sequence: Sequence) -> float:
        """Steps it will probably make."""
        least = sequence.sampling.min_steps
        return min(float(sequence.max_steps), max(least, self._share.value * sequence.max_steps, sequence.steps + 1.0))

    def learn(self, sequence: Sequence) -> None:
        """A sequence has ended by itself."""
        self._share.add(sequence.steps / sequence.max_steps)

    def virtual_start_for(self, sequence: Sequence) -> float:
        """Its virtual begin, were it to join now."""
        return max(self._served[sequence.lane], self._ends.get((sequence.lane, sequence.tenant), 0.0))

    def join(self, sequence: Sequence) -> None:
        """Wait. Its place follows from its lane, its tenant and when it was submitted."""
        sequence.virtual_start = self.virtual_start_for(sequence)
        self._ends[sequence.lane, sequence.tenant] = sequence.virtual_start + self.predict(sequence)
        self._waiting.append(sequence)

    def rejoin(self, sequence: Sequence) -> None:
        """Wait again, interrupted: where it was in the order."""
        self._waiting.append(sequence)

    def leave(self, gone: set[int]) -> None:
        """Take out the sequences of these ids, served or not."""
        for sequence in self._waiting:
            if id(sequence) in gone and not sequence.cancelled:
                self._served[sequence.lane] = max(self._served[sequence.lane], sequence.virtual_start)
        self._waiting = [sequence for sequence in self._waiting if id(sequence) not in gone]
        present = {sequence.lane for sequence in self._waiting}
        # A lane nobody waits in has no debts: only who competes is held to shares.
        self._ends = {key: end for key, end in self._ends.items() if key[0] in present}

    def clear(self) -> None:
        """Forget everybody."""
        self._waiting.clear()

    def priority_key(self, sequence: Sequence) -> float:
        """The smaller, the sooner [monotonic s]."""
        return sequence.submitted_at + self._patience[sequence.lane]

    def order(self, newcomer: Sequence | None = None) -> Iterator[Sequence]:
        """Everybody in the order of service; with a newcomer, as if it had joined."""
        heads: dict[Lane, list[tuple[float, int, Sequence]]] = {}
        oldest: dict[Lane, list[tuple[float, int]]] = {}
        everybody = [*self._waiting] if newcomer is None else [*self._waiting, newcomer]
        for number, sequence in enumerate(everybody):
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
