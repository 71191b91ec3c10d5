"""Constraints: pins what the service needs in the versions installed here. `make constraints`

In:    pyproject.toml, the metadata of the installed packages
Out:   constraints.txt: one `name==version` per package that serving, with torch or without, and tracing need, by way of others
       included
Never: a package that only tests, benchmarks or training need; a path, an index, a local version label
"""

import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "constraints.txt"
EXTRAS = ("tracing", "torch")
HEAD = """\
# Exact versions of everything that serving needs, on CPUs and with [torch], for the image: pip install -c constraints.txt .
# Written by `make constraints` from an environment in which the tests have passed.
"""


def main() -> int:
    """Writes constraints.txt."""
    pins = {name: str(Version(distribution(name).version).public) for name in needed(wanted())}
    FILE.write_text(HEAD + "".join(f"{name}=={version}\n" for name, version in sorted(pins.items())), encoding="utf-8")
    print(f"{FILE.name}: {len(pins)} packages")
    return 0


def wanted(extras: tuple[str, ...] = EXTRAS) -> list[Requirement]:
    """Returns what pyproject.toml asks for to serve, with the extras named."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return [Requirement(line) for line in lines]


def needed(requirements: Iterable[Requirement]) -> set[str]:
    """Returns the names of the installed packages that the requirements need, directly or by way of others."""
    return {canonicalize_name(requirement.name) for requirement in walk(requirements)}


def walk(requirements: Iterable[Requirement]) -> Iterator[Requirement]:
    """Yields every requirement that applies on this platform and is installed, those of the packages found included."""
    waiting, seen = list(requirements), set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # a build of PyTorch for another device, for example
        yield requirement
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                asked = map(Requirement, found.requires or [])
                waiting += [one for one in asked if one.marker is None or one.marker.evaluate({"extra": extra})]


if __name__ == "__main__":
    sys.exit(main())
