"""Graphs: work recorded once as a CUDA graph, on the stream of the thread that will replay it.

In:    a function that touches static tensors only
Out:   torch.cuda.CUDAGraph
Owns:  the lock: a process records one graph at a time
Never: what is recorded
"""

import threading
from collections.abc import Callable
from typing import Any

import torch

GraphPool = Any
"""what torch.cuda.graph_pool_handle() gives"""
WARM_RUNS = 2
"""before a recording: libraries choose kernels, Triton compiles, workspaces are allocated in the first runs"""
_RECORDING = threading.Lock()


def use_own_stream(*, urgent: bool) -> None:
    """Give the calling thread a stream of its own; work of urgent streams goes before others' on a full GPU."""
    # Never the default stream: it cannot be recorded, and it waits for every other.
    torch.cuda.set_stream(torch.cuda.Stream(priority=-1 if urgent else 0))  # type: ignore[no-untyped-call]


def record(work: Callable[[], None], *, pool: GraphPool = None) -> torch.cuda.CUDAGraph:
    """Run the work a few times, then record it.

    Args:
        pool: of graphs that are replayed one after another on one stream and hand nothing
            over but static tensors: they then share their intermediate memory.
    """
    stream = torch.cuda.current_stream()
    with _RECORDING:
        for _ in range(WARM_RUNS):
            work()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: another thread of this process may use the GPU while this one records.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            work()
    return graph
