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
    """Returns a row for each address that a package called."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    versions = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    rows = {
        f"| `{package}` {versions[package]} | {address} |"
        for scenario, package in CLIENTS.items()
        for address in _addresses(TRANSCRIPTS / f"default_{scenario}.json")
    }
    return "\n".join(["| package | called |", "|---|---|", *sorted(rows)])


def _addresses(path: Path) -> list[str]:
    talks = json.loads(path.read_text(encoding="utf-8"))
    return [f"`{talk.get('method', 'WS')} {talk['path']}`" for talk in talks]
