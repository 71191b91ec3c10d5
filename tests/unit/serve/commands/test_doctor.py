"""The doctor finds what is wrong, says what to do, and finds nothing where nothing is."""

import json
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.checkpoint.layout import MEL_DECODER_FILE
from pipeline.config import EngineConfig, PipelineConfig, VocoderConfig
from pipeline.model.gpu.placement import sees_gpu
from pipeline.native.compiler import library
from pipeline.native.instructions import Instructions
from serve.commands import doctor
from serve.commands.doctor import Finding, Status
from serve.config.app_config import AppConfig
from serve.config.config_file import check_file
from tests.support.disks import small_disk
from tests.support.machine import needs_native

ROOT = Path(__file__).resolve().parents[4]
DEV = ROOT / "configs/dev.yaml"
CPU = check_file(ROOT / "configs/cpu.yaml")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "serve.commands.doctor", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_named_by_its_key(tmp_path: Path):
    (tmp_path / "file").touch()
    app = AppConfig.model_validate({"jobs": {"folder": str(tmp_path / "file/jobs")}})
    found = doctor.folders(app)
    assert (found.status, found.result) == (Status.FAIL, f"cannot be written here: jobs.folder: {tmp_path}/file/jobs")
    assert doctor.folders(AppConfig()).status is Status.FINE


def test_it_looks_at_everything_and_speaks_json(demo_root: Path):
    done = run("configs/dev.yaml", "--json")
    report = json.loads(done.stdout)
    looked_at = {finding["check"] for finding in report["findings"]}
    assert {"python", "packages", "configuration", "checkpoint", "device", "processor", "codecs", "port", "disk"} <= looked_at
    assert {"decode step", "vocoder"} <= looked_at
    failed = [finding for finding in report["findings"] if finding["status"] == "fail"]
    assert done.returncode == int(bool(failed))
    # A server may be running here; everything else is this suite's own environment.
    assert all(finding["check"] == "port" for finding in failed), failed


def test_whatever_is_not_fine_says_what_to_do(demo_root: Path):
    for finding in doctor.examine(DEV):
        assert finding.status is Status.FINE or finding.advice, finding


@pytest.mark.slow
def test_a_wrong_configuration_is_named(tmp_path: Path):
    path = tmp_path / "wrong.yaml"
    path.write_text(DEV.read_text().replace("slots: 8", "slotz: 8"))
    findings = list(doctor.examine(path))
    assert findings[-1].status is Status.FAIL
    assert "slotz" in findings[-1].result
    assert run(str(path)).returncode == 1


def test_a_damaged_checkpoint_is_named_by_its_file(demo_root: Path, tmp_path: Path):
    broken = tmp_path / "broken"
    shutil.copytree(demo_root, broken)
    assert doctor.checkpoint(str(broken)).status is Status.FINE
    with (broken / MEL_DECODER_FILE).open("r+b") as file:
        file.seek(1000)
        file.write(b"\xff\xfe")
    found = doctor.checkpoint(str(broken))
    assert found.status is Status.FAIL
    assert MEL_DECODER_FILE in found.result


def test_a_checkpoint_nobody_vouches_for_is_a_warning(demo_root: Path, tmp_path: Path):
    bare = tmp_path / "bare"
    shutil.copytree(demo_root, bare)
    (bare / "SHA256SUMS").unlink()
    assert doctor.checkpoint(str(bare)).status is Status.WARN


def test_a_checkpoint_that_is_not_there_says_how_to_get_it(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path))
    found = doctor.checkpoint("hub:2Noise/ChatTTS")
    assert found.status is Status.FAIL
    assert "chattts-serve weights fetch" in found.result


@pytest.mark.skipif(sees_gpu(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_missed():
    found = doctor.device(PipelineConfig(engine=EngineConfig(device="cuda"), vocoder=VocoderConfig()))
    assert found.status is Status.FAIL
    assert "configs/cpu.yaml" in found.advice
    assert doctor.device(PipelineConfig()).status is Status.FINE


def test_bfloat16_without_the_instructions_for_it_is_a_warning(monkeypatch):
    config = PipelineConfig(engine=EngineConfig(dtype="bfloat16", decode="torch"))
    monkeypatch.setattr(doctor, "cpu_flags", lambda: {"avx2"})
    assert "float32" in doctor.processor(config).advice
    monkeypatch.setattr(doctor, "cpu_flags", lambda: {"amx_bf16"})
    assert doctor.processor(config).status is not Status.FAIL


@pytest.mark.parametrize(("sets", "advised"), [((Instructions.AVX2,), False), ((), True)])
def test_native_code_needs_no_instructions_for_bfloat16(monkeypatch, sets, advised):
    monkeypatch.setattr(doctor, "cpu_flags", lambda: {"avx2"})
    monkeypatch.setattr(doctor, "usable", lambda: sets)
    found = doctor.processor(PipelineConfig(engine=EngineConfig(dtype="bfloat16")))
    assert ("float32" in found.advice) is advised


@needs_native
def test_machine_code_that_is_built_needs_no_compiler():
    findings = list(doctor.machine_code(CPU.app.pipeline))
    assert [(finding.check, finding.status) for finding in findings] == [
        ("decode step", Status.FINE),
        ("vocoder", Status.FINE),
    ]


@pytest.mark.parametrize(
    ("engine", "vocoder", "statuses"),
    [
        ({"dtype": "bfloat16", "weights": "int8"}, {}, {"decode step": "fail", "vocoder": "warn"}),
        ({"dtype": "bfloat16", "weights": "int4"}, {}, {"decode step": "fail", "vocoder": "warn"}),
        ({"decode": "native"}, {"method": "incremental"}, {"decode step": "fail", "vocoder": "fail"}),
        ({}, {}, {"decode step": "warn", "vocoder": "warn"}),
        ({"decode": "torch"}, {"method": "windows"}, {}),
    ],
)
def test_a_compiler_that_is_missing_matters_where_the_configuration_insists(monkeypatch, tmp_path, engine, vocoder, statuses):
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path))  # nothing is built there
    monkeypatch.setenv("PATH", "")
    library.cache_clear()
    pipeline = PipelineConfig(engine=EngineConfig(**engine), vocoder=VocoderConfig(**vocoder))
    findings = list(doctor.machine_code(pipeline))
    assert {finding.check: finding.status for finding in findings} == statuses
    assert all("g++" in finding.advice for finding in findings)
    assert all("times" in finding.advice for finding in findings), "and what is lost without it"


def test_a_port_in_use_is_found_and_a_free_one_is_not():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not doctor.is_free("127.0.0.1", port)
        checked = check_file(DEV)
        checked.document["http_options"]["port"] = port
        assert any(finding == Finding(*as_taken(port)) for finding in doctor.ports(checked))
    assert doctor.is_free("127.0.0.1", port)


def as_taken(port: int) -> tuple[str, Status, str, str]:
    return "port", Status.FAIL, f"127.0.0.1:{port} is taken", "stop what listens there, or change http_options.port"


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "requires", lambda _: ["numpy>=1", "surely-not-installed>=1", "pydantic<1"])
    found = doctor.packages()
    assert found.status is Status.FAIL
    assert "surely-not-installed is missing" in found.result
    assert "pydantic" in found.result
    assert "numpy" not in found.result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "filled", "status"), [("2g", 0, Status.FINE), ("300m", 0, Status.WARN), ("4m", 4 << 20, Status.FAIL)]
)
def test_shared_memory_is_measured_by_what_is_free(size: str, filled: int, status: Status):
    code = (
        "from pathlib import Path; from serve.commands.doctor import shared_memory\n"
        f"Path('/dev/shm/filler').write_bytes(bytes({filled})); print(shared_memory().status.value)"
    )
    prefix = small_disk("/dev/shm", size)
    if prefix is None:
        pytest.skip("no mount namespace here")
    done = subprocess.run([*prefix, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == f"{status.value}\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "status"), [(256, Status.FAIL), (4096, Status.FAIL), (10_500, Status.FINE)])
def test_the_limit_of_descriptors_is_looked_at(limit: int, status: Status):
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({min(limit, 4096)}, {limit}))\n"
        "from serve.commands.doctor import descriptors; print(descriptors().status.value)"
    )
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < limit:
        pytest.skip("this machine's own limit is lower")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == f"{status.value}\n", done.stderr


def test_brackets_of_an_advice_are_printed(capsys):
    doctor.show([Finding("torch", Status.FAIL, "it is missing", "pip install 'chattts-serve[torch]'")])
    assert "pip install 'chattts-serve[torch]'" in capsys.readouterr().out
