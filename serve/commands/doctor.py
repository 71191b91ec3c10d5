"""Doctor: checks a machine before the service starts on it, and says what to do. `chattts-serve doctor CONFIG`

In:    a configuration file
Out:   one line per finding, the worst last; exit code 1 if the service would not start or not work; --json for machines
Owns:  nothing; it starts and downloads nothing (a missing random checkpoint and missing machine code are generated, as at a
       start)
Never: a guess: what cannot be checked is reported as unknown
"""

import argparse
import json
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import numpy as np
from packaging.requirements import Requirement
from rich.console import Console
from rich.markup import escape

from pipeline.audio.encode import encode_whole
from pipeline.audio.formats import CONTAINERS, audio_format
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.manifest import verify_files
from pipeline.config import PipelineConfig
from pipeline.errors import CheckpointError, ConfigError, SynthesisError
from pipeline.model.cpu.native import SOURCE as DECODE_STEP
from pipeline.model.gpu.placement import pipeline_on_this_machine
from pipeline.native.compiler import NativeFailed, NativeUnavailable, best_instructions, library
from pipeline.native.instructions import usable
from pipeline.paths import cache_home
from pipeline.spec import SAMPLE_RATE
from pipeline.vocoder.incremental.incremental_network import SOURCE as VOCODER
from pipeline.with_torch import INSTALL, has_torch, torch_part
from serve.commands.config_path import CONFIG_HELP, DEFAULT, config_path
from serve.commands.doctor_redis import redis_servers
from serve.commands.findings import Finding, Status
from serve.commands.launch.needs_torch import torch_problem, unused_gpu
from serve.commands.launch.open_files import OPEN_FILES
from serve.commands.launch.processes import is_free
from serve.config.app_config import AppConfig
from serve.config.config_file import ConfigFile, check_file
from serve.config.folders import can_be_written, written_folders

PACKAGE = "chattts-serve"
MIB, GIB = 1 << 20, 1 << 30
DASHBOARD_PORT = 8265
HAPROXY_PORTS = {9101: "HAProxy's metrics", 8404: "HAProxy's statistics"}
LEAST_FREE_DISK = 5 * GIB  # for Ray's logs and spilled objects; below it Ray warns and may refuse
LEAST_SHARED_MEMORY = 1 * GIB  # Ray's object store


def main(arguments: list[str] | None = None) -> int:
    """Checks everything, even if something fails."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve doctor", description="Check this machine before the service starts on it."
    )
    parser.add_argument("config", type=config_path, nargs="?", default=DEFAULT, help=CONFIG_HELP)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    args = parser.parse_args(arguments)
    findings = list(examine(args.config))
    if args.json:
        print(json.dumps({"config": str(args.config), "findings": [asdict(finding) for finding in findings]}))
    else:
        show(findings)
    return int(any(finding.status is Status.FAIL for finding in findings))


def examine(path: Path) -> Iterator[Finding]:
    """Yields every finding about a configuration on this machine."""
    yield python()
    yield packages()
    try:
        checked = check_file(path)
        pipeline = pipeline_on_this_machine(checked.app.pipeline)
    except ConfigError as error:
        yield Finding("configuration", Status.FAIL, str(error), f"chattts-serve config check {path}")
        return
    yield Finding("configuration", Status.FINE, f"{path} is valid")
    yield folders(checked.app)
    yield checkpoint(pipeline.checkpoint)
    if problem := torch_problem(checked.app.pipeline):
        yield Finding("torch", Status.FAIL, *problem)
    else:
        yield device(pipeline)
        yield from triton(pipeline)
        yield from machine_code(pipeline)
    if note := unused_gpu(checked.app.pipeline):
        yield Finding("torch", Status.WARN, *note)
    yield processor(pipeline)
    yield from redis_servers(checked.app)
    yield codecs()
    yield from ports(checked)
    yield disk(cache_home())
    yield shared_memory()
    yield descriptors()


def python() -> Finding:
    """Checks the version of Python."""
    release = platform.python_version()
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return Finding("python", Status.FINE, release)
    return Finding("python", Status.FAIL, release, "use Python 3.11, 3.12 or 3.13")


def packages() -> Finding:
    """Compares the installed packages with pyproject.toml."""
    try:
        declared = map(Requirement, requires(PACKAGE) or [])
        required = [entry for entry in declared if entry.marker is None or entry.marker.evaluate({"extra": ""})]
    except PackageNotFoundError:
        return Finding("packages", Status.FAIL, f"{PACKAGE} itself is not installed", "pip install -e .")
    wrong = []
    for requirement in required:
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            wrong.append(f"{requirement.name} {installed} is not {requirement.specifier}")
    if wrong:
        return Finding("packages", Status.FAIL, "; ".join(wrong), "pip install -e . in the environment the service runs in")
    return Finding("packages", Status.FINE, f"{len(required)} as in pyproject.toml, {torch_here()}")


def torch_here() -> str:
    """Returns the version of PyTorch, without importing it, or what lacks without it."""
    return f"torch {version('torch')}" if has_torch() else f"no torch: no GPU and no clones of recordings ({INSTALL})"


def folders(app: AppConfig) -> Finding:
    """Checks that every folder that the configuration writes to can be written by this user."""
    places = {**written_folders(app), "CHATTTS_HOME": cache_home()}
    wrong = [f"{key}: {folder}" for key, folder in places.items() if not can_be_written(folder)]
    if wrong:
        advice = "mount them writable, or name other folders"
        return Finding("folders", Status.FAIL, f"cannot be written here: {', '.join(wrong)}", advice)
    return Finding("folders", Status.FINE, f"{', '.join(places)} can be written")


def checkpoint(name: str) -> Finding:
    """Checks the SHA-256 of every file of the checkpoint."""
    try:
        root = resolve(name, cache_home())
        confirmed = verify_files(root)
    except CheckpointError as error:
        return Finding("checkpoint", Status.FAIL, str(error))  # the message says what to do
    if not confirmed:
        return Finding("checkpoint", Status.WARN, f"{name}: {root} has no SHA256SUMS", "sha256sum its files, if you trust them")
    return Finding("checkpoint", Status.FINE, f"{name}: {len(confirmed)} files in {root}, every SHA-256 is right")


def device(pipeline: PipelineConfig) -> Finding:
    """Checks the GPU that the configuration asks for: driver, capability, and the computed memory."""
    devices = {pipeline.engine.device, pipeline.vocoder.device}
    if devices == {"cpu"}:
        return Finding("device", Status.FINE, "the configuration runs on the CPU")
    gpu = torch_part("serve.commands.doctor_gpu", wanted_for="device cuda")
    if problem := gpu.gpu_problem(pipeline):
        return Finding("device", Status.FAIL, *problem)
    return Finding("device", Status.FINE, gpu.described(pipeline))


def triton(pipeline: PipelineConfig) -> Iterator[Finding]:
    """Checks that Triton can compile the engine's kernels, if the engine runs on a GPU."""
    if pipeline.engine.device == "cuda":
        problem = torch_part("serve.commands.doctor_gpu", wanted_for="device cuda").triton_problem()
        yield Finding("triton", Status.FAIL, *problem) if problem else Finding("triton", Status.FINE, "can compile kernels")


def processor(pipeline: PipelineConfig) -> Finding:
    """Counts the cores and checks for the instructions that make bfloat16 fast."""
    cores = len(os.sched_getaffinity(0))
    if pipeline.engine.device != "cpu":
        return Finding("processor", Status.FINE, f"{cores} cores")
    slow = pipeline.engine.dtype == "bfloat16" and (pipeline.engine.decode == "torch" or not usable())  # native code is not
    if slow and (flags := cpu_flags()) is not None and not flags & {"amx_bf16", "avx512_bf16"}:
        advice = "bfloat16 is no faster here: set engine.dtype to float32"
        return Finding("processor", Status.WARN, f"{cores} cores without AVX512-BF16 or AMX", advice)
    if cores < 2:
        return Finding("processor", Status.WARN, f"{cores} core", "use at least two: one computes, one answers requests")
    return Finding("processor", Status.FINE, f"{cores} cores")


def cpu_flags() -> set[str] | None:
    """Returns the feature flags of the processor; None if they are unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), None)


def machine_code(pipeline: PipelineConfig) -> Iterator[Finding]:
    """Compiles the decode step and the vocoder for this CPU, as a start does. The first time needs a C++ compiler."""
    engine, vocoder = pipeline.engine, pipeline.vocoder
    if engine.device == "cpu" and engine.decode != "torch":
        needed = engine.decode == "native" or engine.weights != "dtype"
        yield compiled("decode step", DECODE_STEP, "engine.decode torch, engine.weights dtype: several times as long", needed)
    if vocoder.allows_incremental:
        yield compiled("vocoder", VOCODER, "vocoder.method windows: three times the cost", vocoder.method == "incremental")


def compiled(check: str, source: Path, instead: str, needed: bool) -> Finding:
    """Compiles one source file. If the configuration does not need it, torch does the same, slower."""
    try:
        library(source)
    except (NativeUnavailable, NativeFailed) as reason:  # where it fails no replica starts
        status = Status.FAIL if needed or isinstance(reason, NativeFailed) else Status.WARN
        return Finding(check, status, str(reason), f"a C++ compiler and AVX2 are enough (Debian: g++); else set {instead}")
    return Finding(check, Status.FINE, f"is compiled for {best_instructions()}")


def codecs() -> Finding:
    """Encodes a tenth of a second of silence in every format."""
    samples = np.zeros(SAMPLE_RATE // 10, np.float32)
    broken = []
    for container in CONTAINERS:
        try:
            encode_whole(samples, audio_format(container))
        except (SynthesisError, OSError, ValueError, RuntimeError) as error:
            broken.append(f"{container} ({type(error).__name__})")
    if broken:
        return Finding("codecs", Status.FAIL, f"cannot encode {', '.join(broken)}", "pip install --force-reinstall av")
    return Finding("codecs", Status.FINE, ", ".join(CONTAINERS))


def ports(checked: ConfigFile) -> Iterator[Finding]:
    """Checks that the ports of the service are free."""
    options = checked.document.get("http_options", {})
    host, port = options.get("host", "127.0.0.1"), options.get("port", 8000)
    if is_free(host, port):
        yield Finding("port", Status.FINE, f"{host}:{port} is free")
    else:
        yield Finding("port", Status.FAIL, f"{host}:{port} is taken", "stop what listens there, or change http_options.port")
    if checked.is_one_process:
        return
    for number, whose in HAPROXY_PORTS.items():
        if not is_free("0.0.0.0", number):
            yield Finding(
                "port", Status.WARN, f"{number} ({whose}) is taken", "start with --plain, or stop the other Ray Serve"
            )
    if not is_free("127.0.0.1", DASHBOARD_PORT):
        text = f"{DASHBOARD_PORT} (Ray's dashboard) is taken: another Ray cluster runs here"
        yield Finding("port", Status.FINE, f"{text}; `chattts-serve start` starts its own beside it, on the next free port")


def disk(home: Path) -> Finding:
    """Checks the disk space for checkpoints and Ray's logs."""
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < LEAST_FREE_DISK:
        return Finding(
            "disk", Status.WARN, f"{free // MIB} MiB free at {place}", "free some space, or set CHATTTS_HOME and RAY_TMPDIR"
        )
    return Finding("disk", Status.FINE, f"{free // GIB} GiB free at {place}")


def shared_memory() -> Finding:
    """Checks /dev/shm, which holds Ray's object store and HAProxy's start-up log; containers get 64 MiB by default."""
    check, advice = "shared memory", "remove what fills it (ls -l /dev/shm); in a container: docker run --shm-size=2g"
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return Finding(check, Status.WARN, "unknown: there is no /dev/shm", "Ray falls back to the disk")
    text = f"/dev/shm has {usage.free // MIB} of {usage.total // MIB} MiB free"
    if usage.free < MIB:
        return Finding(check, Status.FAIL, f"{text}: HAProxy and Ray's processes would crash", advice)
    if usage.free < LEAST_SHARED_MEMORY:
        return Finding(check, Status.WARN, f"{text}: Ray's object store goes to the disk", advice)
    return Finding(check, Status.FINE, text)


def descriptors() -> Finding:
    """Checks how many files and sockets a process may open. Ray raises its own limit to the hard one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    check = "file descriptors"
    if most == resource.RLIM_INFINITY or most >= OPEN_FILES["haproxy"]:
        return Finding(check, Status.FINE, "no limit" if most == resource.RLIM_INFINITY else f"{most} per process")
    return Finding(
        check,
        Status.FAIL,
        f"{most} per process (the hard limit): HAProxy ends at once with less than {OPEN_FILES['haproxy']}",
        f"ulimit -Hn {OPEN_FILES['haproxy']} (systemd: LimitNOFILE, docker run --ulimit nofile), or start with --plain",
    )


SIGNS = {Status.FINE: "[green]fine[/]", Status.WARN: "[yellow]warn[/]", Status.FAIL: "[red]FAIL[/]"}


def show(findings: list[Finding]) -> None:
    """Prints one line per finding, the most serious last."""
    console = Console(soft_wrap=True, highlight=False)
    for finding in sorted(findings, key=lambda finding: list(Status).index(finding.status)):
        advice = f"\n      {finding.advice}" if finding.advice else ""
        console.print(f"{SIGNS[finding.status]}  {escape(f'{finding.check}: {finding.result}{advice}')}")


if __name__ == "__main__":
    sys.exit(main())
