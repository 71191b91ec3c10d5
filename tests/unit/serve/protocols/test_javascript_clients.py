"""JavaScript clients of other projects, unmodified: OpenAI's, ElevenLabs' and Deepgram's packages, and Vercel's AI SDK."""

import json
from pathlib import Path
from typing import Any

import pytest

from serve.config.app_config import PROJECT
from tests.support.foreign import JAVASCRIPT, LOCKED, NODE, run_javascript
from tests.support.transcripts import started

EXPECTED: dict[str, dict[str, Any]] = json.loads((PROJECT / "tests/data/javascript_clients.json").read_text())
"""scenario -> what the client printed; the server speaks one second of every text, 48,000 bytes"""


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_javascript_clients_of_other_projects(tmp_path: Path):
    with started(tmp_path) as servers:
        where = servers.addresses
        done = run_javascript(
            (JAVASCRIPT / "scenarios.mjs").read_text(), where["open"], where["guarded"], servers.key, where["full"]
        )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert {entry.pop("scenario"): entry for entry in results} == EXPECTED, done.stderr[-2000:]


def test_the_javascript_clients_are_locked_by_their_hashes():
    request, lock = (json.loads((JAVASCRIPT / name).read_text()) for name in LOCKED)
    assert lock["packages"].pop("")["dependencies"] == request["dependencies"]
    sdk = {f"@ai-sdk/{vendor}" for vendor in ("deepgram", "elevenlabs", "openai")}
    assert set(request["dependencies"]) == sdk | {"@deepgram/sdk", "@elevenlabs/elevenlabs-js", "ai", "openai"}
    assert all(entry["integrity"].startswith("sha512-") for entry in lock["packages"].values())
    assert not any("resolved" in entry for entry in lock["packages"].values()), "whichever registry npm is told to use"
    assert NODE.read_text().count("--hash=sha256:") == 3
