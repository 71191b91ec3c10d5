"""Project files: constraints, version, workflows and hooks say the same as pyproject.toml and the Makefile."""

import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.generate import constraints

ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
PINS = dict(line.split("==") for line in LINES)
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_constraints_are_plain_pins():
    assert list(PINS) == sorted(PINS)
    for line in LINES:
        assert re.fullmatch(r"[a-z0-9-]+==[\d.]+(b\d+)?", line), line


@pytest.mark.parametrize("requirement", constraints.wanted(), ids=lambda requirement: requirement.name)
def test_constraints_satisfy_pyproject(requirement: Requirement):
    pin = PINS[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(pin, prereleases=True), f"{requirement} is pinned to {pin}: run make constraints"


def test_pins_satisfy_each_other():
    """Of the packages that are installed here in the version that is pinned."""
    looked_at = 0
    for name, pin in PINS.items():
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if found.version == pin:
            looked_at += 1
            for one in map(Requirement, found.requires or []):
                other = PINS.get(canonicalize_name(one.name))
                if other is not None and (one.marker is None or one.marker.evaluate({"extra": ""})):
                    assert one.specifier.contains(other, prereleases=True), f"{name} needs {one}, pinned is {other}"
    assert looked_at > 0


def test_what_only_tests_need_is_not_pinned():
    only_tests = {"pytest", "ruff", "mypy", "hypothesis", "pocketsphinx", "matplotlib", "pyloudnorm"}
    assert not (only_tests | {"chattts", "torchaudio", "transformers", "silero-vad"}) & set(PINS)


def test_extras_and_the_index_of_torch_are_passed_on_by_make():
    command = ["make", "--dry-run", "--always-make", "serve", "EXTRAS=torch", "TORCH_INDEX=https://mirror.example/cpu"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"100 packages, 190 MB to download, 700 MB on the disk.*venv .*pip install.*pip install", said, re.DOTALL)
    installs = [line for line in said.splitlines() if "pip install" in line and "--editable" in line]
    assert [line.split()[-1].strip("'") for line in installs] == [".", ".[torch]"]
    assert all(line.startswith('PIP_EXTRA_INDEX_URL="https://mirror.example/cpu"') for line in installs)


def test_the_version_stands_in_one_place():
    version = PYPROJECT["project"]["version"]
    images = {
        tag
        for path in (ROOT / "k8s").rglob("*")
        if path.is_file()
        for tag in re.findall(r"chattts-serve:([\w.]+)|newTag: ([\w.]+)", path.read_text())
    }
    assert {found for tag in images for found in tag if found} == {version}, "the images carry the version of the project"
    for package in ("pipeline", "serve", "scripts"):
        for path in (ROOT / package).rglob("*.py"):
            assert f'"{version}"' not in path.read_text(), path


def steps_of(path: Path) -> list[dict[str, str]]:
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_of_the_makefile_and_actions_by_their_hash(path: Path):
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)$", "\n".join(step.get("run", "") for step in steps_of(path)), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for action in re.findall(r"uses: (.*)", path.read_text()):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action), action


def test_each_ring_runs_once_in_a_workflow():
    ran = {path.stem: [step["run"] for step in steps_of(path) if step.get("run", "").startswith("make ")] for path in WORKFLOWS}
    assert ran == {
        "check": ["make check", "make promises"],
        "nightly": ["make test-all"],
        "release": [],
    }
    assert "\ntest: fast-ring promises " in (ROOT / "Makefile").read_text()


def test_hooks_run_the_linter_of_the_fast_ring_without_an_environment():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "https://github.com/astral-sh/ruff-pre-commit"
    assert [hook["id"] for hook in repository["hooks"]] == ["ruff-check", "ruff-format"]
    dev = map(Requirement, PYPROJECT["project"]["optional-dependencies"]["dev"])
    assert next(one for one in dev if one.name == "ruff").specifier.contains(repository["rev"].removeprefix("v"))


def test_the_change_log_has_one_section_for_the_version_and_one_for_what_follows():
    heads = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[:2] == ["Unreleased", PYPROJECT["project"]["version"]]
    assert len(set(heads)) == len(heads)
