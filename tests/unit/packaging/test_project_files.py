"""Project files: constraints, version, workflows and hooks say the same as pyproject.toml and the Makefile."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import wave
import zipfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.generate import constraints
from scripts.generate.compatibility import FILE, release, surface
from scripts.generate.constraints import NOT_STATED, license_of
from tests.support.image import steps
from tests.support.wheel import build_wheel, install_wheel, pack_wheel, tracked_files

ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
PINS = dict(line.split("==") for line in LINES)
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_constraints_are_plain_pins():
    assert list(PINS) == sorted(PINS)
    for line in LINES:
        assert re.fullmatch(r"[a-z0-9-]+==[\d.]+(b\d+|\.post\d+)?", line), line


@pytest.mark.parametrize("requirement", constraints.direct_requirements(), ids=lambda requirement: requirement.name)
def test_constraints_satisfy_pyproject(requirement: Requirement):
    pin = PINS[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(pin, prereleases=True), f"{requirement} is pinned to {pin}: run make constraints"


def test_pins_satisfy_each_other():
    """Of the packages that are installed here in the version that is pinned."""
    looked_at = 0
    for name, pin in PINS.items():
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        if package.version == pin:
            looked_at += 1
            for requirement in map(Requirement, package.requires or []):
                other = PINS.get(canonicalize_name(requirement.name))
                if other is not None and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                    assert requirement.specifier.contains(other, prereleases=True), (
                        f"{name} needs {requirement}, pinned is {other}"
                    )
    assert looked_at > 0


def test_what_only_tests_need_is_not_pinned():
    only_tests = {"pytest", "ruff", "mypy", "hypothesis", "pocketsphinx", "matplotlib", "pyloudnorm"}
    assert not (only_tests | {"chattts", "torchaudio", "transformers", "silero-vad"}) & set(PINS)


def test_extras_and_the_index_of_torch_are_passed_on_by_make():
    command = ["make", "--dry-run", "--always-make", "serve", "EXTRAS=torch", "TORCH_INDEX=https://mirror.example/cpu"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sizes = "64 packages, 93 MB to download, 400 MB on the disk.*36 packages, 97 MB to download, 300 MB on the disk"
    assert re.search(f"{sizes}.*PyTorch", output, re.DOTALL)
    installs = [line for line in output.splitlines() if "pip install" in line and "--editable" in line]
    assert [line.split()[-1].strip("'") for line in installs] == [".", ".[ray]", ".[ray,torch]"]
    assert all(line.startswith('PIP_EXTRA_INDEX_URL="https://mirror.example/cpu"') for line in installs)


def test_the_version_stands_in_one_place():
    version = PYPROJECT["project"]["version"]
    images = {
        tag
        for path in (ROOT / "k8s").rglob("*")
        if path.is_file()
        for tag in re.findall(r"chattts-serve:([\w.]+)|newTag: ([\w.]+)", path.read_text())
    }
    assert {label for tag in images for label in tag if label} == {version}, "the images carry the version of the project"
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
        "release": ["make release"],
    }
    assert "\ntest: fast-ring promises " in (ROOT / "Makefile").read_text()


def test_hooks_run_the_linter_of_the_fast_ring_without_an_environment():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "https://github.com/astral-sh/ruff-pre-commit"
    assert [hook["id"] for hook in repository["hooks"]] == ["ruff-check", "ruff-format"]
    dev = map(Requirement, PYPROJECT["project"]["optional-dependencies"]["dev"])
    assert next(requirement for requirement in dev if requirement.name == "ruff").specifier.contains(
        repository["rev"].removeprefix("v")
    )


def test_the_change_log_has_one_section_for_the_version_and_one_for_what_follows():
    heads = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[:2] == ["Unreleased", PYPROJECT["project"]["version"]]
    assert len(set(heads)) == len(heads)


# What a minor release promises is there: routes, configuration keys, metrics and Python names.

PROMISED = json.loads(FILE.read_text())
PRESENT = surface()


def test_the_promises_are_those_of_this_minor_release():
    assert PROMISED["release"] == release(), "python -m scripts.generate.compatibility"


@pytest.mark.parametrize("kind", PRESENT)
def test_nothing_that_was_promised_is_gone(kind: str):
    assert PROMISED[kind]
    assert sorted(set(PROMISED[kind]) - set(PRESENT[kind])) == []


# Supply: what the image installs is pinned by hash, listed with its licence, and searched for known vulnerabilities.

REQUIREMENTS, WITH_TORCH, SBOM = (
    ROOT / "k8s" / name for name in ("requirements.txt", "requirements-torch.txt", "sbom.cdx.json")
)
AGAIN = "run make constraints"
# Free to use, change and pass on beside the AGPL. Anything else is named in docs/security.md.
FREE = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|MPL|LGPL|AGPLv3|GPLv2|GPLv3|CNRI|LLVM|Zlib|CC0|3-Clause|Python Software Foundation", re.IGNORECASE
)


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("#")]


def pinned() -> list[str]:
    """Both lists as one."""
    return sorted([*lines(REQUIREMENTS), *lines(WITH_TORCH)], key=lambda line: line.partition("==")[0])


def components() -> list[dict]:
    return json.loads(SBOM.read_text())["components"]


def test_every_pin_has_its_hash_and_nothing_else_is_installed():
    pins = [line.split(" --hash=") for line in pinned()]
    assert [pin for pin, *_ in pins] == lines(ROOT / "constraints.txt"), AGAIN
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for _, *digests in pins for digest in digests)
    compiled = {pin.partition("==")[0]: digests for pin, *digests in pins}["numpy"]
    assert len(compiled) == 6, "two processors, three releases of Python"


def test_the_image_installs_by_hash():
    commands = [step.words for step in steps() if step.instruction == "RUN" and "pip install" in step.words]
    assert [("--require-hashes" in command, "--no-deps" in command) for command in commands] == [(True, True), (False, True)]
    assert "--no-deps --no-build-isolation --editable ." in commands[1]


def test_an_image_without_torch_installs_none_of_it():
    """And nothing of CUDA; with it, everything that torch asks for is in one of the lists."""
    assert not [line for line in lines(REQUIREMENTS) if re.match(r"torch|triton|nvidia|cuda|sympy|networkx", line)]
    assert {"torch", "triton", "nvidia-cublas"} <= {line.partition("==")[0] for line in lines(WITH_TORCH)}


def test_the_bill_of_materials_lists_what_is_installed():
    pins = {line.split()[0]: line for line in pinned()}
    listed = {f"{part['name']}=={part['version']}": part["hashes"][0]["content"] for part in components()}
    assert listed.keys() == pins.keys(), AGAIN
    assert all(digest in pins[pin] for pin, digest in listed.items()), AGAIN


@pytest.mark.slow
def test_the_bill_of_materials_is_cyclonedx():
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(SBOM.read_text()) is None


def test_a_licence_that_is_not_free_or_not_stated_is_named_in_the_page():
    page = (ROOT / "docs/security.md").read_text()
    licences = {component["name"]: component["licenses"][0]["license"]["name"] for component in components()}
    other = {name for name, licence in licences.items() if not FREE.search(licence) and not name.startswith("nvidia-")}
    assert "nvidia-" in page
    assert sorted(name for name in other if f"`{name}`" not in page) == []


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"license_expression": "MIT", "license": "x"}, "MIT"),
        ({"license": "Apache 2.0"}, "Apache 2.0"),
        ({"license": "Copyright\nsomebody", "classifier": ["License :: OSI Approved :: BSD License"]}, "BSD License"),
        ({"license": "Permission is given\nto all"}, "Permission is given"),
        ({"classifier": ["Topic :: Speech"]}, NOT_STATED),
    ],
)
def test_the_licence_is_the_most_exact_one_that_is_stated(metadata: dict, expected: str):
    assert license_of(metadata) == expected


@pytest.mark.nightly
def test_no_pinned_package_has_a_known_vulnerability():
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--requirement",
        str(REQUIREMENTS),
        "--requirement",
        str(WITH_TORCH),
        "--no-deps",
        "--disable-pip",
    ]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=False, timeout=250)
    if not done.stdout:
        pytest.skip(f"the list of vulnerabilities cannot be reached: {done.stderr.strip()[-200:]}")
    packages = json.loads(done.stdout)["dependencies"]
    vulnerable = [package for package in packages if "vulns" in package]
    if not vulnerable:
        pytest.skip("the package index that is reached here has no list of vulnerabilities")
    known = [
        f"{package['name']} {package['version']}: {vulnerability['id']}"
        for package in vulnerable
        for vulnerability in package["vulns"]
    ]
    assert not known


# The wheel: it holds all that runs, and its commands work outside the checkout.

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


@pytest.mark.slow
def test_every_file_of_the_packages_is_in_it(installed: Installed):
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    expected = {name for name in tracked_files() if name.startswith(tuple(f"{package}/" for package in PACKAGES))}
    assert expected <= names
    assert not [name for name in names if name.startswith(("tests/", "k8s/", "docs/", "scripts/"))]
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert any(name.endswith(".dist-info/licenses/NOTICE") for name in names)


@pytest.mark.slow
def test_programs_may_be_run(installed: Installed):
    site = Path(installed.environment["PYTHONPATH"])
    assert os.access(site / "serve/http/haproxy.sh", os.X_OK)


@pytest.mark.slow
def test_the_console_script_is_the_installed_one(installed: Installed):
    prefix = installed.elsewhere.parent / "prefix"
    script = shutil.which("chattts-serve", path=installed.environment["PATH"])
    assert script == str(prefix / "bin/chattts-serve")
    assert "0 fine, 1 failed" in installed.run(script, "--help")
    assert installed.run(script, "--version").startswith("chattts-serve ")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dev", "configs/gpu.yaml"])
def test_configurations_come_with_it(installed: Installed, name: str):
    shown = installed.run("chattts-serve", "config", "check", name)
    assert shown.startswith(installed.environment["PYTHONPATH"])


@pytest.mark.slow
def test_keys_are_added_and_listed(installed: Installed):
    store = str(installed.elsewhere / "keys.sqlite")
    assert installed.run("chattts-serve", "keys", "add", "ours", "--store", store)
    assert "ours" in installed.run("chattts-serve", "keys", "list", "--store", store)


@pytest.mark.slow
def test_the_installed_package_speaks(installed: Installed):
    installed.run("chattts-serve", "say", "One two.", "--seed", "1", "-o", "hello.wav")
    with wave.open(str(installed.elsewhere / "hello.wav")) as file:
        assert file.getnframes() > 0.3 * file.getframerate()


@pytest.mark.slow
def test_the_same_wheel_is_built_from_its_source_and_speaks(installed: Installed, tmp_path: Path):
    code = (
        "from serve.config.app_config import PROJECT; from serve.http.routes.source import archive, pieces; "
        "open('source.tar.gz', 'wb').writelines(pieces(archive(PROJECT)))"
    )
    installed.run(sys.executable, "-c", code)
    with tarfile.open(installed.elsewhere / "source.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    first, again = (zipfile.ZipFile(wheel) for wheel in (installed.wheel, pack_wheel(tmp_path / "chattts-serve", tmp_path)))
    assert [name for name in first.namelist() if name not in again.namelist() or first.read(name) != again.read(name)] == []
    environment = install_wheel(Path(str(again.filename)), tmp_path / "prefix")
    environment |= {"CHATTTS_HOME": installed.environment["CHATTTS_HOME"]}
    rebuilt = Installed(Path(str(again.filename)), environment, tmp_path)
    for one in (installed, rebuilt):
        one.run("chattts-serve", "say", "One two.", "--seed", "1", "-o", "again.wav")
    assert (tmp_path / "again.wav").read_bytes() == (installed.elsewhere / "again.wav").read_bytes()
