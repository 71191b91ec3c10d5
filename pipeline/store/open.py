"""Choose: the store a URL means.

In:    redis://..., rediss://..., or the path of a file
Out:   Store
Owns:  nothing
Never: a connection that nobody has asked for
"""

from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.store.redis import RedisStore
from pipeline.store.sqlite import SqliteStore
from pipeline.store.store import Store

REDIS_SCHEMES = ("redis", "rediss")


def check_store_url(url: str) -> str:
    """The URL as it is.

    Raises:
        ConfigError: it names neither a Redis nor a file.
    """
    scheme, mark, _ = url.partition("://")
    if mark and scheme not in REDIS_SCHEMES:
        raise ConfigError(f"a store is redis://..., rediss://... or the path of a file; found {scheme}://...")
    return url


def open_store(url: str) -> Store:
    """A Redis or a file; it is first asked by the first call.

    Raises:
        ConfigError: another kind of URL.
    """
    return RedisStore(url) if "://" in check_store_url(url) else SqliteStore(Path(url))
