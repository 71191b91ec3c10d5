"""Record: on what a result was measured, and the file that keeps it.

In:    results of scenarios
Out:   JSON files in scripts/bench/results, one for each kind of processor
Owns:  the folder
Never: measuring
"""

import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "scripts" / "bench" / "results"
FILE = "results.json"
"""of a set: scenario -> its last result"""
SETS = {
    "epyc": "AMD EPYC, AVX-512",
    "xeon": "Intel Xeon at 2.5 GHz, AVX-512",
    "xeon-amx": "Intel Xeon with AMX",
    "epyc-masked": "AMD EPYC, AVX2 alone",
}
"""folder of RESULTS -> the kind of processor that it is of; limits are judged on the worst of them"""
KINDS = ((("AMD EPYC",), "epyc"), (("Xeon", "2.50GHz"), "xeon"), (("Xeon(R) Processor",), "xeon-amx"))
"""words of a processor's name -> its set"""
MASKS = ("CHATTTS_INSTRUCTIONS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""environment variables that hide a part of the processor, from native code, from torch, and from torch's two libraries"""

Result = dict[str, Any]


def hardware() -> Result:
    """Returns the machine, the packages and the commit."""
    model = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "masks": {name: os.environ[name] for name in MASKS if name in os.environ},
        "python": platform.python_version(),
        "torch": _installed("torch"),
        "ray": _installed("ray"),
        "commit": _commit(),
    }


def here() -> Path:
    """Returns the folder of this machine's kind of processor."""
    machine = hardware()
    name = next((name for words, name in KINDS if all(word in machine["cpu"] for word in words)), None)
    name = name or "-".join(re.findall("[a-z0-9]+", machine["cpu"].lower())) or platform.machine()
    return RESULTS / (f"{name}-masked" if machine["masks"] else name)


def _commit() -> str:
    """Returns the commit, marked `-dirty` if the code differs from it. Results and the pages that show them are not code."""
    head = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--", ".", ":!scripts/bench/results", ":!README.md", ":!docs")
    return (head or "unknown") + ("-dirty" if changed else "")


def _git(*words: str) -> str:
    """Returns what git prints; nothing on a machine without git."""
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def publish(name: str, result: Result, folder: Path = RESULTS) -> None:
    """Writes a scenario's result into the folder's file and prints the same as one line."""
    result = {
        "benchmark": name,
        "hardware": hardware(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    } | result
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{FILE}"
    draft.write_text(json.dumps(_all_of(folder) | {name: result}, indent=2) + "\n")
    draft.replace(folder / FILE)  # whole or not at all
    print(json.dumps(result), flush=True)


def read(name: str, folder: Path = RESULTS) -> Any:
    """Returns the last result of a scenario, or None."""
    return _all_of(folder).get(name)


def _all_of(folder: Path) -> Result:
    try:
        results: Result = json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        return {}
    return results


def step_figure(slots: int, attention: str = "auto", *, weights: str = "dtype", kv: str = "dtype") -> str:
    """Returns the name under which scripts/evaluate/gpu_check keeps the time of a decode step in gpu.json."""
    formats = "".join(f"_{name}_{value}" for name, value in (("weights", weights), ("kv", kv)) if value != "dtype")
    return f"step_{slots}_slots_{attention}{formats}"


def is_done(name: str, folder: Path, *, quick: bool) -> bool:
    """True if there is a result of this commit and of this kind of run."""
    result = read(name, folder)
    return result is not None and result["hardware"]["commit"] == hardware()["commit"] and result["options"]["quick"] == quick
