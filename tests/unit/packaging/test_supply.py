"""Supply: what the image installs is pinned by hash, listed with its licence, and searched for known vulnerabilities."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from scripts.generate.constraints import NOT_STATED, license_of
from tests.support.image import steps

ROOT = Path(__file__).resolve().parents[3]
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
    assert [pin for pin, _ in pins] == lines(ROOT / "constraints.txt"), AGAIN
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for _, digest in pins)


def test_the_image_installs_by_hash():
    commands = [step.words for step in steps() if step.instruction == "RUN" and "pip install" in step.words]
    assert [("--require-hashes" in command, "--no-deps" in command) for command in commands] == [(True, True), (False, True)]
    assert "--no-deps --editable ." in commands[1]


def test_an_image_without_torch_installs_none_of_it():
    """And nothing of CUDA; with it, everything that torch asks for is in one of the lists."""
    assert not [line for line in lines(REQUIREMENTS) if re.match(r"torch|triton|nvidia|cuda|sympy|networkx", line)]
    assert {"torch", "triton", "nvidia-cublas"} <= {line.partition("==")[0] for line in lines(WITH_TORCH)}


def test_the_bill_of_materials_lists_what_is_installed():
    listed = [f"{one['name']}=={one['version']} --hash=sha256:{one['hashes'][0]['content']}" for one in components()]
    assert listed == pinned(), AGAIN


@pytest.mark.slow
def test_the_bill_of_materials_is_cyclonedx():
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(SBOM.read_text()) is None


def test_a_licence_that_is_not_free_or_not_stated_is_named_in_the_page():
    page = (ROOT / "docs/security.md").read_text()
    licences = {one["name"]: one["licenses"][0]["license"]["name"] for one in components()}
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
    asked = [package for package in packages if "vulns" in package]
    if not asked:
        pytest.skip("the package index that is reached here has no list of vulnerabilities")
    known = [f"{package['name']} {package['version']}: {one['id']}" for package in asked for one in package["vulns"]]
    assert not known
