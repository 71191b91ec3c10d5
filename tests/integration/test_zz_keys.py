"""Keys and lanes through a real Serve, of an application of their own."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from scripts import keys as keys_script
from tests.integration.cluster import LONG_SPEECH, Cluster, deploy, document_of, wait_until

ROUTE = "/keyed"


@pytest.fixture(scope="module")
def keyed(started: Cluster) -> Iterator[Cluster]:
    """The demo, with a store of keys of its own and two slots."""
    store = Path(os.environ["RAY_TMPDIR"]) / "keys.sqlite"
    slow = {"slots": 2, "ignore_eos": True, "decode": "torch"}  # a thousand steps take seconds
    keyed = document_of("dev.yaml", app="keyed", route=ROUTE, keys={"store": str(store)}, pipeline={"engine": slow})
    plain = document_of("dev.yaml", app="chattts", route="/")
    plain["http_options"]["port"] = started.port
    deploy(plain, keyed)
    yield started
    deploy(plain)


def make_key(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    store = str(Path(os.environ["RAY_TMPDIR"]) / "keys.sqlite")
    assert keys_script.main(["add", "somebody", "--store", store, *options]) == 0
    return capsys.readouterr().out.strip()


def speak(cluster: Cluster, key: str | None, **fields: object) -> requests.Response:
    body = {"input": "Hello there.", "response_format": "pcm", "seed": 5, **fields}
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return requests.post(cluster.url(f"{ROUTE}/v1/audio/speech"), json=body, headers=headers, timeout=120)


def test_keys_lanes_and_promises_hold_through_serve(keyed: Cluster, capsys: pytest.CaptureFixture[str]):
    unguarded = speak(keyed, None)
    assert unguarded.status_code == 200, "no key yet, and the client is of this machine"
    url = keyed.url(f"{ROUTE}/v1/models")
    assert requests.get(url, headers={"X-Forwarded-For": "127.0.0.1"}, timeout=10).status_code == 401
    key = make_key(capsys, "--lanes", "standard,bulk", "--streams", "2", "--requests-per-s", "none")
    wait_until(lambda: requests.get(url, timeout=10).status_code == 401, 10.0)
    replies = {lane: speak(keyed, key, priority=lane) for lane in (None, "bulk", "interactive")}
    assert [reply.status_code for reply in replies.values()] == [200, 200, 403]
    assert replies["interactive"].json()["error"]["code"] == "lane_not_allowed"
    assert replies[None].content == replies["bulk"].content == unguarded.content, "when it is spoken is not how"
    headers = {"Authorization": f"Bearer {key}"}
    body = {**json.loads(LONG_SPEECH), "priority": "bulk"}
    with (
        requests.post(keyed.url(f"{ROUTE}/v1/audio/speech"), json=body, headers=headers, stream=True, timeout=60) as first,
        requests.post(keyed.url(f"{ROUTE}/v1/audio/speech"), json=body, headers=headers, stream=True, timeout=60) as second,
    ):
        assert first.status_code == second.status_code == 200
        refused = speak(keyed, key)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_concurrent_requests")
        other = make_key(capsys)
        wait_until(lambda: requests.get(url, headers={"X-API-Key": other}, timeout=10).status_code == 200, 10.0)
        refusals: list[requests.Response] = []

        def refused() -> bool:
            """Rows end at any time, and then the promise can be kept; not often."""
            late = speak(keyed, other, deadline_ms=400, cache="no-store", seed=7)
            if late.status_code == 429:
                refusals.append(late)
            return bool(refusals)

        wait_until(refused, 30.0)
        assert refusals[0].json()["error"]["code"] == "deadline_unmeetable"
        assert int(refusals[0].headers["Retry-After"]) >= 1
    wait_until(lambda: speak(keyed, key).status_code == 200, 30.0)
