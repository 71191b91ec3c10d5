"""The doctor finds what is wrong, says what to do, and finds nothing where nothing is."""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from redis import Redis

from pipeline.checkpoint.layout import MEL_DECODER_FILE
from pipeline.config import EngineConfig, PipelineConfig, VocoderConfig
from pipeline.model.gpu.placement import sees_gpu
from pipeline.native import compiler
from pipeline.native.compiler import library
from pipeline.native.instructions import Instructions
from pipeline.paths import triton_folder
from serve.commands import doctor, doctor_gpu, doctor_redis
from serve.commands.doctor import Finding, Status
from serve.commands.doctor_redis import redis_servers
from serve.config.app_config import PROJECT, AppConfig, read_app_config
from serve.config.config_file import check_file
from serve.simulation import roofline
from tests.support.disks import small_disk
from tests.support.machine import needs_native
from tests.support.ports import free_port
from tests.support.services import RedisServer

ROOT = Path(__file__).resolve().parents[4]
DEV = ROOT / "configs/dev.yaml"
CPU = check_file(ROOT / "configs/cpu.yaml")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "serve.commands.doctor", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_named_by_its_key(tmp_path: Path):
    (tmp_path / "file").touch()
    app = AppConfig.model_validate({"jobs": {"folder": str(tmp_path / "file/jobs")}})
    finding = doctor.folders(app)
    assert (finding.status, finding.result) == (Status.FAIL, f"cannot be written here: jobs.folder: {tmp_path}/file/jobs")
    assert doctor.folders(AppConfig()).status is Status.FINE


def test_doctor_checks_everything_and_writes_json(demo_root: Path):
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
    finding = doctor.checkpoint(str(broken))
    assert finding.status is Status.FAIL
    assert MEL_DECODER_FILE in finding.result


def test_a_checkpoint_nobody_vouches_for_is_a_warning(demo_root: Path, tmp_path: Path):
    bare = tmp_path / "bare"
    shutil.copytree(demo_root, bare)
    (bare / "SHA256SUMS").unlink()
    assert doctor.checkpoint(str(bare)).status is Status.WARN


def test_a_checkpoint_that_is_not_there_says_how_to_get_it(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path))
    finding = doctor.checkpoint("hub:2Noise/ChatTTS")
    assert finding.status is Status.FAIL
    assert "chattts-serve weights fetch" in finding.result


@pytest.mark.skipif(sees_gpu(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_missed():
    finding = doctor.device(PipelineConfig(engine=EngineConfig(device="cuda"), vocoder=VocoderConfig()))
    assert finding.status is Status.FAIL
    assert "configs/cpu.yaml" in finding.advice
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
    finding = doctor.processor(PipelineConfig(engine=EngineConfig(dtype="bfloat16")))
    assert ("float32" in finding.advice) is advised


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
    monkeypatch.setattr(compiler, "SHIPPED", tmp_path)
    monkeypatch.setenv("PATH", "")
    library.cache_clear()
    pipeline = PipelineConfig(engine=EngineConfig(**engine), vocoder=VocoderConfig(**vocoder))
    findings = list(doctor.machine_code(pipeline))
    assert {finding.check: finding.status for finding in findings} == statuses
    assert all("g++" in finding.advice for finding in findings)
    assert all("times" in finding.advice for finding in findings), "and what is lost without it"


def test_a_port_in_use_is_found_and_a_free_one_is_not():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not doctor.is_free("127.0.0.1", port)
        checked = check_file(DEV)
        checked.document["http_options"]["port"] = port
        assert any(finding == Finding(*as_taken(port)) for finding in doctor.ports(checked))
    assert doctor.is_free("127.0.0.1", port)


def as_taken(port: int) -> tuple[str, Status, str, str]:
    return "port", Status.FAIL, f"127.0.0.1:{port} is taken", "stop what listens there, or change http_options.port"


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "requires", lambda _: ["numpy>=1", "surely-not-installed>=1", "pydantic<1"])
    finding = doctor.packages()
    assert finding.status is Status.FAIL
    assert "surely-not-installed is missing" in finding.result
    assert "pydantic" in finding.result
    assert "numpy" not in finding.result


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


# The doctor's questions to a GPU, answered where there is none.

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
    first, eight = (roofline.vocoder_bytes(VocoderConfig(device="cuda", rows=rows)) for rows in (1, 8))
    assert eight > first
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
    for facts, expected, advice in cases:
        sentences = doctor_gpu.why_no_gpu(*facts)
        assert expected in sentences[0]
        assert advice in sentences[1]


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
    run = subprocess.run(
        [sys.executable, "-c", "import triton, pipeline.model.gpu.kernels.layer; print(triton.knobs.cache.dir)"],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"CHATTTS_HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == str(tmp_path / "triton")


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


# Doctor's look at Redis: a server that cannot keep what the service promises is named before the service starts.

FAIL, WARN, FINE = Status.FAIL, Status.WARN, Status.FINE


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--maxmemory", "50mb")
    yield server
    server.kill()


def as_store(url: str) -> AppConfig:
    return read_app_config({"voices": {"store": url}})


def as_cache(url: str) -> AppConfig:
    return read_app_config({"cache": {"redis": url}})


def as_both(url: str) -> AppConfig:
    return read_app_config({"voices": {"store": url}, "cache": {"redis": url}})


@pytest.mark.parametrize(
    ("use", "settings", "expected"),
    [
        (as_store, {}, (FINE, "noeviction")),
        (as_cache, {"maxmemory-policy": "allkeys-lru"}, (FINE, "allkeys-lru")),
        (as_store, {"maxmemory-policy": "allkeys-lfu"}, (FAIL, "evicts records")),
        (as_store, {"maxmemory-policy": "volatile-lru"}, (WARN, "time to live")),
        (as_store, {"appendonly": "no"}, (WARN, "append-only")),
        (as_store, {"replicaof": "127.0.0.1 1"}, (FAIL, "is a replica")),
        (as_store, {"min-replicas-to-write": "1"}, (FAIL, "too few replicas")),
        (as_store, {"maxmemory": "1"}, (FAIL, "no room left")),
        (as_cache, {"maxmemory": "1"}, (FAIL, "not what is read")),
        (as_cache, {}, (WARN, "once it is full")),
        (as_both, {}, (WARN, "both store and cache")),
    ],
)
def test_what_a_server_cannot_do_is_named(
    server: RedisServer, use: Callable[[str], AppConfig], settings: dict[str, str], expected: tuple[Status, str]
):
    client = Redis.from_url(server.url)
    client.flushall()
    usual = {"maxmemory": "50mb", "maxmemory-policy": "noeviction", "appendonly": "yes", "min-replicas-to-write": "0"}

    def change(settings: dict[str, str]) -> None:
        for name, value in settings.items():
            client.execute_command(*(("REPLICAOF", *value.split()) if name == "replicaof" else ("CONFIG", "SET", name, value)))

    try:
        change(settings)
        findings = list(redis_servers(use(server.url)))
    finally:
        change({"replicaof": "no one", **usual})
    status, words = expected
    assert any(finding.status is status and words in finding.result for finding in findings), findings
    assert all(finding.status in (status, WARN) and "redis://127.0.0.1" in finding.result for finding in findings)
    assert not [name for name in client.scan_iter("*quota*") if b"doctor" in name], "nothing stays of it but four small keys"


def test_a_server_that_is_away_hangs_or_wants_a_password_is_named_without_one(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(doctor_redis, "TIMEOUT_S", 0.3)
    server = RedisServer(tmp_path)
    Redis.from_url(server.url).config_set("requirepass", "right")
    try:
        for url, words in (
            (f"redis://:wrong@127.0.0.1:{server.port}/0", "password"),
            (f"redis://:right@127.0.0.1:{server.port}/0", "answers"),
            (f"redis://:right@127.0.0.1:{server.port}/99", "no database"),
            (f"redis://:right@127.0.0.1:{free_port()}", "does not answer"),
        ):
            words_of_findings = " ".join(finding.result + finding.advice for finding in redis_servers(as_store(url)))
            assert words in words_of_findings
            assert not {"right", "wrong"} & set(words_of_findings.replace("@", " ").replace(":", " ").split())
        monkeypatch.setenv("CHATTTS_REDIS_PASSWORD", "right")
        assert "answers" in " ".join(finding.result for finding in redis_servers(as_store(server.url)))
        server.freeze()
        (finding,) = redis_servers(as_store(f"redis://:right@127.0.0.1:{server.port}/0"))
        assert (finding.status, "does not answer" in finding.result) == (FAIL, True)
    finally:
        server.kill()


def test_an_old_release_and_a_cluster_are_refused():
    facts = {"redis_version": "6.0.16", "cluster_enabled": 1, "maxmemory_policy": "noeviction", "aof_enabled": 1}
    problems = [finding.result for finding in doctor_redis._problems("here", ["voices.store"], facts)]
    assert problems == ["here is release 6.0.16", "here is part of a cluster"]


def test_compose_and_kubernetes_keep_store_and_cache_apart():
    services = yaml.safe_load((PROJECT / "compose.yaml").read_text())["services"]
    store, cache = (services[name]["command"] for name in ("store", "cache"))
    assert "noeviction" in store
    assert store[store.index("--appendonly") + 1] == "yes"
    assert "allkeys-lru" in cache
    variables = services["chattts"]["environment"]
    assert (variables["CHATTTS_REDIS"], variables["CHATTTS_REDIS_CACHE"]) == ("redis://store:6379/0", "redis://cache:6379/0")
