"""What a request says about the cache, what a reply says, and the routes that empty it."""

import pytest
import requests

from pipeline.errors import ConfigError, NotCached, StoreUnavailable
from pipeline.store.store import Store
from pipeline.types import CacheMode, CacheResult
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from serve.config.app_config import read_app_config
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import serving


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "header", "mode"),
    [
        (None, None, CacheMode.DEFAULT),
        (None, "no-store", CacheMode.NO_STORE),
        (None, "No-Cache", CacheMode.REFRESH),
        (None, "max-age=0", CacheMode.REFRESH),
        (None, "no-transform, only-if-cached", CacheMode.ONLY_IF_CACHED),
        (None, "no-cache, no-store", CacheMode.NO_STORE),
        (None, "max-age=60", CacheMode.DEFAULT),
        ("default", "no-store", CacheMode.DEFAULT),
        ("refresh", "no-store", CacheMode.REFRESH),
        ("no-store", None, CacheMode.NO_STORE),
        ("only-if-cached", None, CacheMode.ONLY_IF_CACHED),
    ],
)
def test_the_field_and_else_the_header_say_what_is_wanted(field, header, mode):
    speaker = Speaker()
    with serving(make_services(speaker)) as live:
        body = {"input": "Hi.", "seed": 1, **({} if field is None else {"cache": field})}
        headers = {} if header is None else {"Cache-Control": header}
        assert requests.post(f"{live.url}/v1/audio/speech", json=body, headers=headers, timeout=9).status_code == 200
    assert speaker.requests[0].cache.mode is mode


@pytest.mark.parametrize(("field", "mode"), [("default", "no-store"), ("refresh", "no-store"), ("only-if-cached",) * 2])
def test_a_seed_that_is_drawn_now_is_not_looked_for(field, mode):
    speaker = Speaker()
    with serving(make_services(speaker)) as live:
        assert live.speak(cache=field).headers["X-Cache"] == "bypass"
    assert speaker.requests[0].cache.mode == mode


def test_a_reply_names_the_source_of_its_steps():
    for result in CacheResult:
        with serving(make_services(Speaker(source=result))) as live:
            for fields in ({}, {"stream": False}, {"stream_format": "sse"}):
                assert live.speak(seed=1, **fields).headers["X-Cache"] == result.value


def test_only_if_cached_without_an_entry_is_a_504():
    with serving(make_services(Speaker(fails_at=0, error=NotCached("not there", param="cache")))) as live:
        reply = live.speak(cache="only-if-cached", seed=1)
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "not_cached")
    assert reply.headers["x-should-retry"] == "false"


def test_a_client_purges_its_own_entries_and_an_operator_all(store: Store):
    speaker = Speaker()
    key, key_id = add(store, scopes=tuple(Scope))
    headers = {"X-API-Key": key}
    with guarded(Authenticator(ring_of(store)), speaker) as live:
        own = requests.delete(f"{live.url}/v1/audio/speech/cache", headers=headers, timeout=9)
        every = requests.post(f"{live.url}/admin/cache/purge", headers=headers, timeout=9)
        assert (own.status_code, own.content, every.status_code, every.content) == (204, b"", 204, b"")
        assert speaker.purged == [key_id, None]
        speaker.purge_error = StoreUnavailable("the store does not answer")
        assert requests.post(f"{live.url}/admin/cache/purge", headers=headers, timeout=9).status_code == 503


def test_a_shared_cache_is_a_redis():
    assert read_app_config({"cache": {"redis": "redis://cache:6379/1", "memory_mib": 0}}).cache.redis == "redis://cache:6379/1"
    for wrong in ("a/file.sqlite", "http://cache"):
        with pytest.raises(ConfigError, match="redis://"):
            read_app_config({"cache": {"redis": wrong}})
