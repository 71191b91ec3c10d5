"""Clients page: what unmodified clients of other projects asked for with their own defaults, in the nightly run recorded last.

In:    transcripts of the run, and the versions that it installs
Out:   docs/clients.md, with what stands between its markers
"""

import json
from pathlib import Path

from scripts.bench.summary import with_sections

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/clients.md"
TRANSCRIPTS = ROOT / "tests/data/transcripts"
REQUIREMENTS = ROOT / "tests/foreign/requirements.txt"
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
    return {PAGE: with_sections(PAGE, {"defaults": _table()})}


def _table() -> str:
    """Returns a row for each package: what it called."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    versions = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    called: dict[str, set[str]] = {package: set() for package in CLIENTS.values()}
    for scenario, package in CLIENTS.items():
        called[package].update(_addresses(TRANSCRIPTS / f"default_{scenario}.json"))
    rows = [f"| `{package}` {versions[package]} | {', '.join(sorted(called[package]))} |" for package in sorted(called)]
    return "\n".join(["| package | called |", "|---|---|", *rows])


def _addresses(path: Path) -> list[str]:
    talks = json.loads(path.read_text(encoding="utf-8"))
    return [f"`{talk.get('method', 'WS')} {talk['path']}`" for talk in talks]
