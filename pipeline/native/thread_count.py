"""Thread count: how many threads native code uses where the configuration names no number.

In:    OMP_NUM_THREADS; the processor's cores that this process may use
Out:   a number of threads
Never: threads
"""

import os
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def default_threads() -> int:
    """Returns the number of cores that this process may use, or OMP_NUM_THREADS, which Ray sets, if that is fewer."""
    cores = len(_cores())
    setting = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(int(setting), cores) if setting.isdigit() and int(setting) > 0 else cores


def _cores(topology: Path = TOPOLOGY) -> set[str]:
    """Returns a name for each core: two threads of one core share its arithmetic, so one of them is enough."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    return {_siblings(topology / f"cpu{cpu}" / "topology" / "thread_siblings_list", cpu) for cpu in cpus}


def _siblings(file: Path, cpu: int) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return str(cpu)
