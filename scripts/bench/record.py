"""Record: what a result was measured on, and the file it goes to."""

import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "scripts" / "bench" / "results"

Result = dict[str, object]


def hardware() -> Result:
    """The machine, the packages and the commit."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False)
    model = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": _installed("torch"),
        "ray": _installed("ray"),
        "commit": commit.stdout.strip() or "unknown",
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def publish(name: str, result: Result) -> None:
    """Write results/<name>.json and print the same as one line."""
    result = {"benchmark": name, "hardware": hardware()} | result
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
