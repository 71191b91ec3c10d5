"""Graphs: work recorded once as a CUDA graph, on the stream of the thread that will replay it.

In:    a function that touches static tensors only
Out:   torch.cuda.CUDAGraph
Owns:  the lock: a process records one graph at a time
Never: the content of the work
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

GraphPool = Any
"""what torch.cuda.graph_pool_handle() returns"""
WARM_RUNS = 2
"""runs before a recording: the first ones choose kernels, compile Triton code and allocate workspaces"""
_RECORDING = threading.Lock()


def use_own_stream(*, urgent: bool) -> None:
    """Gives the calling thread a stream of its own; on a full GPU the work of urgent streams goes first."""
    # Never the default stream: it cannot be recorded, and it waits for every other.
    torch.cuda.set_stream(torch.cuda.Stream(priority=-1 if urgent else 0))  # type: ignore[no-untyped-call]


@contextmanager
def _float32_products(*, tf32: bool) -> Iterator[None]:
    """Sets how float32 is multiplied. The setting is the whole process's: hold the lock, or another recording takes it over."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def record(work: Callable[[], None], *, pool: GraphPool = None, tf32: bool = False) -> torch.cuda.CUDAGraph:
    """Runs the work a few times, records it, and returns the graph.

    Args:
        work: touches static tensors only.
        pool: shared by graphs that are replayed one after another on one stream and exchange data through static tensors
            only: they share their intermediate memory.
        tf32: whether its float32 products run on tensor cores, with 10 bits of mantissa.
    """
    stream = torch.cuda.current_stream()
    with _RECORDING, _float32_products(tf32=tf32):
        for _ in range(WARM_RUNS):
            work()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: another thread of this process may use the GPU while this one records.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            work()
    return graph
