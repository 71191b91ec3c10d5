"""Constraints: pins what the service needs, and what the image installs, by hash and licence. `make constraints`

In:    pyproject.toml; the metadata of the installed packages; pip's report of a dry run, which installs nothing
Out:   constraints.txt: one `name==version` per package that serving, with torch or without, and tracing need, by way of others
       included; k8s/requirements.txt, which `pip install --require-hashes` reads, k8s/requirements-torch.txt with what PyTorch
       adds, and k8s/sbom.cdx.json, CycloneDX 1.6
Never: a package that only tests, benchmarks or training need, or of the base image; a path, an index, a local version label or
       folder
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from itertools import product
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "constraints.txt"
EXTRAS = ("ray", "tracing", "edge", "torch")
HEAD = """\
# Exact versions of everything that serving needs, on CPUs and with [torch], for the image: pip install -c constraints.txt .
# Written by `make constraints` from an environment in which the tests have passed.
"""
REQUIREMENTS = ROOT / "k8s/requirements.txt"
WITH_TORCH = ROOT / "k8s/requirements-torch.txt"
SBOM = ROOT / "k8s/sbom.cdx.json"
IMAGE = ("Linux", "x86_64", "3.11")  # system, processor and Python of the Dockerfile's base
PROCESSORS, PYTHONS = ("x86_64", "aarch64"), ("3.11", "3.12", "3.13")  # without PyTorch, of images that may be built
GLIBCS = ("2014", *(f"_2_{minor}" for minor in range(17, 37)))  # Debian 12's, which the base has, and older
BUILD = Requirement("setuptools")  # of the project itself, in the image
EXTRAS_OF_EVERY_IMAGE = ("ray", "tracing", "edge")
NOT_STATED = "not stated"
LONGEST_LICENSE = 60  # characters; longer ones are the text of a licence
CLASSIFIER = "License :: "
LOCAL_SOURCES = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL")  # their files may have the index's name and another hash
IMAGE_HEAD = """\
# What {what}, by hash: pip install --require-hashes --no-deps -r {file}
# Written by `make constraints` from constraints.txt.
"""


def main() -> int:
    """Writes every file; returns 1, with constraints.txt alone, where the index would answer for another platform's image."""
    argparse.ArgumentParser(description="Pin what the service needs in the versions installed here.").parse_args()
    names = needed([*direct_requirements(), BUILD])
    pins = {name: str(Version(distribution(name).version).public) for name in names}
    FILE.write_text(HEAD + "".join(f"{name}=={version}\n" for name, version in sorted(pins.items())), encoding="utf-8")
    print(f"{FILE.name}: {len(pins)} packages")
    here = (platform.system(), platform.machine(), ".".join(platform.python_version_tuple()[:2]))
    if here != IMAGE:
        print(f"hashes are those of the image's platform, {' '.join(IMAGE)}: run this there, not on {' '.join(here)}")
        return 1
    packages = sorted(_asked_of_the_index(FILE), key=_name)
    _write(packages)
    SBOM.write_text(json.dumps(_bill([_component(package) for package in packages]), indent=1) + "\n", encoding="utf-8")
    print(f"{REQUIREMENTS.name}, {SBOM.name}: {len(packages)} packages")
    return 0


def direct_requirements(extras: tuple[str, ...] = EXTRAS) -> list[Requirement]:
    """Returns what pyproject.toml asks for to serve, with the extras named."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return [Requirement(line) for line in lines]


def needed(requirements: Iterable[Requirement]) -> set[str]:
    """Returns the names of the installed packages that the requirements need, directly or by way of others."""
    return {canonicalize_name(requirement.name) for requirement in walk(requirements)}


def walk(requirements: Iterable[Requirement]) -> Iterator[Requirement]:
    """Yields every requirement that applies on this platform and is installed, those of the packages found included."""
    waiting, visited = list(requirements), set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # a build of PyTorch for another device, for example
        yield requirement
        for extra in ("", *requirement.extras):
            if (name, extra) not in visited:
                visited.add((name, extra))
                dependencies = map(Requirement, package.requires or [])
                waiting += [
                    dependency
                    for dependency in dependencies
                    if dependency.marker is None or dependency.marker.evaluate({"extra": extra})
                ]


def _write(packages: Sequence[Mapping[str, Any]]) -> None:
    """Writes both lists of requirements: what every image installs, and what one with PyTorch does on top."""
    always = needed([*direct_requirements(EXTRAS_OF_EVERY_IMAGE), BUILD])
    for file, purpose, belongs in ((REQUIREMENTS, "the image installs", True), (WITH_TORCH, "PyTorch adds", False)):
        own = {_pin(package): {_sha256(package)} for package in packages if (_name(package) in always) is belongs}
        if belongs:
            for pin, digest in _other_platforms(own):
                own[pin].add(digest)
        hashes = {pin: " ".join(f"--hash=sha256:{digest}" for digest in sorted(digests)) for pin, digests in own.items()}
        text = IMAGE_HEAD.format(what=purpose, file=file.relative_to(ROOT))
        file.write_text(text + "".join(f"{pin} {hashes[pin]}\n" for pin in sorted(own)), encoding="utf-8")


def _other_platforms(pins: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields each pin with the hash of its wheel for each platform."""
    with tempfile.TemporaryDirectory() as folder:
        listing = Path(folder) / "pins.txt"
        listing.write_text("\n".join(pins), encoding="utf-8")
        for processor, python in product(PROCESSORS, PYTHONS):
            platforms = (f"--platform=manylinux{glibc}_{processor}" for glibc in GLIBCS)
            options = ("--only-binary=:all:", f"--python-version={python}", f"--target={folder}", *platforms)
            for package in _asked_of_the_index(listing, *options):
                yield _pin(package), _sha256(package)


def license_of(metadata: Mapping[str, Any]) -> str:
    """Returns the licence that a package's metadata states: an expression, a name, or the last words of its classifiers."""
    expression: str = metadata.get("license_expression") or metadata.get("license") or ""
    if expression and len(expression) <= LONGEST_LICENSE and "\n" not in expression:
        return expression
    stated = sorted(
        {
            classifier.rpartition(" :: ")[2]
            for classifier in metadata.get("classifier") or ()
            if classifier.startswith(CLASSIFIER)
        }
    )
    return " OR ".join(stated) or expression.partition("\n")[0][:LONGEST_LICENSE] or NOT_STATED


def _asked_of_the_index(listing: Path, *more: str) -> Iterator[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name not in LOCAL_SOURCES}
    options = ("--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", "-", "--requirement", str(listing))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *more],
        env=environment | {"PIP_CONFIG_FILE": os.devnull},
        stdout=subprocess.PIPE,
        check=True,
    )
    yield from json.loads(done.stdout)["install"]


def _name(package: Mapping[str, Any]) -> str:
    return canonicalize_name(package["metadata"]["name"])


def _sha256(package: Mapping[str, Any]) -> str:
    return str(package["download_info"]["archive_info"]["hashes"]["sha256"])


def _pin(package: Mapping[str, Any]) -> str:
    return f"{_name(package)}=={package['metadata']['version']}"


def _component(package: Mapping[str, Any]) -> dict[str, Any]:
    name, version = _name(package), package["metadata"]["version"]
    return {
        "type": "library",
        "bom-ref": f"{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "hashes": [{"alg": "SHA-256", "content": _sha256(package)}],
        "licenses": [{"license": {"name": license_of(package["metadata"])}}],
    }


def _bill(components: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    image = {"type": "container", "bom-ref": "image", "name": "chattts-serve"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": image},
        "components": components,
    }


if __name__ == "__main__":
    sys.exit(main())
