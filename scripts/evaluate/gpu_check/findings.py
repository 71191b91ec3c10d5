"""Findings: the JSON file that several calls of the check, and the sections of each, fill together.

In:    what a section finds; what it is of: machine, commit, model
Out:   the file, written whole after every finding
Owns:  its files
Never: two writers: a call waits while a section writes
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from scripts.evaluate.gpu_check.report import Report, Result

PARTS = ("promises", "aims", "failed", "figures")
RUNNING, RAN, FAILED, CUT = "running", "ran", "failed", "cut off"


@dataclass(frozen=True, slots=True)
class Findings:
    """The files of one call; all have the same content, and sections write the first."""

    files: tuple[Path, ...]

    @classmethod
    def begin(cls, files: tuple[Path, ...], described: Mapping[str, Any]) -> Self:
        """Continues the first file that exists and is of the same, or begins a new one; one of something else is set aside.

        Args:
            described: what the findings are of.
        """
        earlier = next((read(file) for file in files if file.exists()), None)
        if earlier is not None and not is_of(earlier, described):
            for file in files:
                if file.exists():
                    file.replace(file.with_name(f"{file.stem}-before{file.suffix}"))
            earlier = None
        result = earlier or {**described, "sections": {}} | {part: {} for part in PARTS}
        for section in result["sections"].values():
            if section["state"] == RUNNING:
                section["state"] = CUT
        findings = cls(files)
        findings._write(result)
        return findings

    @property
    def path(self) -> Path:
        """Returns the file that sections write."""
        return self.files[0]

    @property
    def ran(self) -> set[str]:
        """Returns the sections that ran to their end."""
        return {name for name, section in self.result()["sections"].items() if section["state"] == RAN}

    def result(self) -> Result:
        """Returns everything found so far."""
        return read(self.path)

    def start(self, name: str) -> None:
        """Notes that a section begins; what failed before is forgotten."""
        result = self.result()
        result["failed"].pop(name, None)
        result["sections"][name] = {"state": RUNNING, "promises": []}
        self._write(result)

    def end(self, name: str, why: str | None, took_s: float) -> Result:
        """Notes how a section ended; returns its state, its promises and why it failed."""
        result = self.result()
        section = result["sections"][name]
        if why is not None:
            result["failed"].setdefault(name, why)
        failed = result["failed"].get(name)
        section |= {"state": FAILED if failed else RAN, "took_s": round(took_s, 1)}
        self._write(result)
        outcome: Result = section | {
            "promises": {promise: result["promises"][promise] for promise in section["promises"]},
            "failed": failed,
        }
        return outcome

    def _write(self, result: Result) -> None:
        for file in self.files:
            write(file, result)


def add(path: Path, name: str, report: Report) -> None:
    """Adds what a section has found so far to the file."""
    result = read(path)
    for part, entries in report.as_result().items():
        result[part] |= entries
    result["sections"].setdefault(name, {"state": RUNNING})["promises"] = list(report.promises)
    write(path, result)


def is_of(result: Mapping[str, Any], described: Mapping[str, Any]) -> bool:
    """True if findings are of the same device, commit and model."""
    same = all(result.get(name) == described[name] for name in ("checkpoint", "layers"))
    return same and all(result["hardware"].get(name) == described["hardware"][name] for name in ("commit", "device"))


def read(path: Path) -> Result:
    """Returns the content of a file."""
    result: Result = json.loads(path.read_text())
    return result


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Writes a JSON file whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(result, indent=2, default=str) + "\n")
    draft.replace(path)
