"""The wheel: it holds all that runs, and its commands work outside the checkout."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import wave
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.wheel import build_wheel, install_wheel, tracked_files

pytestmark = pytest.mark.slow

PACKAGES = ("pipeline", "serve", "configs")


@dataclass(frozen=True)
class Installed:
    """The wheel, installed in a folder of its own."""

    wheel: Path
    environment: dict[str, str]
    elsewhere: Path
    """an empty folder to run in"""

    def run(self, *words: str) -> str:
        """What a command of the wheel prints; it has to end well."""
        done = subprocess.run(
            words, cwd=self.elsewhere, env=self.environment, capture_output=True, text=True, check=False, timeout=250
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(folder)
    environment = install_wheel(wheel, folder / "prefix")
    (folder / "elsewhere").mkdir()
    home = {"CHATTTS_HOME": os.environ.get("CHATTTS_HOME", str(folder / "home"))}  # machine code is compiled once
    return Installed(wheel, environment | home, folder / "elsewhere")


def test_every_file_of_the_packages_is_in_it(installed: Installed):
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    expected = {name for name in tracked_files() if name.startswith(tuple(f"{package}/" for package in PACKAGES))}
    assert expected <= names
    assert not [name for name in names if name.startswith(("tests/", "k8s/", "docs/", "scripts/"))]
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert any(name.endswith(".dist-info/licenses/NOTICE") for name in names)


def test_programs_may_be_run(installed: Installed):
    site = Path(installed.environment["PYTHONPATH"])
    assert os.access(site / "serve/http/haproxy.sh", os.X_OK)


def test_the_console_script_is_the_installed_one(installed: Installed):
    prefix = installed.elsewhere.parent / "prefix"
    script = shutil.which("chattts-serve", path=installed.environment["PATH"])
    assert script == str(prefix / "bin/chattts-serve")
    assert "0 fine, 1 failed" in installed.run(script, "--help")
    assert installed.run(script, "--version").startswith("chattts-serve ")


@pytest.mark.parametrize("name", ["dev", "configs/gpu.yaml"])
def test_configurations_come_with_it(installed: Installed, name: str):
    shown = installed.run("chattts-serve", "config", "check", name)
    assert shown.startswith(installed.environment["PYTHONPATH"])


def test_keys_are_added_and_listed(installed: Installed):
    store = str(installed.elsewhere / "keys.sqlite")
    assert installed.run("chattts-serve", "keys", "add", "ours", "--store", store)
    assert "ours" in installed.run("chattts-serve", "keys", "list", "--store", store)


def test_it_speaks(installed: Installed):
    installed.run("chattts-serve", "say", "One two.", "--seed", "1", "-o", "hello.wav")
    with wave.open(str(installed.elsewhere / "hello.wav")) as file:
        assert file.getnframes() > 0.3 * file.getframerate()


def test_its_source_can_be_installed_again(installed: Installed):
    """Every Python file of the wheel is in the archive, and what a build reads."""
    code = (
        "from serve.config.app_config import PROJECT; from serve.http.routes.source import archive; "
        "open('source.tar.gz', 'wb').write(archive(PROJECT))"
    )
    installed.run(sys.executable, "-c", code)
    with tarfile.open(fileobj=io.BytesIO((installed.elsewhere / "source.tar.gz").read_bytes())) as packed:
        names = {name.removeprefix("chattts-serve/") for name in packed.getnames()}
    sources = {name for name in zipfile.ZipFile(installed.wheel).namelist() if name.endswith((".py", ".cpp", ".h"))}
    assert sources <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "NOTICE"} <= names
    assert not [name for name in names if name.startswith(("configs/", "tests/"))]
