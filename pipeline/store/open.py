"""Open: the store of a URL.

In:    redis://..., rediss://..., or the path of a file
Out:   Store
Owns:  nothing
Never: a connection before the first call of the store
"""

from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.store.redis import RedisStore
from pipeline.store.sqlite import SqliteStore
from pipeline.store.store import Store

REDIS_SCHEMES = ("redis", "rediss")


def check_store_url(url: str) -> str:
    """Returns the URL unchanged if it names a store.

    Raises:
        ConfigError: it names neither a Redis nor a file.
    """
    scheme, mark, _ = url.partition("://")
    if mark and scheme not in REDIS_SCHEMES:
        raise ConfigError(f"a store is redis://..., rediss://... or the path of a file; found {scheme}://...")
    return url


def open_store(url: str) -> Store:
    """Returns a Redis or a file store; the first call of a method connects.

    Raises:
        ConfigError: another kind of URL.
    """
    return RedisStore(url) if "://" in check_store_url(url) else SqliteStore(Path(url))
