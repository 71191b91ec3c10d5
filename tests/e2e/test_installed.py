"""What is installed serves: a wheel, a fresh environment, a container."""

import io
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import wave
import zipfile
from pathlib import Path

import pytest
import requests

from serve.config.app_config import PROJECT
from tests.support.image import fill, the
from tests.support.services import needed_program
from tests.support.started import started
from tests.support.wheel import build_wheel, install_wheel

pytestmark = pytest.mark.nightly

# The service of an installed wheel, started outside the checkout by the one command that people type.


@pytest.mark.timeout(1200)
def test_an_installed_wheel_serves_and_offers_its_source(home: Path, folder: Path, tmp_path: Path):
    prefix, elsewhere = tmp_path / "prefix", tmp_path / "elsewhere"
    environment = install_wheel(build_wheel(tmp_path), prefix)
    elsewhere.mkdir()
    program = (str(prefix / "bin/chattts-serve"), "start")
    paths = {name: environment[name] for name in ("PYTHONPATH", "PATH")}
    with started(home=home, folder=folder, program=program, where=elsewhere, **paths) as service:
        service.wait_until_ready()
        body = {"input": "Five one one.", "seed": 1, "response_format": "wav"}
        reply = requests.post(f"{service.url}/v1/audio/speech", json=body, timeout=120)
        assert (reply.status_code, reply.content[:4]) == (200, b"RIFF")
        archive = requests.get(f"{service.url}/source.tar.gz", timeout=60).content
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            names = set(packed.getnames())
        assert {"chattts-serve/serve/app.py", "chattts-serve/configs/dev.yaml", "chattts-serve/LICENSE"} <= names
        assert not [name for name in names if name.startswith("chattts-serve/tests/")], "it is the checkout that answers"
        service.process.terminate()
        assert service.exit_code() == 0


@pytest.fixture(scope="module")
def native_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`make wheel`: libraries for every processor, which need the C library alone."""
    return build_wheel(tmp_path_factory.mktemp("native"), native=True)


def test_a_wheel_with_native_code_speaks_without_a_compiler(native_wheel: Path, tmp_path: Path):
    wheel, home, path = native_wheel, tmp_path / "home", tmp_path / "empty"
    assert re.search(r"-py3-none-manylinux_2_\d+_(x86_64|aarch64)\.whl$", wheel.name)
    environment = install_wheel(wheel, tmp_path / "prefix") | {"CHATTTS_HOME": str(home), "PATH": str(path)}
    libraries = [file.read_bytes() for file in (tmp_path / "prefix").rglob("built/*.so")]
    assert len(libraries) == (2 if platform.machine() == "aarch64" else 8)
    assert not [name for name in (b"libgomp", b"libstdc++", b"libgcc_s") if any(name in library for library in libraries)]
    path.mkdir()
    command = [sys.executable, "-m", "serve.commands", "say", "Five one one.", "--seed", "5", "-o", str(tmp_path / "five.wav")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "five.wav").stat().st_size > 24_000
    assert not (home / "native").exists(), "nothing was compiled"


# The sixty seconds: from nothing but Python, `uv` and the wheels in a folder to a sound, without a compiler or a cache.

MB = 1_000_000
MOST_DOWNLOADED, MOST_CPU_S = 160 * MB, 25.0


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_a_stranger_speaks_with_one_command(
    version: str, native_wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    name = [shutil.which(f"python{version}") or "false", "-c", "import sys; print(sys.executable)"]
    python = subprocess.run(name, capture_output=True, text=True, check=False).stdout.strip()  # not a script of pyenv's
    if not python:
        pytest.skip(f"no python{version} here")
    fetch(python, tmp_path, str(native_wheel), "uv")
    wheels, path, root = tmp_path / "wheels", tmp_path / "path", tmp_path / "root"
    for folder in (path, root):
        folder.mkdir()
    for program in ("realpath", "dirname"):  # uv's own start of a command asks for them
        (path / program).symlink_to(f"/usr/bin/{program}")
    downloaded = sum(path.stat().st_size for path in wheels.glob("*.whl") if not path.name.startswith("uv-"))
    with zipfile.ZipFile(next(wheels.glob("uv-*.whl"))) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith("/uv")]
        uv = Path(packed.extract(name, tmp_path))
    uv.chmod(0o755)
    command = [str(uv), "tool", "run", "--offline", "--no-index", "--find-links", str(wheels), "--python", python]
    command += ["--from", str(next(wheels.glob("chattts_serve-*.whl"))), "chattts-serve", "say", "Hello.", "-o", "hello.wav"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {"HOME": str(root), "PATH": str(path)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    with capsys.disabled():
        print(f"\n  Python {version}: {downloaded / MB:.0f} MB of wheels, {cpu_s:.1f} s of CPU from them to the sound")
    assert done.returncode == 0, done.stderr
    assert (root / "hello.wav").stat().st_size > 10_000
    assert not list(root.rglob("native/*.so")), "nothing was compiled"
    assert (downloaded < MOST_DOWNLOADED, cpu_s < MOST_CPU_S) == (True, True)


def fetch(python: str, folder: Path, *packages: str) -> None:
    """Puts these packages and all they need into FOLDER/wheels, as wheels of that Python."""
    venv, wheels = folder / "tools", str(folder / "wheels")
    subprocess.run([python, "-m", "venv", str(venv)], check=True)
    downloading = [str(venv / "bin/pip"), "download", "--quiet", "--only-binary=:all:", "--dest", wheels, *packages]
    done = subprocess.run(downloading, capture_output=True, text=True, check=False)
    if done.returncode:
        fail_or_skip(done.stderr)


def fail_or_skip(words: str) -> None:
    unreachable = "No matching distribution" in words or "ConnectionError" in words
    (pytest.skip if unreachable and os.environ.get("CHATTTS_ALL_TOOLS") != "1" else pytest.fail)(words[-500:])


@pytest.mark.timeout(900)
def test_the_site_has_every_page_and_no_broken_link(tmp_path: Path):
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    fetch(sys.executable, tmp_path, *extras["site"])
    tools = tmp_path / "tools/bin"
    pip = [str(tools / "pip"), "install", "--quiet", "--no-index", "--find-links", str(tmp_path / "wheels")]
    subprocess.run([*pip, "mkdocs-swagger-ui-tag", "mkdocs-material"], check=True)
    subprocess.run([sys.executable, "-m", "scripts.build_site", str(tmp_path / "site")], cwd=PROJECT, check=True)
    mkdocs = [str(tools / "mkdocs"), "build", "--quiet", "--strict", "--config-file", str(tmp_path / "site/mkdocs.yml")]
    done = subprocess.run(mkdocs, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    html = tmp_path / "site/html"
    assert {"index.html", "listen", "openapi", "docs", "search", "sample-0.mp3"} <= {path.name for path in html.iterdir()}
    assert "Operations" in (html / "search/search_index.json").read_text()
    elsewhere = re.compile(r"""mermaid|<(?:script|img|link (?!rel="canonical"))[^>]+(?:src|href)=["']?(?:https?:)?//""")
    assert [path for path in html.rglob("*.html") if elsewhere.search(path.read_text())] == [], "the network is needed"


# A fresh virtual environment with what serving on a CPU needs: no torch in it, it speaks, and says what it lacks.

HEAVY = re.compile(r"torch|triton|nvidia|cuda|chattts$|transformers|vocos|vector-quantize|numba|scipy", re.IGNORECASE)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the environment."""
    folder = tmp_path_factory.mktemp("fresh")
    venv = folder / "venv"
    wheel = build_wheel(folder)
    for command in ([sys.executable, "-m", "venv", str(venv)], [str(venv / "bin/pip"), "install", "--quiet", str(wheel)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "venv" in command[:3]:
            pytest.fail(done.stderr)
        if done.returncode:
            fail_or_skip(done.stderr)
    return venv


def run(fresh: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of that environment, in a folder that is no checkout."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = inherited | {"CHATTTS_HOME": str(home), "PATH": f"{fresh / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [str(fresh / "bin" / words[0]), *words[1:]], cwd=fresh, env=environment, capture_output=True, text=True, check=False
    )


def test_the_installation_without_torch_is_small(fresh: Path, home: Path):
    listed = json.loads(run(fresh, home, "pip", "list", "--format", "json").stdout)
    names = [package["name"] for package in listed]
    assert "ray" not in names
    assert not [name for name in names if HEAVY.match(name)]
    size = sum(path.lstat().st_size for path in fresh.rglob("*") if path.is_file())
    assert size < 500 * MB, "docs/installing.md names 400 MB"


def test_every_command_says_what_it_needs(fresh: Path, home: Path):
    plain = "start,say,read,doctor,keys,weights fetch,weights make,config show"
    for command in plain.split(","):
        done = run(fresh, home, "chattts-serve", *command.split(), "--help")
        assert done.returncode == 0, done.stderr
    extras = {"size": "torch", "weights convert": "torch", "drain": "ray", "leave": "ray", "bench": "bench", "judge": "judge"}
    for command, extra in extras.items():
        done = run(fresh, home, "chattts-serve", *command.split(), "--help")
        assert done.returncode == 1, command
        assert f"pip install 'chattts-serve[{extra}]'" in done.stderr


def test_a_configuration_that_needs_torch_is_refused_with_what_to_install(fresh: Path, home: Path, tmp_path: Path):
    text = (PROJECT / "configs/box.yaml").read_text()
    path = tmp_path / "windows.yaml"
    assert "placement: with_acoustic" in text
    text = text.replace("placement: with_acoustic", "placement: with_acoustic, method: windows")
    path.write_text(text.replace("source: configs/box.yaml", f"source: {path}"))
    for command in ("start", "doctor"):
        done = run(fresh, home, "chattts-serve", command, str(path))
        assert done.returncode == 1
        output = " ".join((done.stdout + done.stderr).split())
        assert "pip install 'chattts-serve[torch]'" in output
        assert "vocoder.method windows" in output


def test_without_ray_one_process_is_what_is_started(fresh: Path, home: Path):
    done = run(fresh, home, "chattts-serve", "doctor")
    assert done.returncode == 0, done.stdout
    assert "box.yaml is valid" in done.stdout


def test_a_file_for_ray_is_refused_with_what_to_install(fresh: Path, home: Path):
    done = run(fresh, home, "chattts-serve", "start", "dev")
    assert done.returncode == 1
    assert "for Ray Serve, which is not installed: pip install 'chattts-serve[ray]'" in " ".join(done.stderr.split())


@pytest.mark.timeout(1200)
def test_the_installed_service_speaks(fresh: Path, folder: Path, tmp_path: Path):
    home = tmp_path / "a home"
    home.mkdir()
    paths = {"PYTHONPATH": "", "PATH": f"{fresh / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    program = (str(fresh / "bin/chattts-serve"), "start")
    with started(home=home, folder=folder, program=program, prefix=fresh, where=tmp_path, shipped="box", **paths) as service:
        service.wait_until_ready()
        body = {"input": "Five one one.", "seed": 1, "response_format": "wav"}
        reply = requests.post(f"{service.url}/v1/audio/speech", json=body, timeout=120)
        assert (reply.status_code, reply.content[:4]) == (200, b"RIFF")
        assert len(reply.content) > 24_000
        reply = requests.post(f"{service.url}/v1/audio/speech", json=body | {"seed_mode": "upstream"}, timeout=120)
        assert reply.status_code == 400
        assert "pip install 'chattts-serve[torch]'" in reply.text
        service.process.terminate()
        assert service.exit_code() == 0


# The image's entry point without a daemon: another user, a read-only tree, a network of its own, a real Prometheus.

# Runs in the network of the container: waits until the health check is content, speaks, waits until Prometheus has our metrics.
INSIDE = """
set -eu
{opening}
ip link set lo up
setpriv --reuid=1000 --regid=100 --clear-groups "$PYTHON" {entry} > "$DATA/log" 2>&1 &
service=$!
for i in $(seq 400); do {health} > /dev/null 2>&1 && break; kill -0 $service; sleep 0.5; done
{health}
curl -sf localhost:8000/v1/audio/speech -H 'Content-Type: application/json' \
     -d '{{"input": "Five one one.", "seed": 1, "response_format": "wav"}}' -o "$DATA/hello.wav"
prometheus --config.file="$DATA/prometheus.yaml" --storage.tsdb.path="$DATA/tsdb" --web.listen-address=127.0.0.1:9090 \
     > "$DATA/prometheus.log" 2>&1 &
prometheus=$!
query='http://localhost:9090/api/v1/query?query=ray_chattts_requests_total'
for i in $(seq 180); do curl -s "$query" > "$DATA/answer" || true; grep -q '"value"' "$DATA/answer" && break; sleep 0.5; done
curl -s http://localhost:9090/api/v1/targets > "$DATA/targets"
kill $prometheus
kill $service
wait $service
"""


def opening(place: Path, *folders: Path) -> str:
    """Shell for a namespace of mounts: every user may enter these folders, also below one that is root's alone."""
    bound = {folder: place / str(number) for number, folder in enumerate(folders)}
    closed = {path for folder in folders for path in folder.parents if not path.stat().st_mode & 0o001}
    lines = [f"mkdir -p {spare} && mount --bind {folder} {spare}" for folder, spare in bound.items()]
    lines += [f"mount -t tmpfs -o mode=755 none {path}" for path in closed if not closed.intersection(path.parents)]
    lines += [f"mkdir -p {folder} && mount --bind {spare} {folder}" for folder, spare in bound.items()]
    return "\n".join(lines) if closed else ""


@pytest.mark.timeout(900)
@pytest.mark.skipif(os.getuid() != 0, reason="only root changes user and network")
def test_docker_run_speaks_and_prometheus_sees_it():
    needed_program("prometheus", "prometheus")
    needed_program("curl", "curl")
    needed_program("ip", "iproute2")
    needed_program("setpriv", "util-linux")
    unshare = needed_program("unshare", "util-linux")
    with tempfile.TemporaryDirectory(prefix="image-", dir="/tmp", ignore_cleanup_errors=True) as name:
        root = Path(name)
        root.chmod(0o755)
        workdir = fill(root / "image")
        for path in (workdir, *workdir.rglob("*")):
            path.chmod(0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444)
        data, ray = root / "data", root / "ray"
        for folder in (data, ray):
            folder.mkdir()
            shutil.chown(folder, 1000, 100)
        text = (PROJECT / "container/prometheus.yaml").read_text()
        text = text.replace("/etc/prometheus/rules.yaml", str(PROJECT / "k8s/monitoring/rules.yaml"))
        text = text.replace("/ray/ray/", f"{ray}/ray/").replace("10s", "2s")
        (data / "prometheus.yaml").write_text(text)
        health = json.loads(the("HEALTHCHECK").partition("CMD")[2])
        entry = " ".join(json.loads(the("ENTRYPOINT"))[1:])
        homes = opening(root / "open", *{Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()})
        script = INSIDE.format(entry=entry, opening=homes, health=" ".join([f'"$PYTHON" -c "{health[2]}"']))
        inherited = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1", "CHATTTS_LOG": "-"}
        folders = {"PYTHONPATH": str(workdir), "CHATTTS_HOME": str(data), "DATA": str(data), "RAY_TMPDIR": str(ray)}
        environment = inherited | folders | {"PYTHON": sys.executable}
        command = [unshare, "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script]
        done = subprocess.run(command, cwd=workdir, env=environment, capture_output=True, text=True, timeout=800)
        log = (data / "log").read_text()
        assert done.returncode == 0, done.stderr[-2000:] + log[-4000:]
        assert "device cpu, float32, as in dev.yaml" in log
        with wave.open(str(data / "hello.wav")) as file:
            assert file.getnframes() > 0.3 * file.getframerate()
        assert '"value"' in (data / "answer").read_text()
        targets = json.loads((data / "targets").read_text())["data"]["activeTargets"]
        health_of = {re.sub(r":\d+$", "", target["labels"]["job"]): target["health"] for target in targets}
        assert health_of == {"ray": "up", "haproxy": "up"}, targets
