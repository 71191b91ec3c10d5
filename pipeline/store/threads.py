"""Threads: where stores are asked, so that a store that hangs holds up nothing but what needs it.

In:    blocking work with a store
Out:   its result
Owns:  an executor
Never: other work: encoders, files and models have the event loop's own threads
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

THREADS = ThreadPoolExecutor(8, thread_name_prefix="store")


async def ask_store(work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """Runs `work` in a thread of the stores, as asyncio.to_thread does in one of the loop's."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(THREADS, lambda: context.run(work, *args, **more))
