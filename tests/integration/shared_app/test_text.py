"""Text through the real HTTP API: breaks to the sample, hard texts, no 500 whatever is asked."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import requests

from tests.support.cluster import Cluster
from tests.support.effort import seconds

FUZZING_S = seconds(45.0)
# 504 is what a request asks for with only-if-cached (RFC 9111), or with a deadline this machine does not keep.
CHECKS = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]
"""

HARD_TEXTS = {
    "1,000 digits": "1" * 1000,
    "4,096 brackets": "[" * 4096,
    "nested tags": "[S[Stts]tts]" * 300 + "hi",
    "bidi": "\u202e\u2067hello\u2069\u202c" * 200,
    "zero width": "\u200b\u200d\ufeff" * 1300 + "hi",
    "4,096 emoji": "😀" * 4096,
    "combining": "e" + "\u0301" * 4000,
    "no spaces": "a" * 4096,
    "money": "$1,234.50" * 400,
}


def plan(cluster: Cluster, text: str) -> requests.Response:
    return requests.post(cluster.url("/v1/audio/speech/plan"), json={"input": text}, timeout=60)


@pytest.mark.parametrize("name", HARD_TEXTS)
def test_hard_texts_are_planned_or_refused(cluster: Cluster, name: str):
    reply = plan(cluster, HARD_TEXTS[name])
    assert reply.status_code in (200, 400, 422), reply.text[:200]
    assert plan(cluster, "hello").status_code == 200


def test_too_long_and_lone_surrogates_are_refused(cluster: Cluster):
    assert plan(cluster, "[" * 100_000).status_code == 413
    raw = b'{"input": "\\ud83d"}'
    kind = {"Content-Type": "application/json"}
    assert requests.post(cluster.url("/v1/audio/speech/plan"), data=raw, headers=kind, timeout=10).status_code == 400


def test_a_break_is_exact_silence(cluster: Cluster):
    def hear(document: str) -> np.ndarray:
        reply = cluster.speak(input=document, input_type="ssml", seed=5, post={"trim": False, "fade_ms": 0})
        assert reply.status_code == 200, reply.text
        return np.frombuffer(reply.content, "<i2")

    heard = hear('<speak><break time="1s"/>Hello there.<break time="333ms"/></speak>')
    alone = hear("<speak>Hello there.</speak>")
    zeros = np.zeros(333 * 24, np.int16)
    assert np.array_equal(heard, np.concatenate([np.zeros(24_000, np.int16), alone, zeros]))


def test_warnings_reach_the_headers(cluster: Cluster):
    reply = cluster.speak(input="Hello 😀 there 😀.")
    assert reply.headers["X-Text-Warnings"] == "2; emoji=2"
    assert "X-Text-Warnings" not in cluster.speak(input="Hello there.").headers


def test_models_and_voices_tell_the_languages_of_the_checkpoint(cluster: Cluster):
    for model in requests.get(cluster.url("/v1/models"), timeout=20).json()["data"]:
        assert model["languages"] == ["zh", "en"], "random weights were taught nothing, and say nothing"
    assert requests.get(cluster.url("/v1/audio/voices"), timeout=20).json()["languages"] == ["zh", "en"]


def test_characters_outside_the_vocabulary_are_counted(cluster: Cluster):
    body = {"normalize": {"homophones": False}, "stream": False}
    reply = cluster.speak(input="Hello 龘 there.", **body)
    assert "unknown_to_model=1" in reply.headers["X-Text-Warnings"]
    refused = cluster.speak(input="龘", **body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "no_speakable_text")
    assert "speaks zh, en:" in refused.json()["error"]["message"]


def test_control_tags_are_text_unless_asked_for(cluster: Cluster):
    def segments(**more: object) -> list[str]:
        reply = requests.post(cluster.url("/v1/text/normalize"), json={"input": "a [laugh] b", **more}, timeout=20)
        return [segment["text"] for segment in reply.json()["segments"]]

    assert "[" not in "".join(segments())
    assert "[laugh]" in "".join(segments(allow_control_tags=True))


def test_the_refine_pass_can_be_looked_at(cluster: Cluster):
    body = {"input": "Hello there.", "seed": 3, "refine": {"guard": "strict"}}
    reply = requests.post(cluster.url("/v1/text/refine"), json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    shown = reply.json()
    assert shown["segments"][0]["source"] == "Hello there."
    strict = cluster.speak(**body)
    assert strict.status_code == (200 if shown["accepted"] else 422), strict.text


@pytest.mark.timeout(FUZZING_S + 255)
def test_no_request_made_from_our_own_document_breaks_a_promise_of_it(cluster: Cluster, tmp_path: Path):
    """Schemathesis, good requests and bad ones; by hand for longer: `schemathesis run URL/openapi.json --max-time 300`."""
    program = Path(sys.executable).with_name("schemathesis")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    config = tmp_path / "schemathesis.toml"
    config.write_text(CHECKS)
    command = [program, "--config-file", config, "run", cluster.url("/openapi.json"), "--checks", checks]
    command += ["--phases", "coverage,fuzzing", "--max-time", str(round(FUZZING_S))]
    command += ["--request-timeout", "60", "--continue-on-failure", "--no-color"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=FUZZING_S + 235, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
