"""Doctor: looks at a machine before the service is started on it, and says what to do. `chattts-serve doctor CONFIG`

In:    a configuration file
Out:   one line a finding, worst last; exit code 1 when the service would not start or not work; --json for machines
Owns:  nothing; it starts nothing, downloads nothing and changes nothing (a made checkpoint and machine code are made, as at
       a start)
Never: a guess: what could not be looked at is said to be unknown
"""

import argparse
import json
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import redis
import torch
from packaging.requirements import Requirement
from rich.console import Console

from pipeline.audio.encode import encode_whole
from pipeline.audio.formats import CONTAINERS, audio_format
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.manifest import verify_files
from pipeline.config import PipelineConfig
from pipeline.errors import CheckpointError, ConfigError, SynthesisError
from pipeline.model.cpu.native import SOURCE as DECODE_STEP
from pipeline.native.compiler import NativeUnavailable, library
from pipeline.paths import cache_home
from pipeline.spec import SAMPLE_RATE
from pipeline.store.open import REDIS_SCHEMES
from pipeline.vocoder.incremental.network import SOURCE as VOCODER
from scripts.config_path import CONFIG_HELP, DEFAULT, config_path
from scripts.launch.processes import is_free
from scripts.launch.start import OPEN_FILES
from serve.config.app_config import AppConfig
from serve.config.config_file import ConfigFile, check_file

PACKAGE = "chattts-serve"
MIB, GIB = 1 << 20, 1 << 30
DASHBOARD_PORT = 8265
HAPROXY_PORTS = {9101: "HAProxy's metrics", 8404: "HAProxy's statistics"}
LEAST_FREE_DISK = 5 * GIB  # Ray's logs and object spilling; below it Ray warns and may refuse
LEAST_SHARED_MEMORY = 1 * GIB  # Ray's object store
VOCODER_MEMORY = 2 * GIB  # weights, windows and graphs of a vocoder on a GPU, generously
REDIS_TIMEOUT_S = 3.0


class Verdict(StrEnum):
    """How bad it is."""

    FINE = "fine"
    WARN = "warn"
    """works, but not as it should"""
    FAIL = "fail"
    """does not start, or does not work"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    what: str
    verdict: Verdict
    found: str
    do: str = ""
    """empty where there is nothing to do"""


def main(arguments: list[str] | None = None) -> int:
    """Look at everything, even when something is wrong."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve doctor", description="Look at this machine before the service is started on it."
    )
    parser.add_argument("config", type=config_path, nargs="?", default=DEFAULT, help=CONFIG_HELP)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    args = parser.parse_args(arguments)
    findings = list(examine(args.config))
    if args.json:
        print(json.dumps({"config": str(args.config), "findings": [asdict(finding) for finding in findings]}))
    else:
        show(findings)
    return int(any(finding.verdict is Verdict.FAIL for finding in findings))


def examine(path: Path) -> Iterator[Finding]:
    """Every finding about a configuration on this machine."""
    yield python()
    yield packages()
    try:
        checked = check_file(path)
    except ConfigError as error:
        yield Finding("configuration", Verdict.FAIL, str(error), f"chattts-serve config check {path}")
        return
    yield Finding("configuration", Verdict.FINE, f"{path} is right")
    pipeline = checked.app.pipeline
    yield checkpoint(pipeline.checkpoint)
    yield device(pipeline)
    yield processor(pipeline)
    yield from machine_code(pipeline)
    yield from redis_servers(checked.app)
    yield codecs()
    yield from ports(checked)
    yield disk(cache_home())
    yield shared_memory()
    yield descriptors()


def python() -> Finding:
    """The interpreter."""
    found = platform.python_version()
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return Finding("python", Verdict.FINE, found)
    return Finding("python", Verdict.FAIL, found, "use Python 3.11, 3.12 or 3.13")


def packages() -> Finding:
    """What pyproject.toml asks for, against what is installed."""
    try:
        wanted = [Requirement(line) for line in requires(PACKAGE) or []]
    except PackageNotFoundError:
        return Finding("packages", Verdict.FAIL, f"{PACKAGE} itself is not installed", "pip install -e .")
    wrong = []
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            wrong.append(f"{requirement.name} {installed} is not {requirement.specifier}")
    if wrong:
        return Finding("packages", Verdict.FAIL, "; ".join(wrong), "pip install -e . in the environment the service runs in")
    return Finding("packages", Verdict.FINE, f"{len(wanted)} as pyproject.toml asks, torch {torch.__version__}")


def checkpoint(name: str) -> Finding:
    """The files, every byte of them."""
    try:
        root = resolve(name, cache_home())
        confirmed = verify_files(root)
    except CheckpointError as error:
        return Finding("checkpoint", Verdict.FAIL, str(error))  # it says itself what to do
    if not confirmed:
        return Finding(
            "checkpoint", Verdict.WARN, f"{name}: {root} has no SHA256SUMS", "sha256sum its files, if you trust them"
        )
    return Finding("checkpoint", Verdict.FINE, f"{name}: {len(confirmed)} files in {root}, every SHA-256 as promised")


def device(pipeline: PipelineConfig) -> Finding:
    """The GPUs the configuration asks for, and whether what it keeps there fits."""
    devices = {pipeline.engine.device, pipeline.vocoder.device}
    if devices == {"cpu"}:
        return Finding("device", Verdict.FINE, "the configuration runs on the CPU")
    if not torch.cuda.is_available():
        return Finding(
            "device",
            Verdict.FAIL,
            f"the configuration asks for {', '.join(sorted(devices - {'cpu'}))}; torch sees no GPU",
            "install NVIDIA's driver (nvidia-smi must work), or take configs/cpu.yaml",
        )
    free, total = torch.cuda.mem_get_info(0)
    wanted = pipeline.engine.kv_budget_mib * MIB + VOCODER_MEMORY
    found = f"{torch.cuda.get_device_name(0)}, {free // MIB} of {total // MIB} MiB free"
    if free < wanted:
        return Finding("device", Verdict.FAIL, found, f"{wanted // MIB} MiB are needed: lower engine.slots and kv_budget_mib")
    return Finding("device", Verdict.FINE, found)


def processor(pipeline: PipelineConfig) -> Finding:
    """Cores, and the instructions bfloat16 needs to be fast on them."""
    cores = len(os.sched_getaffinity(0))
    if pipeline.engine.device != "cpu":
        return Finding("processor", Verdict.FINE, f"{cores} cores")
    flags = cpu_flags()
    if pipeline.engine.dtype == "bfloat16" and flags is not None and not flags & {"amx_bf16", "avx512_bf16"}:
        return Finding(
            "processor",
            Verdict.WARN,
            f"{cores} cores without AVX512-BF16 or AMX",
            "bfloat16 gains nothing here: engine.dtype float32",
        )
    if cores < 2:
        return Finding("processor", Verdict.WARN, f"{cores} core", "two are the least for a server that answers meanwhile")
    return Finding("processor", Verdict.FINE, f"{cores} cores")


def cpu_flags() -> set[str] | None:
    """What the processor can do; None where nobody says."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), None)


def machine_code(pipeline: PipelineConfig) -> Iterator[Finding]:
    """What a CPU's decode step and vocoder are compiled to, built as a start builds it. It needs a C++ compiler, once."""
    engine, vocoder = pipeline.engine, pipeline.vocoder
    if engine.device == "cpu" and engine.decode != "torch":
        needed = engine.decode == "native" or engine.weights == "int8"
        yield built("decode step", DECODE_STEP, "engine.decode to torch and engine.weights to dtype", needed=needed)
    if vocoder.allows_incremental:
        yield built("vocoder", VOCODER, "vocoder.method to windows", needed=vocoder.method == "incremental")


def built(what: str, source: Path, instead: str, *, needed: bool) -> Finding:
    """Whether one source is machine code here; where the configuration does not insist, torch does the same, slower."""
    try:
        library(source)
    except NativeUnavailable as reason:
        verdict = Verdict.FAIL if needed else Verdict.WARN
        return Finding(what, verdict, str(reason), f"install a C++ compiler (Debian's package is g++), or set {instead}")
    return Finding(what, Verdict.FINE, "is compiled")


def redis_servers(app: AppConfig) -> Iterator[Finding]:
    """Every Redis the configuration names, once, asked for a sign of life."""
    for url, keys in redis_urls(app).items():
        what, place = "redis", f"{urlsplit(url).hostname}:{urlsplit(url).port or 6379} ({', '.join(keys)})"
        try:
            with redis.Redis.from_url(url, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S) as client:
                client.ping()
        except (redis.RedisError, ValueError) as error:
            yield Finding(what, Verdict.FAIL, f"{place} does not answer: {error}", f"start it, or correct {keys[0]}")
        else:
            yield Finding(what, Verdict.FINE, f"{place} answers")


def redis_urls(app: AppConfig) -> dict[str, list[str]]:
    """url -> the keys of the configuration that name it."""
    found: dict[str, list[str]] = {}

    def look(value: object, at: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                look(inner, f"{at}.{key}" if at else str(key))
        elif isinstance(value, str) and urlsplit(value).scheme in REDIS_SCHEMES:
            found.setdefault(value, []).append(at)

    look(app.model_dump(), "")
    return found


def codecs() -> Finding:
    """Encodes a tenth of a second in every format."""
    samples = np.zeros(SAMPLE_RATE // 10, np.float32)
    broken = []
    for container in CONTAINERS:
        try:
            encode_whole(samples, audio_format(container))
        except (SynthesisError, OSError, ValueError, RuntimeError) as error:
            broken.append(f"{container} ({type(error).__name__})")
    if broken:
        return Finding("codecs", Verdict.FAIL, f"cannot encode {', '.join(broken)}", "pip install --force-reinstall av")
    return Finding("codecs", Verdict.FINE, ", ".join(CONTAINERS))


def ports(checked: ConfigFile) -> Iterator[Finding]:
    """Whether the service can listen where it wants to."""
    options = checked.document.get("http_options", {})
    host, port = options.get("host", "127.0.0.1"), options.get("port", 8000)
    if is_free(host, port):
        yield Finding("port", Verdict.FINE, f"{host}:{port} is free")
    else:
        yield Finding("port", Verdict.FAIL, f"{host}:{port} is taken", "stop what listens there, or change http_options.port")
    for number, whose in HAPROXY_PORTS.items():
        if not is_free("0.0.0.0", number):
            yield Finding(
                "port", Verdict.WARN, f"{number} ({whose}) is taken", "start with --plain, or stop the other HAProxy of a Serve"
            )
    if not is_free("127.0.0.1", DASHBOARD_PORT):
        yield Finding(
            "port",
            Verdict.WARN,
            f"{DASHBOARD_PORT} (Ray's dashboard) is taken: a Ray cluster runs here",
            "`serve run` will join it; `ray stop` ends it",
        )


def disk(home: Path) -> Finding:
    """Room for checkpoints and Ray's logs."""
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < LEAST_FREE_DISK:
        return Finding(
            "disk", Verdict.WARN, f"{free // MIB} MiB free at {place}", "make room, or set CHATTTS_HOME and RAY_TMPDIR"
        )
    return Finding("disk", Verdict.FINE, f"{free // GIB} GiB free at {place}")


def shared_memory() -> Finding:
    """Ray's object store and HAProxy's log of its start live in /dev/shm; containers get 64 MiB by default."""
    what, do = "shared memory", "remove what fills it (ls -l /dev/shm); in a container: docker run --shm-size=2g"
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return Finding(what, Verdict.WARN, "unknown: there is no /dev/shm", "Ray falls back to the disk")
    found = f"/dev/shm has {usage.free // MIB} of {usage.total // MIB} MiB free"
    if usage.free < MIB:
        return Finding(what, Verdict.FAIL, f"{found}: HAProxy would die of it, and Ray's processes", do)
    if usage.free < LEAST_SHARED_MEMORY:
        return Finding(what, Verdict.WARN, f"{found}: Ray's object store goes to the disk", do)
    return Finding(what, Verdict.FINE, found)


def descriptors() -> Finding:
    """How many files and sockets a process may have open. Ray raises its own limit to the hard one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    what = "file descriptors"
    if most == resource.RLIM_INFINITY or most >= OPEN_FILES["haproxy"]:
        return Finding(what, Verdict.FINE, "no limit" if most == resource.RLIM_INFINITY else f"{most} a process")
    return Finding(
        what,
        Verdict.FAIL,
        f"{most} a process (the hard limit): HAProxy ends at once with less than {OPEN_FILES['haproxy']}",
        f"ulimit -Hn {OPEN_FILES['haproxy']} (systemd: LimitNOFILE, docker run --ulimit nofile), or start with --plain",
    )


SIGNS: dict[Verdict, Callable[[str], str]] = {
    Verdict.FINE: lambda text: f"[green]fine[/]  {text}",
    Verdict.WARN: lambda text: f"[yellow]warn[/]  {text}",
    Verdict.FAIL: lambda text: f"[red]FAIL[/]  {text}",
}


def show(findings: list[Finding]) -> None:
    """One line each, what needs doing last, where the eye is."""
    console = Console(soft_wrap=True, highlight=False)
    for finding in sorted(findings, key=lambda finding: list(Verdict).index(finding.verdict)):
        what_to_do = f"\n      {finding.do}" if finding.do else ""
        console.print(SIGNS[finding.verdict](f"{finding.what}: {finding.found}{what_to_do}"))


if __name__ == "__main__":
    sys.exit(main())
