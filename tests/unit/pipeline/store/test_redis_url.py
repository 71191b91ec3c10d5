"""Redis URLs: what no client can open is refused when it is read, without a part of a password in any message."""

import pytest

from pipeline.errors import ConfigError
from pipeline.store.open import open_store
from pipeline.store.redis_url import check_redis_url, url_without_password
from serve.commands.operate.show_config import resolved
from serve.config.app_config import AppConfig, read_app_config

GOOD = {
    "redis://host": "redis://host",
    "redis://host:6379/2": "redis://host:6379/2",
    "redis://:geheim@host:1/": "redis://host:1/",
    "redis://user:geh%2Feim%23@[::1]:6379/15": "redis://[::1]:6379/15",
    "redis://user:ge@heim@host:6379": "redis://host:6379",
    "rediss://:geheim@host:6380/0?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=true": "rediss://host:6380/0",
    "redis://host/0?db=3&protocol=2": "redis://host/0",
}
BAD = {
    "redis://:geheim/b@127.0.0.1:6379/0": "percent-encoded",
    "redis://:geheim#b@127.0.0.1:6379/0": "percent-encoded",
    "redis://:geheim?b@127.0.0.1:6379/0": "percent-encoded",
    "redis://:geh[eim@127.0.0.1:6379/0": "percent-encoded",
    "redis://:geheim 1@127.0.0.1:6379/0": "without blanks",
    "redis://:geheim\n@127.0.0.1:6379/0": "without blanks",
    "redis://:geheim@127.0.0.1:99999/0": "from 1 to 65535",
    "redis://:geheim@127.0.0.1:0/0": "from 1 to 65535",
    "redis://:geheim@127.0.0.1:geheim/0": "from 1 to 65535",
    "redis://:geheim@:6379/0": "host is missing",
    "redis:///0": "host is missing",
    "redis://:geheim@host/geheim": "number of a database",
    "redis://:geheim@host/1/2": "number of a database",
    "redis://:geheim@host/-1": "number of a database",
    "redis://:geheim@host/0?db=geheim": "number of a database",
    "redis://:geheim@host/0?geheim=1": "behind [?] it may have db, protocol",
    "redis://:geheim@host/0?ssl_ca_certs=x": "needs rediss://",
    "redis://:geheim@one:1,two:2/0": "Sentinel and Cluster are not supported",
    "redis+sentinel://:geheim@one/0": "Sentinel and Cluster are not supported",
    "redis-cluster://:geheim@one/0": "Sentinel and Cluster are not supported",
    "REDIS://:geheim@one/0": "a Redis is redis://",
    "valkey://:geheim@one/0": "a Redis is redis://",
}


@pytest.mark.parametrize("url", GOOD)
def test_what_can_be_opened_is_taken_as_it_is(url: str):
    assert check_redis_url(url) == url
    assert url_without_password(url) == GOOD[url]
    store = open_store(url)  # connects at its first question
    assert store.place == GOOD[url]
    store.close()


@pytest.mark.parametrize("section", ["voices.store", "keys.store", "cache.redis"])
@pytest.mark.parametrize("url", BAD)
def test_what_cannot_be_opened_is_refused_without_showing_it(url: str, section: str):
    with pytest.raises(ConfigError, match=BAD[url]) as error:
        check_redis_url(url)
    assert "geheim" not in str(error.value)
    name, _, key = section.partition(".")
    with pytest.raises(ConfigError, match=f"(?s){section}.*{BAD[url]}") as error:
        read_app_config({name: {key: url}})
    with pytest.raises(ValueError, match=BAD[url]) as raw:
        AppConfig.model_validate({name: {key: url}})
    assert "geheim" not in f"{error.value} {raw.value}"


@pytest.mark.parametrize("wrong", [{"voices": "redis://:geheim@h"}, {"cache": {"redis": ["redis://:geheim@h"]}}])
def test_a_url_in_a_wrong_place_is_not_shown_either(wrong: dict[str, object]):
    with pytest.raises(ConfigError) as error:
        read_app_config(wrong)
    assert "geheim" not in str(error.value)


def test_the_command_that_shows_a_configuration_shows_no_password():
    app = read_app_config({"voices": {"store": "redis://:geheim@host:6379/1"}, "cache": {"redis": "rediss://u:geheim@host"}})
    shown = {path: value for path, value, *_ in resolved(app, {}, "")}
    assert (shown["voices.store"], shown["cache.redis"]) == ("redis://host:6379/1", "rediss://host")
    assert "geheim" not in str(shown)
