"""Clients page: what unmodified clients of other projects ask for with their own defaults every night.

In:    transcripts of the run, and the versions that it installs
Out:   docs/clients.md, with what stands between its markers
"""

import json
import tomllib
from collections import Counter
from math import prod
from pathlib import Path

from scripts.bench.summary import with_sections

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/clients.md"
TRANSCRIPTS = ROOT / "tests/data/transcripts.json"
FOREIGN = ROOT / "tests/foreign"
CLIENTS = {
    "deepgram_package": "deepgram-sdk",
    "deepgram_of_livekit": "livekit-plugins-deepgram",
    "flux_of_livekit": "livekit-plugins-deepgram",
    "elevenlabs_of_livekit": "livekit-plugins-elevenlabs",
    "openai_of_livekit": "livekit-plugins-openai",
    "deepgram_http_of_pipecat": "pipecat-ai",
    "deepgram_of_pipecat": "pipecat-ai",
    "dialogue_of_pipecat": "pipecat-ai",
    "elevenlabs_http_of_pipecat": "pipecat-ai",
    "elevenlabs_of_pipecat": "pipecat-ai",
    "flux_of_pipecat": "pipecat-ai",
    "openai_of_pipecat": "pipecat-ai",
}
"""scenario -> package"""


def files() -> dict[Path, str]:
    """Returns path -> text of the page."""
    return {PAGE: with_sections(PAGE, {"defaults": _table(), "calls": _calls()})}


def _calls() -> str:
    """Returns a line for each language: the packages, their versions, and how many calls of their documentation are made."""
    table = tomllib.loads((FOREIGN / "calls.toml").read_text(encoding="utf-8"))
    npm = json.loads((FOREIGN / "javascript/package.json").read_text(encoding="utf-8"))["dependencies"]
    versions = {"Python": _versions("calls.txt") | _versions("riva.txt"), "JavaScript": npm}
    lines = []
    for language, pinned in versions.items():
        counts: Counter[str] = Counter()
        for client in table.values():
            if client["language"] == language:
                counts[client["package"]] += sum(prod(map(len, row.get("with", {}).values())) for row in client["call"])
        packages = ", ".join(f"`{name}` {pinned[name]} ({counts[name]})" for name in sorted(counts))
        lines.append(f"- {language}, {counts.total()} calls: {packages}")
    return "\n".join(lines)


def _table() -> str:
    """Returns a line for each package: what it called."""
    versions = _versions("requirements.txt")
    called: dict[str, set[str]] = {package: set() for package in CLIENTS.values()}
    transcripts = json.loads(TRANSCRIPTS.read_text(encoding="utf-8"))
    for scenario, package in CLIENTS.items():
        called[package] |= {f"`{talk.get('method', 'WS')} {talk['path']}`" for talk in transcripts[f"default_{scenario}"]}
    return "\n".join(f"- `{name}` {versions[name]}: {', '.join(sorted(called[name]))}" for name in sorted(called))


def _versions(file: str) -> dict[str, str]:
    """Returns package -> version that a file of requirements pins."""
    lines = (FOREIGN / file).read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ")[0].split("==") for line in lines if "==" in line and not line.startswith("#"))
