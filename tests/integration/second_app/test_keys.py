"""Applications with keys and quotas, and one whose logs, traces and metrics are read."""

import base64
import itertools
import json
import os
import subprocess
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from pipeline.paths import cache_home
from pipeline.store.open import open_store
from scripts.chaos.deploying import deploy
from serve.access.api_keys import LOST
from serve.access.keys_marker import marker_for
from serve.commands.operate import keys as keys_script
from tests.support.cluster import EXPORT_TIMEOUT_S, Cluster, document_of, scrape
from tests.support.collector import Collector, collecting
from tests.support.service import LONG_SPEECH
from tests.support.services import RedisServer, needed_program
from tests.support.waiting import wait_until

ROUTE = "/keyed"


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@contextmanager
def keyed(cluster: Cluster, store: str, **engine: object) -> Iterator[None]:
    """The demo beside the session's own application, with a store of its own for keys and voices."""
    own = {"keys": {"store": store}, "voices": {"store": store}}
    document = document_of("dev.yaml", app="keyed", route=ROUTE, **own, pipeline={"engine": engine})
    plain = document_of("dev.yaml", app="chattts", route="/")
    plain["http_options"]["port"] = cluster.port
    deploy(plain, document)
    yield
    deploy(plain)


def make_key(capsys: pytest.CaptureFixture[str], store: str, *options: str) -> str:
    assert keys_script.main(["add", "somebody", "--store", store, *options]) == 0
    (key,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ck-")]  # Ray prints there too
    return key


def speak(cluster: Cluster, key: str | None, **fields: object) -> requests.Response:
    body = {"input": "Hello there.", "response_format": "pcm", "seed": 5, **fields}
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return requests.post(cluster.url(f"{ROUTE}/v1/audio/speech"), json=body, headers=headers, timeout=120)


def test_keys_lanes_and_promises_hold_through_serve(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    store = str(Path(os.environ["RAY_TMPDIR"]) / "keys.sqlite")
    with keyed(cluster, store, slots=2, ignore_eos=True, decode="torch"):  # a thousand steps take seconds
        unguarded = speak(cluster, None)
        assert unguarded.status_code == 200, "no key yet, and the client is of this machine"
        url = cluster.url(f"{ROUTE}/v1/models")
        assert requests.get(url, headers={"X-Forwarded-For": "127.0.0.1"}, timeout=10).status_code == 401
        key = make_key(capsys, store, "--lanes", "standard,bulk", "--streams", "2", "--requests-per-s", "none")
        wait_until(lambda: requests.get(url, timeout=10).status_code == 401, 10.0)
        replies = {lane: speak(cluster, key, priority=lane) for lane in (None, "bulk", "interactive")}
        assert [reply.status_code for reply in replies.values()] == [200, 200, 403]
        assert replies["interactive"].json()["error"]["code"] == "lane_not_allowed"
        assert replies[None].content == replies["bulk"].content == unguarded.content, "when it is spoken is not how"
        headers = {"Authorization": f"Bearer {key}"}
        body = {**json.loads(LONG_SPEECH), "priority": "bulk"}
        with (
            requests.post(
                cluster.url(f"{ROUTE}/v1/audio/speech"), json=body, headers=headers, stream=True, timeout=60
            ) as first,
            requests.post(
                cluster.url(f"{ROUTE}/v1/audio/speech"), json=body, headers=headers, stream=True, timeout=60
            ) as second,
        ):
            assert first.status_code == second.status_code == 200
            refused = speak(cluster, key)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_concurrent_requests")
            other = make_key(capsys, store)
            wait_until(lambda: requests.get(url, headers={"X-API-Key": other}, timeout=10).status_code == 200, 10.0)
            refusals: list[requests.Response] = []

            deadlines_ms = itertools.chain((400, 200, 100, 50), itertools.repeat(25))

            def refused() -> bool:
                """Rows end at any time, and a listener gets the slot of a book: on a fast machine 400 ms can be promised."""
                late = speak(cluster, other, deadline_ms=next(deadlines_ms), cache="no-store", seed=7)
                if late.status_code == 429:
                    refusals.append(late)
                return bool(refusals)

            wait_until(refused, 30.0)
            assert refusals[0].json()["error"]["code"] == "deadline_unmeetable"
            assert int(refusals[0].headers["Retry-After"]) >= 1
        wait_until(lambda: speak(cluster, key).status_code == 200, 30.0)
        status = cluster.url(f"{ROUTE}/admin/status")
        assert requests.get(status, headers=headers, timeout=10).status_code == 403
        operator = {"Authorization": f"Bearer {make_key(capsys, store, '--scopes', 'admin')}"}
        wait_until(lambda: requests.get(status, headers=operator, timeout=10).status_code == 200, 10.0)
        shown = requests.get(status, headers=operator, timeout=10).json()
        assert [replica["slots"] for replica in shown["acoustic"]] == [2]
        assert shown["degrade"]["level"] == 0


@pytest.mark.nightly
def test_while_redis_is_away_keys_go_on_and_the_metric_says_so(
    cluster: Cluster, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
):
    def alone() -> float:
        (sample,) = [
            value for tags, value in scrape(cluster).get("ray_chattts_quotas_unshared", []) if tags["application"] == "keyed"
        ]
        return sample

    with keyed(cluster, redis_server.url):
        key = make_key(capsys, redis_server.url, "--requests-per-s", "0.001", "--burst", "4")
        wait_until(lambda: speak(cluster, None).status_code == 401, 10.0)
        assert speak(cluster, key).status_code == 200
        wait_until(lambda: alone() == 0.0, EXPORT_TIMEOUT_S)
        redis_server.kill()
        wait_until(lambda: alone() == 1.0, EXPORT_TIMEOUT_S)
        assert [speak(cluster, key).status_code for _ in range(4)] == [200, 200, 200, 429], "alone, and with a limit"
        redis_server.start()
        wait_until(lambda: alone() == 0.0, EXPORT_TIMEOUT_S)
        assert speak(cluster, key).status_code == 200, "the common count goes on where it was"
    marker_for(open_store(redis_server.url), cache_home()).remove()  # another test's Redis may have this one's port


@pytest.mark.nightly
def test_a_store_that_is_damaged_at_the_start_or_lost_later_opens_nothing(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    store = Path(os.environ["RAY_TMPDIR"]) / "damaged.sqlite"
    store.write_bytes(os.urandom(20_000))

    def answer() -> tuple[int, str]:
        reply = speak(cluster, None)
        return reply.status_code, "" if reply.ok else reply.json()["error"]["message"]

    with keyed(cluster, str(store)):
        assert answer() == (503, "the keys could not be read yet (keys.store); /health and the log say why")
        problems = cluster.health(ROUTE)["stores"]
        assert set(problems) >= {"keys", "voices", "lexicons", "purges of the cache"}  # and writes, once they were tried
        for problem in problems.values():
            assert "file is not a database; restore it from a backup, or move it away" in problem
            assert str(store) not in problem, "whoever asks /health needs no key"
        store.unlink()
        wait_until(lambda: answer() == (200, ""), 30.0)
        assert cluster.health(ROUTE)["stores"] == {}
        make_key(capsys, str(store))
        wait_until(lambda: answer()[0] == 401, 30.0)
        store.unlink()
        cluster.kill_replica("keyed", "Ingress")

        def is_closed() -> bool:
            """The one that starts now finds an empty store. A dead one is a 500 until Serve knows."""
            reply = requests.get(cluster.url(f"{ROUTE}/v1/models"), timeout=30)
            assert reply.status_code != 200, "there were keys, and nobody needs one"
            return LOST in reply.text

        wait_until(is_closed, 60.0)
        assert cluster.health(ROUTE)["stores"] == {"keys": LOST}


# A whole run, seen from outside: its logs, its traces, its metrics. Nothing of what was said is in any of them.

OBSERVED = "/observed"
CANARY = "Zorblequix"  # a word of letters: no rule of the text front end changes it
KEY = "sk-zorblequix-0123456789"
EXPORTED_S = 30.0


@dataclass
class Observed:
    """An application with JSON logs and traces, beside the session's own."""

    cluster: Cluster
    collector: Collector

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        return requests.request(method, self.cluster.url(f"{OBSERVED}{path}"), timeout=60, **options)

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
            "dev.yaml", app="observed", route=OBSERVED, tracing={"exporter": "otlp", "endpoint": collector.endpoint}
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

    wait_until(complete, EXPORTED_S)
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
    wait_until(lambda: len(observed.lines("logged-1")) == 2 and observed.lines("logged-2"), EXPORTED_S)
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
    text = f"{CANARY} sings."
    ssml = f"<speak>{CANARY} <sub alias='{CANARY}'>x</sub></speak>"
    statuses = [
        observed.speak("canary-1", input=text, user=CANARY, lexicon={"x": CANARY}).status_code,
        observed.speak(input=text, stream=False, response_format="mp3", refine=True).status_code,
        observed.speak(input=ssml, input_type="ssml").status_code,
        observed.call("PUT", f"/v1/lexicons/{CANARY.lower()}", json={"entries": {"word": CANARY}}).status_code,
        observed.speak(lexicon=[CANARY.lower()], input="A word.").status_code,
        observed.call("POST", "/v1/text/normalize", json={"input": text}).status_code,
        observed.call("POST", "/v1/audio/speech/plan", json={"input": text}).status_code,
        observed.call(
            "POST",
            "/v1/audio/voices",
            json={"name": CANARY.lower(), "seed": 7, "description": text, "licence": CANARY},
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
    observed.speak(input=text, speed=CANARY)
    observed.speak(**{CANARY: text})
    observed.call("POST", "/v1/audio/speech", data=f'{{"input": "{CANARY}')
    observed.call("GET", f"/v1/{CANARY}?{CANARY}={CANARY}")
    for header in ({"Authorization": f"Bearer {KEY}"}, {"xi-api-key": KEY}, {"Idempotency-Key": KEY}):
        observed.call("POST", "/v1/audio/speech", json={"input": text}, headers=header)
    observed.call("GET", f"/v1/lexicons/{CANARY}-none")
    wait_until(lambda: len(observed.lines("canary-1")) == 2, EXPORTED_S)
    wait_until(lambda: observed.collector.trace_of("canary-1"), EXPORTED_S)
    metrics = requests.get(f"http://127.0.0.1:{observed.cluster.metrics_port}/metrics", timeout=10).content
    places = {str(file): file.read_bytes() for file in observed.logs.rglob("*") if file.is_file()}
    assert any("replica_observed_Ingress" in name for name in places)
    assert b'"event": "finished"' in b"".join(places.values()), "the logs are really there"
    assert b"canary-1" in b"".join(observed.collector.bodies), "the traces are really there"
    assert b"ray_chattts_requests_total" in metrics, "the metrics are really there"
    places |= {"traces": b"".join(observed.collector.bodies), "metrics": metrics}
    traces = [
        f"{place}: {written!r} ... {content[max(0, at - 200) : at + 60]!r}"
        for place, content in places.items()
        for written in writings(CANARY)
        if (at := content.lower().find(written)) >= 0
    ]
    assert not traces, "\n".join(traces)


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
