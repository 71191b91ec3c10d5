"""Keys and lanes through a real Serve, of an application of their own."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from pipeline.paths import cache_home
from pipeline.store.open import open_store
from scripts.chaos.deploying import deploy
from serve.access.api_keys import LOST
from serve.access.keys_marker import marker_for
from serve.commands.operate import keys as keys_script
from tests.support.cluster import LONG_SPEECH, Cluster, document_of
from tests.support.metrics import EXPORT_TIMEOUT_S, scrape
from tests.support.services import RedisServer
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
    return capsys.readouterr().out.strip()


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

            def refused() -> bool:
                """Rows end at any time, and then the promise can be kept; not often."""
                late = speak(cluster, other, deadline_ms=400, cache="no-store", seed=7)
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
        (found,) = [
            value for tags, value in scrape(cluster).get("ray_chattts_quotas_unshared", []) if tags["application"] == "keyed"
        ]
        return found

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

    def said() -> tuple[int, str]:
        reply = speak(cluster, None)
        return reply.status_code, "" if reply.ok else reply.json()["error"]["message"]

    with keyed(cluster, str(store)):
        assert said() == (503, "the keys could not be read yet (keys.store); /health and the log say why")
        problems = cluster.health(ROUTE)["stores"]
        assert set(problems) == {"keys", "voices", "lexicons", "purges of the cache"}
        for problem in problems.values():
            assert "file is not a database; restore it from a backup, or move it away" in problem
            assert str(store) not in problem, "whoever asks /health needs no key"
        store.unlink()
        wait_until(lambda: said() == (200, ""), 30.0)
        assert cluster.health(ROUTE)["stores"] == {}
        make_key(capsys, str(store))
        wait_until(lambda: said()[0] == 401, 30.0)
        store.unlink()
        cluster.kill_replica("keyed", "Ingress")

        def is_closed() -> bool:
            """The one that starts now finds an empty store. A dead one is a 500 until Serve knows."""
            reply = requests.get(cluster.url(f"{ROUTE}/v1/models"), timeout=30)
            assert reply.status_code != 200, "there were keys, and nobody needs one"
            return LOST in reply.text

        wait_until(is_closed, 60.0)
        assert cluster.health(ROUTE)["stores"] == {"keys": LOST}
