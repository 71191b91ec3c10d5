"""Round times: running means of how long rounds, prefills and sequences take, and what follows from them.

In:    measured times
Out:   the throughput that promises count on, the hint when to come back
Owns:  the means
Never: clocks, threads: the engine's loop measures, and the simulation of a fleet (serve/simulation) knows
"""

from pipeline.engine.promises import RESERVE, ThroughputEstimate
from pipeline.engine.scheduler import Scheduler
from pipeline.ewma import ClippedEwma

EWMA_WEIGHT = 0.1  # of the newest value in the running means
MOST_TIMES = 4.0  # times the mean is the most one measurement counts: a process that was stopped for a minute is not slow
LEAST_RETRY_S = 0.1


class RoundTimes:
    """The times of one engine."""

    def __init__(self, steps_per_round: int) -> None:
        self._steps_per_round = steps_per_round
        self.round_s = ClippedEwma(EWMA_WEIGHT, 0.0, most_times=MOST_TIMES)
        self.prefill_call_s = ClippedEwma(EWMA_WEIGHT, 0.0, most_times=MOST_TIMES)
        self.sequence_s = ClippedEwma(EWMA_WEIGHT, 1.0, most_times=MOST_TIMES)
        """from submission to the end"""

    def throughput(self, now: float) -> ThroughputEstimate:
        """Returns the present speed less a reserve, because steps vary.

        Args:
            now: monotonic time [s].
        """
        step_s = self.round_s.value / self._steps_per_round
        return ThroughputEstimate(now, RESERVE * step_s, RESERVE * self.prefill_call_s.value)

    def retry_after_s(self, scheduler: Scheduler) -> float:
        """Returns after how long a slot will probably be free, at least LEAST_RETRY_S [s]."""
        return max(self.sequence_s.value * (scheduler.num_waiting + 1) / scheduler.usable_slots, LEAST_RETRY_S)
