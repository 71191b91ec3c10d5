"""Device clock: how long work takes on a GPU, by the GPU's own clock; on a CPU by the host's; and of which kernels it consists.

In:    a function
Out:   seconds; the kernels that ran
Never: what the work is
"""

import time
from collections.abc import Callable
from operator import attrgetter

import torch

WARM_RUNS = 3


def mean_seconds(device: str, work: Callable[[], object], times: int) -> float:
    """Returns the mean seconds of `times` calls."""
    return (_by_events if device == "cuda" else _by_host)(work, times) / times


def seconds_on(device: str, work: Callable[[], object], *, times: int, repeats: int = 5) -> float:
    """Returns the median over `repeats` of the mean seconds of `times` calls."""
    for _ in range(WARM_RUNS):
        work()
    durations = sorted(mean_seconds(device, work, times) for _ in range(repeats))
    return durations[len(durations) // 2]


def kernels_of(device: str, work: Callable[[], object]) -> dict[str, object]:
    """Returns the nodes of a call, their sum of microseconds, and the slowest 30: name, times, microseconds each.

    On a CPU the nodes are torch's operators: kernels of ours are none there.
    """
    is_gpu = device == "cuda"
    wait = torch.cuda.synchronize if is_gpu else torch.cpu.synchronize
    for _ in range(WARM_RUNS if is_gpu else 0):
        work()
    wait()
    activity = torch.profiler.ProfilerActivity.CUDA if is_gpu else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as profile:
        work()
        wait()
    time_of = attrgetter("device_time_total" if is_gpu else "self_cpu_time_total")
    events = [event for event in profile.key_averages() if activity.name in str(event.device_type)]
    events.sort(key=lambda event: -time_of(event))
    return {
        "nodes": sum(event.count for event in events),
        "busy_us": sum(map(time_of, events)),
        "kernels": [(event.key[:90], event.count, round(time_of(event) / event.count, 2)) for event in events[:30]],
    }


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
