"""Out of memory while a model is loaded: a sentence that names memory and says what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import OutOfMemory
from pipeline.model.out_of_memory import is_out_of_memory, named_out_of_memory

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]

# A process of its own: its limit is for good.
LOAD = """
import os, resource, sys
from pathlib import Path
import torch
from pipeline.config import EngineConfig, VocoderConfig
from pipeline.engine.engine import Engine
from pipeline.errors import OutOfMemory
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.vocoder.vocoder import Vocoder

kind, root, mib = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
files = open_checkpoint(root)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
if mib:
    resource.setrlimit(resource.RLIMIT_AS, (used + (mib << 20),) * 2)
try:
    Engine(EngineConfig(decode="torch"), files) if kind == "engine" else Vocoder(VocoderConfig(), files)
    print("loaded", flush=True)
except OutOfMemory as error:
    print(error, flush=True)
os._exit(0)  # threads need memory to end
"""


def load(kind: str, root: Path, mib: int) -> str:
    command = [sys.executable, "-c", LOAD, kind, str(root), str(mib)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


# The vocoder decodes in windows where nothing can be compiled, and then takes 30 MiB in all.
@pytest.mark.parametrize(
    ("kind", "mib", "message"),
    [("engine", 100, "the acoustic model does not fit"), ("vocoder", 10, "the vocoder does not fit")],
)
def test_a_model_that_does_not_fit_says_so_and_what_to_do(taught_root: Path, kind: str, mib: int, message: str):
    sentence = load(kind, taught_root, mib)
    assert sentence.startswith(message), sentence
    assert "lower" in sentence
    assert "give it more memory" in sentence
    assert load(kind, taught_root, 0) == "loaded\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("can't start new thread"),
    ],
)
def test_every_way_of_saying_it_is_one_sentence(error: Exception):
    with (
        pytest.raises(OutOfMemory, match=r"the model does not fit into the memory .*: take less"),
        named_out_of_memory("the model", "take less"),
    ):
        raise error


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("shapes"), ValueError("x")])
def test_other_errors_stay_what_they_are(error: Exception):
    with pytest.raises(type(error), match=str(error.args[-1])), named_out_of_memory("the model", "take less"):
        raise error


@pytest.mark.parametrize(
    "words",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        "Triton Error [CUDA]: CUDA_ERROR_OUT_OF_MEMORY",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
    ],
)
def test_every_librarys_words_for_it_are_known(words: str):
    assert is_out_of_memory(RuntimeError(words))


def test_other_failures_of_these_libraries_are_not_it():
    for words in ("CUBLAS_STATUS_EXECUTION_FAILED", "CUDNN_STATUS_NOT_SUPPORTED", "CUDA error: device-side assert triggered"):
        assert not is_out_of_memory(RuntimeError(words))
