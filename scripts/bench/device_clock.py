"""Device clock: how long work takes on a GPU, by the GPU's own clock; on a CPU by the host's.

In:    a function
Out:   seconds
Owns:  nothing
Never: what the work is
"""

import time
from collections.abc import Callable

import torch


def mean_seconds(device: str, work: Callable[[], object], times: int) -> float:
    """Returns the mean seconds of `times` calls."""
    return (_by_events if device == "cuda" else _by_host)(work, times) / times


def _by_events(work: Callable[[], object], times: int) -> float:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    began.record()
    for _ in range(times):
        work()
    ended.record()
    ended.synchronize()
    seconds: float = began.elapsed_time(ended) / 1e3
    return seconds


def _by_host(work: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - began
