"""Device clock: how long work takes on a device once it is warm, and of which kernels it consists.

In:    a function
Out:   seconds; the kernels that ran
Owns:  nothing
Never: an engine
"""

from collections.abc import Callable

import torch

from scripts.bench.device_clock import mean_seconds

WARM_RUNS = 3


def seconds_on(device: str, work: Callable[[], object], *, times: int, repeats: int = 5) -> float:
    """Returns the median over `repeats` of the mean seconds of `times` calls."""
    for _ in range(WARM_RUNS):
        work()
    found = sorted(mean_seconds(device, work, times) for _ in range(repeats))
    return found[len(found) // 2]


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
