"""Stores: the URLs of stores and caches, as pydantic checks them.

In:    a URL from a configuration
Out:   the same URL
Never: a connection
"""

from pipeline.errors import ConfigError
from pipeline.store.open import check_store_url


def store_url(url: str) -> str:
    """Returns the URL of a store, for pydantic.

    Raises:
        ValueError: it names neither a Redis nor a file.
    """
    try:
        return check_store_url(url)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def redis_url(url: str) -> str:
    """Returns the URL of a Redis, for pydantic.

    Raises:
        ValueError: it names something else.
    """
    if "://" not in store_url(url):
        raise ValueError("the shared cache is a Redis, redis://... or rediss://...")
    return url
