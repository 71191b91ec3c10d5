"""The wheel of this checkout, built from its files and installed outside of it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from serve.config.app_config import PROJECT
from tests.support.services import needed_program


def tracked_files() -> list[str]:
    """Paths of the files that git knows, and of new ones it does not ignore."""
    git = needed_program("git", "git")
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=PROJECT, capture_output=True, check=True).stdout.decode()
    return [name for name in listed.split("\0") if name and (PROJECT / name).is_file()]


def build_wheel(folder: Path, *, native: bool = False) -> Path:
    """Build the wheel from a copy of the sources: setuptools would leave its own folders beside them.

    Args:
        native: with native code, as `make wheel` does.
    """
    source = folder / "source"
    for name in tracked_files():
        if not name.startswith(("tests/", "docs/", "k8s/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / name, source / name)
            shutil.copymode(PROJECT / name, source / name)
    options = []
    if native:
        environment = os.environ | {"PYTHONPATH": str(source)}
        ship = [sys.executable, "-m", "serve.commands.launch.ship"]
        subprocess.run(ship, cwd=source, env=environment, check=True, capture_output=True)
        tag = subprocess.run([*ship, "--platform"], cwd=source, env=environment, check=True, capture_output=True, text=True)
        options = [f"--config-settings=--build-option=--plat-name={tag.stdout.strip()}"]
    return pack_wheel(source, folder, *options)


def pack_wheel(source: Path, folder: Path, *options: str) -> Path:
    """Build the wheel of a folder with sources."""
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), *options, str(source))
    (wheel,) = folder.glob("*.whl")
    return wheel


def install_wheel(wheel: Path, folder: Path) -> dict[str, str]:
    """Install into a folder and leave alone what is installed here.

    Returns:
        The environment in which Python imports the project from that folder and everything else from here.
    """
    _pip("install", "--no-deps", "--ignore-installed", "--prefix", str(folder), str(wheel))
    (site,) = folder.glob("lib/python*/site-packages")
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CHATTTS_HOME")}
    return inherited | {"PYTHONPATH": str(site), "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
