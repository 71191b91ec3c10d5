"""Before a model computes: its device, the line by which a GPU is known, wrong products, and memory that does not suffice."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline.config import EngineConfig, PipelineConfig, VocoderConfig
from pipeline.engine.engine_fingerprint import engine_fingerprint
from pipeline.engine.gpu_runner import rows_of_products
from pipeline.engine.scheduler import PREFILL_BUCKET
from pipeline.errors import ConfigError, OutOfMemory
from pipeline.model.gpu import identity, placement, prepare
from pipeline.model.out_of_memory import named_out_of_memory

CPU = torch.device("cpu")
SMALL = ((96, 256),)


def test_gpus_before_ampere_are_refused_in_a_sentence():
    for name, capability in (("Tesla T4", (7, 5)), ("Tesla V100", (7, 0))):
        with pytest.raises(ConfigError, match=rf"{name} has compute capability .* needs at least 8\.0 .* to cpu"):
            prepare.refuse_old(name, capability)
    for capability in ((8, 0), (8, 9), (9, 0), (12, 0)):
        prepare.refuse_old("newer", capability)


def test_right_products_pass():
    for dtype in (torch.float32, torch.bfloat16):
        prepare.refuse_wrong_products(CPU, rows=2, dtype=dtype, shapes=SMALL)


def test_a_wrong_product_is_found(monkeypatch):
    right = torch.nn.functional.linear

    def wrong(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Leaves out one of 128 inputs, in bfloat16 only."""
        if x.dtype == torch.bfloat16:
            x = x.clone()
            x[:, ::128] = 0
        return right(x, weight)

    monkeypatch.setattr(torch.nn.functional, "linear", wrong)
    prepare.refuse_wrong_products(CPU, rows=2, dtype=torch.float32, shapes=SMALL)
    with pytest.raises(ConfigError, match=r"matrix products are wrong on this GPU: \(2, 256\) .* in bfloat16 .*MIG"):
        prepare.refuse_wrong_products(CPU, rows=2, dtype=torch.bfloat16, shapes=SMALL)


def test_a_product_that_is_not_a_number_is_wrong(monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, weight: (x @ weight.T).fill_(float("nan")))
    with pytest.raises(ConfigError, match="nan"):
        prepare.refuse_wrong_products(CPU, rows=1, dtype=torch.float32, shapes=SMALL)


def test_prefills_and_windows_are_tried_too_and_cudnns_attention_is_off(monkeypatch):
    tried: list[tuple[int, object]] = []
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(prepare, "refuse_wrong_products", lambda device, *, rows, dtype, shapes: tried.append((rows, shapes)))
    allowed = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        rows = rows_of_products(EngineConfig(slots=8, prefill_rows=4, max_prompt=512))
        prepare.prepare_gpu(rows=rows, dtype=torch.bfloat16)
        assert tried == [(number, prepare.GPT_SHAPES) for number in (8, 4 * PREFILL_BUCKET, 2048)]
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(allowed)


# Out of memory while a model is loaded: a sentence that names memory and says what to do.


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


@pytest.mark.slow
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
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
        RuntimeError("Triton Error [CUDA]: CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_every_librarys_words_become_one_sentence(error: Exception):
    with (
        pytest.raises(OutOfMemory, match=r"the model does not fit into the memory .*: take less"),
        named_out_of_memory("the model", "take less"),
    ):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        ValueError("x"),
        *map(RuntimeError, ("shapes", "CUBLAS_STATUS_EXECUTION_FAILED", "CUDNN_STATUS_NOT_SUPPORTED")),
        RuntimeError("CUDA error: device-side assert triggered"),
    ],
)
def test_other_errors_stay_what_they_are(error: Exception):
    with pytest.raises(type(error), match=str(error.args[-1])), named_out_of_memory("the model", "take less"):
        raise error


# `device: auto`: resolved in the process that computes, and never without saying so.


@pytest.mark.parametrize(("has_gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_the_gpu_that_the_process_sees(monkeypatch, has_gpu, device):
    monkeypatch.setattr(placement, "sees_gpu", lambda: has_gpu)
    config = EngineConfig(device="auto", slots=3)
    assert placement.on_this_machine(config) == EngineConfig(device=device, slots=3)
    assert placement.on_this_machine(VocoderConfig(device="auto")).device == device
    both = PipelineConfig(engine=config, vocoder=VocoderConfig(device="cpu"))
    placed = placement.pipeline_on_this_machine(both)
    assert (placed.engine.device, placed.vocoder.device) == (device, "cpu")
    assert placement.on_this_machine(EngineConfig(device="cpu")).device == "cpu"


def test_settings_that_the_found_device_cannot_take_are_refused(monkeypatch):
    monkeypatch.setattr(placement, "sees_gpu", lambda: False)
    config = EngineConfig(device="auto", dtype="bfloat16", weights="int8", decode="torch")
    with pytest.raises(ConfigError, match="device auto is cpu in this process"):
        placement.on_this_machine(config)


def test_the_fingerprint_is_that_of_the_device_found(monkeypatch, demo):
    monkeypatch.setattr(placement, "sees_gpu", lambda: False)
    assert engine_fingerprint(EngineConfig(device="auto"), demo) == engine_fingerprint(EngineConfig(), demo)


# The line by which a GPU's numbers are known.


def test_the_driver_is_read_from_its_own_file(tmp_path):
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: gcc 11\n")
    assert identity.driver_version(file) == "580.65.06"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n")
    assert identity.driver_version(file) == "550.54.15"
    file.write_text("something else")
    assert identity.driver_version(file) == "unknown"
    assert identity.driver_version(tmp_path / "missing") == "unknown"


def test_a_slice_of_a_gpu_is_another_gpu(monkeypatch):
    def identity_with(multiprocessors: int) -> str:
        gpu = SimpleNamespace(name="H200", major=9, minor=0, multi_processor_count=multiprocessors)
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: gpu)
        return identity.gpu_identity()

    assert identity_with(132) != identity_with(56)
    assert "H200 (9, 0) multiprocessors 132" in identity_with(132)


def test_what_chooses_other_kernels_is_part_of_it(monkeypatch):
    gpu = SimpleNamespace(name="H100", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: gpu)
    before = identity.gpu_identity()
    for name in (
        "TORCH_CUDNN_SDPA_DEPRIORITIZED",
        "NVIDIA_TF32_OVERRIDE",
        "CUBLASLT_WORKSPACE_SIZE",
        "CUBLAS_WORKSPACE_CONFIG",
    ):
        monkeypatch.setenv(name, "1")
        assert identity.gpu_identity().endswith(f" {name}=1")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/elsewhere")
    assert identity.gpu_identity() == before
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91900)
    assert "cudnn 91900" in identity.gpu_identity()


def test_cublas_is_unknown_where_there_is_none():
    assert identity.cublas_version(None) == "unknown"
    assert identity.cublas_version("999.0") == "unknown"
