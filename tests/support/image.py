"""The image without a daemon: the steps of the Dockerfile, and the folder that its COPY steps fill."""

import fnmatch
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from serve.config.app_config import PROJECT

DOCKERFILE = PROJECT / "Dockerfile"


@dataclass(frozen=True)
class Step:
    """One instruction: COPY, its words."""

    instruction: str
    words: str


def steps() -> list[Step]:
    """The instructions in their order, lines that go on joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Step(*line.split(None, 1)) for line in joined.splitlines()]


def the(instruction: str) -> str:
    """The words of the last such step, which is the one that counts."""
    return [step.words for step in steps() if step.instruction == instruction][-1]


def is_sent(name: str) -> bool:
    """Whether .dockerignore lets a path into the build."""
    included = True
    for line in (PROJECT / ".dockerignore").read_text().split():
        pattern = line.removeprefix("!").replace("**/", "*")
        if any(fnmatch.fnmatch(part, pattern) for part in (name, *map(str, Path(name).parents))):
            included = line.startswith("!")
    return included


def fill(root: Path) -> Path:
    """Copy what the COPY steps copy, and return the folder in which the image works."""
    workdir = root / the("WORKDIR").lstrip("/")
    workdir.mkdir(parents=True)
    for step in steps():
        if step.instruction == "COPY":
            *sources, target = step.words.split()
            for source in sources:
                for path in [PROJECT / source, *(PROJECT / source).rglob("*")]:
                    name = str(path.relative_to(PROJECT))
                    place = workdir / (path.name if target == "./" else Path(target) / path.relative_to(PROJECT / source))
                    if path.is_file() and is_sent(name):
                        place.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(path, place)
    return workdir
