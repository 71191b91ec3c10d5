"""Device clock: how long work takes on a GPU, by the GPU's own clock; on a CPU by the host's.

In:    a function
Out:   seconds; the kernels that ran
Owns:  nothing
Never: an engine
"""

import time
from collections.abc import Callable

import torch

WARM_RUNS = 3


def seconds_on(device: str, work: Callable[[], object], *, times: int, repeats: int = 5) -> float:
    """Returns the median over `repeats` of the mean seconds of `times` calls."""
    for _ in range(WARM_RUNS):
        work()
    measure = _by_events if device == "cuda" else _by_host
    found = sorted(measure(work, times) for _ in range(repeats))
    return found[len(found) // 2]


def _by_events(work: Callable[[], object], times: int) -> float:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    began.record()
    for _ in range(times):
        work()
    ended.record()
    ended.synchronize()
    seconds: float = began.elapsed_time(ended) / 1e3 / times
    return seconds


def _by_host(work: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


def kernels_of(work: Callable[[], object]) -> dict[str, object]:
    """Returns the nodes of a call on a GPU, their sum of microseconds, and the slowest 30: name, times, microseconds each."""
    for _ in range(WARM_RUNS):
        work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    events = [event for event in profile.key_averages() if "CUDA" in str(event.device_type)]
    events.sort(key=lambda event: -event.device_time_total)
    return {
        "nodes": sum(event.count for event in events),
        "busy_us": sum(event.device_time_total for event in events),
        "kernels": [(event.key[:90], event.count, round(event.device_time_total / event.count, 2)) for event in events[:30]],
    }
