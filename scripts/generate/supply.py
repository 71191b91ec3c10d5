"""Supply: what the image installs, by hash, and under which licence. `make constraints` runs it after constraints.py

In:    constraints.txt; what the package index says about those versions: pip's report of a dry run, which installs nothing
Out:   k8s/requirements.txt, which `pip install --require-hashes` reads, k8s/requirements-torch.txt with what PyTorch adds, and
       k8s/sbom.cdx.json, CycloneDX 1.6
Never: packages of the base image, of another platform than the image's, or of a local folder
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from scripts.generate.constraints import needed, wanted

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
REQUIREMENTS = ROOT / "k8s/requirements.txt"
WITH_TORCH = ROOT / "k8s/requirements-torch.txt"
SBOM = ROOT / "k8s/sbom.cdx.json"
IMAGE = ("Linux", "x86_64", "3.11")  # system, processor and Python of the Dockerfile's base
EXTRAS_OF_EVERY_IMAGE = ("tracing",)
NOT_STATED = "not stated"
LONGEST_LICENSE = 60  # characters; longer ones are the text of a licence
CLASSIFIER = "License :: "
LOCAL_SOURCES = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL")  # their files may have the index's name and another hash
HEAD = """\
# What {what}, by hash: pip install --require-hashes --no-deps -r {file}
# Written by `make constraints` from constraints.txt.
"""


def main() -> int:
    """Writes both files; returns 1 where the index would answer for another platform than the image's."""
    here = (platform.system(), platform.machine(), ".".join(platform.python_version_tuple()[:2]))
    if here != IMAGE:
        print(f"hashes are those of the image's platform, {' '.join(IMAGE)}: run this there, not on {' '.join(here)}")
        return 1
    found = sorted(_asked_of_the_index(), key=_name)
    _write(list(map(_requirement, found)))
    SBOM.write_text(json.dumps(_bill([_component(one) for one in found]), indent=1) + "\n", encoding="utf-8")
    print(f"{REQUIREMENTS.name}, {SBOM.name}: {len(found)} packages")
    return 0


def _write(lines: Sequence[str]) -> None:
    """Writes both lists of requirements: what every image installs, and what one with PyTorch does on top."""
    always = needed(wanted(EXTRAS_OF_EVERY_IMAGE))
    for file, what, belongs in ((REQUIREMENTS, "the image installs", True), (WITH_TORCH, "PyTorch adds", False)):
        text = HEAD.format(what=what, file=file.relative_to(ROOT))
        text += "".join(f"{line}\n" for line in lines if (line.partition("==")[0] in always) is belongs)
        file.write_text(text, encoding="utf-8")


def license_of(metadata: Mapping[str, Any]) -> str:
    """Returns the licence that a package's metadata states: an expression, a name, or the last words of its classifiers."""
    expression: str = metadata.get("license_expression") or metadata.get("license") or ""
    if expression and len(expression) <= LONGEST_LICENSE and "\n" not in expression:
        return expression
    stated = sorted({one.rpartition(" :: ")[2] for one in metadata.get("classifier") or () if one.startswith(CLASSIFIER)})
    return " OR ".join(stated) or expression.partition("\n")[0][:LONGEST_LICENSE] or NOT_STATED


def _asked_of_the_index() -> Iterator[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name not in LOCAL_SOURCES}
    options = ("--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", "-", "--requirement", str(CONSTRAINTS))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options],
        env=environment | {"PIP_CONFIG_FILE": os.devnull},
        stdout=subprocess.PIPE,
        check=True,
    )
    yield from json.loads(done.stdout)["install"]


def _name(found: Mapping[str, Any]) -> str:
    return canonicalize_name(found["metadata"]["name"])


def _sha256(found: Mapping[str, Any]) -> str:
    return str(found["download_info"]["archive_info"]["hashes"]["sha256"])


def _requirement(found: Mapping[str, Any]) -> str:
    return f"{_name(found)}=={found['metadata']['version']} --hash=sha256:{_sha256(found)}"


def _component(found: Mapping[str, Any]) -> dict[str, Any]:
    name, version = _name(found), found["metadata"]["version"]
    return {
        "type": "library",
        "bom-ref": f"{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "hashes": [{"alg": "SHA-256", "content": _sha256(found)}],
        "licenses": [{"license": {"name": license_of(found["metadata"])}}],
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
