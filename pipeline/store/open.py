"""Open: the store of a URL.

In:    redis://..., rediss://..., or the path of a file
Out:   Store
Never: a connection before the first call of the store
"""

from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.store.redis_store import RedisStore
from pipeline.store.redis_url import check_redis_url
from pipeline.store.sqlite import SqliteStore
from pipeline.store.store import Store


def check_store_url(url: str) -> str:
    """Returns the URL unchanged if it names a store.

    Raises:
        ConfigError: it names neither a Redis nor a file.
    """
    try:
        return check_redis_url(url) if "://" in url else url
    except ConfigError as error:
        raise ConfigError(f"a store is the path of a file or a Redis. {error}") from None


def open_store(url: str) -> Store:
    """Returns a Redis or a file store; the first call of a method connects.

    Raises:
        ConfigError: another kind of URL.
    """
    return RedisStore(url) if "://" in check_store_url(url) else SqliteStore(Path(url))
