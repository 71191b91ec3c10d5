"""JavaScript clients of other projects, unmodified: OpenAI's, ElevenLabs' and Deepgram's packages, and Vercel's AI SDK."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.foreign import JAVASCRIPT, LOCKED, NODE, run_javascript
from tests.support.transcripts import started

SECOND = 48_000  # bytes of 16-bit samples at 24 kHz; the server speaks one second of every text

EXPECTED: dict[str, dict[str, Any]] = {
    "first_lines": {
        "eleven": True,
        "streamed": True,
        "user": [0, True],
        "aura": True,
        "flux": True,
        "models": True,
        "generated": [*[["mp3", True, 0]] * 5, ["wav", True, 0]],
        "openai": True,
    },
    "openai_whole": {"bytes": SECOND, "models": ["chattts", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]},
    "openai_streamed": {"bytes": SECOND, "begins": True},
    "openai_refused": {
        "voice": ["BadRequestError", 400, "voice_not_found", True],
        "key": ["AuthenticationError", 401, "invalid_api_key", True],
        "full": ["RateLimitError", 429, "overloaded", True],
        "right_key": True,
    },
    "elevenlabs_whole": {"bytes": SECOND, "timed": SECOND, "voices": True},
    "elevenlabs_streamed": {"bytes": SECOND, "timed": SECOND, "begins": True},
    "elevenlabs_refused": {
        "voice": ["ElevenLabsError", 404, "voice_not_found"],
        "key": ["ElevenLabsError", 401, "invalid_api_key"],
        "full": ["ElevenLabsError", 429, "system_busy"],
        "right_key": True,
    },
    "ai_whole": {"bytes": SECOND, "warnings": 0},
    "ai_refused": {
        "voice": ["AI_APICallError", 400, "voice_not_found", False],
        "key": ["AI_APICallError", 401, "invalid_api_key", False],
        "full": ["AI_APICallError", 429, "overloaded", True],
        "right_key": True,
    },
    "deepgram_whole": {"bytes": SECOND},
    "deepgram_streamed": {"bytes": SECOND, "begins": True},
    "deepgram_refused": {
        "voice": ["BadRequestError", 400, "VOICE_NOT_FOUND"],
        "key": ["DeepgramError", 401, "INVALID_AUTH"],
        "full": ["DeepgramError", 429, "TOO_MANY_REQUESTS"],
        "right_key": True,
    },
    "deepgram_socket": {"code": 1000, "bytes": SECOND, "said": ["Metadata", "Flushed"]},
    "deepgram_socket_refused": {"error": "Unexpected server response: 401"},
}


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
