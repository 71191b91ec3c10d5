"""Doctor's look at Redis: a server that cannot keep what the service promises is named before the service starts."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from redis import Redis

from serve.commands import doctor_redis
from serve.commands.doctor_redis import redis_servers
from serve.commands.findings import Status
from serve.config.app_config import PROJECT, AppConfig, read_app_config
from tests.support.ports import free_port
from tests.support.services import RedisServer

FAIL, WARN, FINE = Status.FAIL, Status.WARN, Status.FINE


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--maxmemory", "50mb")
    yield server
    server.kill()


def as_store(url: str) -> AppConfig:
    return read_app_config({"voices": {"store": url}})


def as_cache(url: str) -> AppConfig:
    return read_app_config({"cache": {"redis": url}})


def as_both(url: str) -> AppConfig:
    return read_app_config({"voices": {"store": url}, "cache": {"redis": url}})


@pytest.mark.parametrize(
    ("use", "settings", "expected"),
    [
        (as_store, {}, (FINE, "noeviction")),
        (as_cache, {"maxmemory-policy": "allkeys-lru"}, (FINE, "allkeys-lru")),
        (as_store, {"maxmemory-policy": "allkeys-lfu"}, (FAIL, "evicts records")),
        (as_store, {"maxmemory-policy": "volatile-lru"}, (WARN, "time to live")),
        (as_store, {"appendonly": "no"}, (WARN, "append-only")),
        (as_store, {"replicaof": "127.0.0.1 1"}, (FAIL, "is a replica")),
        (as_store, {"min-replicas-to-write": "1"}, (FAIL, "too few replicas")),
        (as_store, {"maxmemory": "1"}, (FAIL, "no room left")),
        (as_cache, {"maxmemory": "1"}, (FAIL, "not what is read")),
        (as_cache, {}, (WARN, "once it is full")),
        (as_both, {}, (WARN, "both store and cache")),
    ],
)
def test_what_a_server_cannot_do_is_named(
    server: RedisServer, use: Callable[[str], AppConfig], settings: dict[str, str], expected: tuple[Status, str]
):
    client = Redis.from_url(server.url)
    client.flushall()
    usual = {"maxmemory": "50mb", "maxmemory-policy": "noeviction", "appendonly": "yes", "min-replicas-to-write": "0"}

    def change(settings: dict[str, str]) -> None:
        for name, value in settings.items():
            client.execute_command(*(("REPLICAOF", *value.split()) if name == "replicaof" else ("CONFIG", "SET", name, value)))

    try:
        change(settings)
        findings = list(redis_servers(use(server.url)))
    finally:
        change({"replicaof": "no one", **usual})
    status, words = expected
    assert any(finding.status is status and words in finding.result for finding in findings), findings
    assert all(finding.status in (status, WARN) and "redis://127.0.0.1" in finding.result for finding in findings)
    assert not [name for name in client.scan_iter("*quota*") if b"doctor" in name], "nothing stays of it but four small keys"


def test_a_server_that_is_away_hangs_or_wants_a_password_is_named_without_one(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(doctor_redis, "TIMEOUT_S", 0.3)
    server = RedisServer(tmp_path)
    Redis.from_url(server.url).config_set("requirepass", "right")
    try:
        for url, words in (
            (f"redis://:wrong@127.0.0.1:{server.port}/0", "password"),
            (f"redis://:right@127.0.0.1:{server.port}/0", "answers"),
            (f"redis://:right@127.0.0.1:{server.port}/99", "no database"),
            (f"redis://:right@127.0.0.1:{free_port()}", "does not answer"),
        ):
            found = " ".join(finding.result + finding.advice for finding in redis_servers(as_store(url)))
            assert words in found
            assert not {"right", "wrong"} & set(found.replace("@", " ").replace(":", " ").split())
        server.freeze()
        (finding,) = redis_servers(as_store(f"redis://:right@127.0.0.1:{server.port}/0"))
        assert (finding.status, "does not answer" in finding.result) == (FAIL, True)
    finally:
        server.kill()


def test_an_old_release_and_a_cluster_are_refused():
    facts = {"redis_version": "6.0.16", "cluster_enabled": 1, "maxmemory_policy": "noeviction", "aof_enabled": 1}
    found = [finding.result for finding in doctor_redis._problems("here", ["voices.store"], facts)]
    assert found == ["here is release 6.0.16", "here is part of a cluster"]


def test_compose_and_kubernetes_keep_store_and_cache_apart():
    services = yaml.safe_load((PROJECT / "compose.yaml").read_text())["services"]
    store, cache = (services[name]["command"] for name in ("store", "cache"))
    assert "noeviction" in store
    assert store[store.index("--appendonly") + 1] == "yes"
    assert "allkeys-lru" in cache
    variables = services["chattts"]["environment"]
    assert (variables["CHATTTS_REDIS"], variables["CHATTTS_REDIS_CACHE"]) == ("redis://store:6379/0", "redis://cache:6379/0")
