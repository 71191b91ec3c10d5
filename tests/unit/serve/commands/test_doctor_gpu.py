"""The doctor's questions to a GPU, answered where there is none."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.config import EngineConfig, PipelineConfig, VocoderConfig
from pipeline.model.gpu import roofline
from pipeline.paths import triton_folder
from serve.commands import doctor_gpu
from serve.config.config_file import check_file

ROOT = Path(__file__).resolve().parents[4]
GPU = check_file(ROOT / "configs/gpu.yaml").app.pipeline
GIB = 1 << 30


def test_memory_follows_from_the_configuration():
    def engine(**settings: object) -> int:
        return roofline.engine_bytes(EngineConfig.model_validate({"device": "cuda", "dtype": "bfloat16"} | settings))

    assert (
        engine(slots=128) - engine(slots=64)
        == roofline.kv_cache_bytes(EngineConfig(dtype="bfloat16", slots=64)) + 64 * roofline.REFINED
    )
    assert engine(kv_budget_mib=9000) == engine(), "a budget is a limit, not a need"
    assert engine(kv="int8") < engine(weights="int8") < engine()
    assert engine(prefill_rows=4) > engine(), "unused rows of a prefill have a slot of their own"
    one, eight = (roofline.vocoder_bytes(VocoderConfig(device="cuda", rows=rows)) for rows in (1, 8))
    assert eight > one
    assert roofline.needed_bytes(PipelineConfig()) == 0
    assert 8 * GIB < roofline.needed_bytes(GPU) < 11 * GIB, "5.9 GiB of KV cache, 0.4 of weights, one process"


def test_why_there_is_no_gpu_names_the_driver():
    cases = [
        (("unknown", None), "built for CPUs only", "pip install torch"),
        (("unknown", "13.0"), "no NVIDIA driver is loaded", "580 or newer"),
        (("550.54.15", "13.0"), "550.54.15 is too old for torch's CUDA 13.0", "driver 580 or newer"),
        (("550.54.15", "12.8"), "driver 550.54.15 is loaded", "CUDA_VISIBLE_DEVICES"),
        (("580.65.06", "13.0"), "driver 580.65.06 is loaded", "--gpus all"),
    ]
    for given, expected, advice in cases:
        found = doctor_gpu.why_no_gpu(*given)
        assert expected in found[0]
        assert advice in found[1]


@pytest.mark.parametrize(
    ("capability", "free", "total", "expected"),
    [
        ((7, 5), 80, 80, "compute capability 7.5"),
        ((8, 9), 2, 80, "2048 MiB are free; predicted need"),
        ((8, 9), 9, 9, "more than 85% of the 9216 MiB"),
        ((9, 0), 80, 80, None),
    ],
)
def test_a_gpu_that_is_too_old_or_too_full_is_refused(monkeypatch, capability, free, total, expected):
    cuda = SimpleNamespace(
        is_available=lambda: True,
        get_device_name=lambda number: "a GPU",
        get_device_capability=lambda number: capability,
        mem_get_info=lambda number: (free * GIB, total * GIB),
    )
    monkeypatch.setattr(doctor_gpu.torch, "cuda", cuda)
    problem = doctor_gpu.gpu_problem(GPU)
    assert (problem is None) if expected is None else expected in problem[0]
    assert "driver" in doctor_gpu.described(GPU)


def test_triton_needs_a_compiler_and_pythons_headers(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor_gpu.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    assert "Python.h is missing" in doctor_gpu.triton_problem()[0]
    (tmp_path / "Python.h").touch()
    assert doctor_gpu.triton_problem() is None
    monkeypatch.setattr(doctor_gpu.shutil, "which", lambda name: None)
    assert "no C compiler" in doctor_gpu.triton_problem()[0]
    monkeypatch.setattr(doctor_gpu.importlib.util, "find_spec", lambda name: None)
    assert "not installed" in doctor_gpu.triton_problem()[0]


def test_kernels_are_kept_where_the_documented_container_can_write_and_load(monkeypatch, tmp_path):
    """`docker run --read-only --tmpfs /tmp`: what the image sets is /data, and Docker mounts /tmp noexec."""
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path / "data"))
    assert triton_folder() == tmp_path / "data/triton"
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "CHATTTS_HOME=/data" in dockerfile
    assert "VOLUME /data" in dockerfile
    (tmp_path / "file").touch()
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path / "file"))
    assert triton_folder().is_dir(), "a home that cannot be written costs the kernels of the next start, not the service"
    found = subprocess.run(
        [sys.executable, "-c", "import triton, pipeline.model.gpu.kernels.layer; print(triton.knobs.cache.dir)"],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"CHATTTS_HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == str(tmp_path / "triton")


NOEXEC = """
mount -t tmpfs -o noexec none "$1" && exec "$2" -c 'from serve.commands.doctor_gpu import triton_problem as t; print(t())'
"""


def test_a_place_from_which_nothing_can_be_loaded_is_a_finding(tmp_path):
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", NOEXEC, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"no mounts of one's own here: {done.stderr.strip()}")
    assert "takes no library" in done.stdout
    assert "not mounted noexec" in done.stdout
