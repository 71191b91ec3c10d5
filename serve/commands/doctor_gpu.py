"""Doctor, GPU: whether a GPU, its driver and Triton can run a configuration.

In:    the device settings of a configuration; this machine
Out:   sentences about what is wrong, with advice
Never: allocating on the GPU
"""

import ctypes
import importlib.util
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import torch

from pipeline.config import PipelineConfig
from pipeline.errors import ConfigError
from pipeline.model.gpu.identity import UNKNOWN, driver_version
from pipeline.model.gpu.prepare import refuse_old
from pipeline.paths import triton_folder
from serve.simulation.roofline import MIB, needed_bytes

LEAST_DRIVERS = {"12": 525, "13": 580}
"""major version of CUDA -> NVIDIA's oldest driver for it (CUDA's release notes, table of driver versions)"""
COMPILERS = ("cc", "gcc", "clang")


def why_no_gpu(driver: str, cuda: str | None) -> tuple[str, str]:
    """Returns why torch sees no GPU, as far as that can be known, and what to do."""
    if cuda is None:
        return "this torch is built for CPUs only", "install torch for CUDA: pip install torch, or use configs/cpu.yaml"
    least = LEAST_DRIVERS.get(cuda.split(".")[0])
    if driver == UNKNOWN:
        return "torch sees no GPU, and no NVIDIA driver is loaded", (
            f"install NVIDIA's driver{f' {least} or newer' if least else ''} (nvidia-smi must work), or use configs/cpu.yaml"
        )
    if least and int(driver.split(".")[0]) < least:
        return f"NVIDIA's driver {driver} is too old for torch's CUDA {cuda}", (
            f"install driver {least} or newer, or a torch for an older CUDA, or use configs/cpu.yaml"
        )
    return f"torch sees no GPU, though NVIDIA's driver {driver} is loaded", (
        "check CUDA_VISIBLE_DEVICES and, in a container, --gpus all; or use configs/cpu.yaml"
    )


def gpu_problem(pipeline: PipelineConfig) -> tuple[str, str] | None:
    """Returns what is wrong with the GPU and what to do; None if the configuration can run on it."""
    if not torch.cuda.is_available():
        return why_no_gpu(driver_version(), torch.version.cuda)
    name = torch.cuda.get_device_name(0)
    try:
        refuse_old(name, torch.cuda.get_device_capability(0))
    except ConfigError as error:
        return str(error), "use configs/cpu.yaml, or a GPU of compute capability 8.0 or newer"
    free, total = torch.cuda.mem_get_info(0)
    needed, share = needed_bytes(pipeline), pipeline.engine.gpu_memory_share
    if needed > share * total:
        return f"{name}: predicted need {needed // MIB} MiB, more than {share:.0%} of the {total // MIB} MiB", (
            "lower engine.slots, max_prompt or max_steps, set engine.kv to int8, or let `chattts-serve size` choose; "
            "engine.gpu_memory_share is the limit"
        )
    if free < needed:
        return f"{name}: {free // MIB} MiB are free; predicted need {needed // MIB} MiB", (
            "lower engine.slots, max_prompt or max_steps, set engine.kv to int8, or end what else uses the GPU"
        )
    return None


def triton_problem() -> tuple[str, str] | None:
    """Returns why Triton cannot compile and load kernels here, and what to do; None if it can: its launchers are in C."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed", "pip install triton (it comes with torch on Linux)"
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return f"no C compiler ({', '.join(COMPILERS)}): Triton compiles its launchers with one", "install gcc (Debian: gcc)"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        return f"{header} is missing: Triton's launchers need it", "install Python's headers (Debian: python3-dev)"
    folder = triton_folder()
    try:
        load_a_library(compiler, folder)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        return f"{folder}, where Triton keeps kernels, takes no library: {reason}", (
            "set CHATTTS_HOME or TRITON_CACHE_DIR to a folder that can be written and is not mounted noexec"
        )
    return None


def load_a_library(compiler: str, folder: Path) -> None:
    """Compiles a library into a folder and loads it from there, as Triton does.

    Raises:
        OSError: the folder cannot be written, or nothing can be loaded from it.
        CalledProcessError: the compiler fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as draft:
        source, library = Path(draft) / "probe.c", Path(draft) / "probe.so"
        source.write_text("int probe(void) { return 1; }\n")
        command = [compiler, "-shared", "-fPIC", str(source), "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        ctypes.CDLL(str(library))


def described(pipeline: PipelineConfig) -> str:
    """Returns the GPU and its memory in one line."""
    free, total = torch.cuda.mem_get_info(0)
    capability = ".".join(map(str, torch.cuda.get_device_capability(0)))
    return (
        f"{torch.cuda.get_device_name(0)}, compute capability {capability}, driver {driver_version()}, {free // MIB} of "
        f"{total // MIB} MiB free, predicted need {needed_bytes(pipeline) // MIB}"
    )
