"""A whole run, seen from outside: its logs, its traces, its metrics. Nothing of what was said is in any of them."""

import base64
import json
import subprocess
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from scripts.chaos.deploying import deploy
from tests.support.cluster import Cluster, document_of
from tests.support.collector import Collector, collecting
from tests.support.services import needed_program
from tests.support.waiting import wait_until

ROUTE = "/observed"
CANARY = "Zorblequix"  # a word of letters: no rule of the text front end changes it
KEY = "sk-zorblequix-0123456789"
EXPORT_TIMEOUT_S = 30.0


@dataclass
class Observed:
    """An application with JSON logs and traces, beside the session's own."""

    cluster: Cluster
    collector: Collector

    def call(self, method: str, path: str, **sent: Any) -> requests.Response:
        return requests.request(method, self.cluster.url(f"{ROUTE}{path}"), timeout=60, **sent)

    def speak(self, request_id: str = "", **fields: Any) -> requests.Response:
        body = {"input": "Hello there.", "response_format": "pcm", "seed": 5, **fields}
        headers = {"X-Request-ID": request_id} if request_id else {}
        return self.call("POST", "/v1/audio/speech", json=body, headers=headers)

    @property
    def logs(self) -> Path:
        """What every process of the session has written."""
        return self.cluster.temp_dir / "session_latest" / "logs"

    def lines(self, request_id: str) -> list[dict[str, Any]]:
        """The log lines of one request, as the ingress wrote them."""
        files = self.logs.rglob("replica_observed_Ingress_*.log")
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [line for line in lines if line.get("request") == request_id]


@pytest.fixture(scope="module")
def observed(started: Cluster) -> Iterator[Observed]:
    first = document_of("dev.yaml", app="chattts", route="/")
    first["http_options"]["port"] = started.port
    with collecting() as collector:
        second = document_of(
            "dev.yaml", app="observed", route=ROUTE, tracing={"exporter": "otlp", "endpoint": collector.endpoint}
        )
        second["applications"][0]["logging_config"] = {"encoding": "JSON", "enable_access_log": False}
        deploy(first, second)
        yield Observed(started, collector)
        deploy(first)


def test_a_trace_leads_through_every_process_and_carries_the_request_id(observed: Observed):
    reply = observed.speak("traced-1", input="The first one is short. The second sentence is longer than that one.")
    assert reply.status_code == 200

    def complete() -> bool:
        """Each process exports by itself, and a segment's first spans before its last one: all of them have come."""
        spans = observed.collector.trace_of("traced-1")
        names, ids = [span.name for span in spans], {span.span_id for span in spans}
        kinds = {"speech", "text.plan", "acoustic.generate", "queue", "prefill", "first_steps", "vocoder.call"}
        segments = next((span.attributes["segments"] for span in spans if span.name == "speech"), None)
        closed = all(span.parent_id in ids for span in spans if span.name != "speech")
        return kinds <= {*names} and names.count("acoustic.generate") == segments and closed

    wait_until(complete, EXPORT_TIMEOUT_S)
    spans = observed.collector.trace_of("traced-1")
    by_id = {span.span_id: span for span in spans}
    stages = {span.name: span.stage for span in spans}
    assert stages["speech"] == "Ingress"
    assert stages["text.plan"] == "TextNormalizer"
    assert stages["acoustic.generate"] == stages["queue"] == "AcousticModel"
    assert stages["vocoder.call"] == "Vocoder"
    (root,) = (span for span in spans if span.parent_id == "")
    assert root.name == "speech"
    assert all(span is root or span.parent_id in by_id for span in spans)
    assert all(root.began_ns <= span.began_ns <= span.ended_ns for span in spans), "one machine, one clock"
    (out,) = (line for line in observed.lines("traced-1") if line["event"] == "finished")
    assert root.attributes["segments"] == out["segments"]
    steps = sum(span.attributes.get("steps", 0) for span in spans if span.name == "acoustic.generate")
    assert steps == out["steps"] == root.attributes["steps"]


def test_two_json_lines_a_request_and_none_a_step(observed: Observed):
    assert observed.speak("logged-1", stream=False).status_code == 200
    assert observed.speak("logged-2", speed=9).status_code == 400
    wait_until(lambda: len(observed.lines("logged-1")) == 2 and observed.lines("logged-2"), EXPORT_TIMEOUT_S)
    come, out = observed.lines("logged-1")
    assert (come["event"], out["event"]) == ("received", "finished")
    assert out["outcome"] == "done"
    assert out["steps"] > 10
    assert {"segments", "audio_s", "ttfb_s", "rtf", "took_s", "queue_s", "text_s"} <= out.keys()
    (refused,) = observed.lines("logged-2")
    assert (refused["outcome"], refused["code"]) == ("refused", "out_of_range")
    stages = [*observed.logs.rglob("replica_observed_AcousticModel_*.log"), *observed.logs.rglob("replica_observed_Voc*.log")]
    assert len(stages) == 2
    for file in stages:
        assert "logged-1" not in file.read_text(), "a stage writes nothing about a request"


def test_nothing_of_what_was_said_is_in_a_log_a_trace_or_a_metric(observed: Observed, tmp_path: Path):
    said = f"{CANARY} sings."
    ssml = f"<speak>{CANARY} <sub alias='{CANARY}'>x</sub></speak>"
    statuses = [
        observed.speak("canary-1", input=said, user=CANARY, lexicon={"x": CANARY}).status_code,
        observed.speak(input=said, stream=False, response_format="mp3", refine=True).status_code,
        observed.speak(input=ssml, input_type="ssml").status_code,
        observed.call("PUT", f"/v1/lexicons/{CANARY.lower()}", json={"entries": {"word": CANARY}}).status_code,
        observed.speak(lexicon=[CANARY.lower()], input="A word.").status_code,
        observed.call("POST", "/v1/text/normalize", json={"input": said}).status_code,
        observed.call("POST", "/v1/audio/speech/plan", json={"input": said}).status_code,
        observed.call(
            "POST",
            "/v1/audio/voices",
            json={"name": CANARY.lower(), "seed": 7, "description": said, "licence": CANARY},
        ).status_code,
    ]
    assert {*statuses} <= {200, 201, 422}, statuses
    assert observed.speak(voice=CANARY.lower()).status_code == 200
    assert observed.call("GET", f"/v1/audio/voices/{CANARY.lower()}/preview").status_code == 200
    flite = needed_program("flite", "flite")
    recording = tmp_path / f"{CANARY}.wav"
    words = "Good morning. This is the voice that I would like to hear from now on."
    subprocess.run([flite, "-voice", "slt", "-t", words, str(recording)], check=True)
    with recording.open("rb") as audio:
        cloned = observed.call(
            "POST",
            "/v1/audio/voices",
            data={"name": f"{CANARY.lower()}-2", "consent": "true", "ref_text": f"{words} {CANARY}."},
            files={"audio_sample": audio},
        )
    assert cloned.status_code in (200, 201, 422), cloned.text
    # Whatever is wrong, too.
    observed.speak(voice=f"{CANARY}-unknown")
    observed.speak(input=f"<speak>{CANARY}", input_type="ssml")
    observed.speak(input=said, speed=CANARY)
    observed.speak(**{CANARY: said})
    observed.call("POST", "/v1/audio/speech", data=f'{{"input": "{CANARY}')
    observed.call("GET", f"/v1/{CANARY}?{CANARY}={CANARY}")
    for header in ({"Authorization": f"Bearer {KEY}"}, {"xi-api-key": KEY}, {"Idempotency-Key": KEY}):
        observed.call("POST", "/v1/audio/speech", json={"input": said}, headers=header)
    observed.call("GET", f"/v1/lexicons/{CANARY}-none")
    wait_until(lambda: len(observed.lines("canary-1")) == 2, EXPORT_TIMEOUT_S)
    wait_until(lambda: observed.collector.trace_of("canary-1"), EXPORT_TIMEOUT_S)
    metrics = requests.get(f"http://127.0.0.1:{observed.cluster.metrics_port}/metrics", timeout=10).content
    places = {str(file): file.read_bytes() for file in observed.logs.rglob("*") if file.is_file()}
    assert any("replica_observed_Ingress" in name for name in places)
    assert b'"event": "finished"' in b"".join(places.values()), "the logs are really there"
    assert b"canary-1" in b"".join(observed.collector.bodies), "the traces are really there"
    assert b"ray_chattts_requests_total" in metrics, "the metrics are really there"
    places |= {"traces": b"".join(observed.collector.bodies), "metrics": metrics}
    found = [
        f"{place}: {written!r} ... {content[max(0, at - 200) : at + 60]!r}"
        for place, content in places.items()
        for written in writings(CANARY)
        if (at := content.lower().find(written)) >= 0
    ]
    assert not found, "\n".join(found)


def writings(word: str) -> list[bytes]:
    """The word as it may stand somewhere, in small letters: plain, percent-encoded, hex, UTF-16, base64 at any offset."""
    plain = word.lower().encode()
    writings = {plain, plain.hex().encode(), word.encode().hex().encode(), word.lower().encode("utf-16-le")}
    writings.add(urllib.parse.quote(word.lower(), safe="").encode())
    writings.add("".join(f"%{byte:02x}" for byte in plain).encode())
    for spelled in (word.encode(), plain):
        for offset in range(3):
            coded = base64.b64encode(b"\0" * offset + spelled).rstrip(b"=")
            # The characters at both ends also hold bits of the neighbours.
            writings.add(coded[4 if offset else 0 : -2].lower())
    return sorted(writings)
