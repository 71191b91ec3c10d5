"""Following: what other replicas keep in a store is known here soon.

In:    a refresh that may find its store away
Out:   calls of it, until cancelled
Owns:  nothing
Never: an end of its own: what is known goes on working whatever happens
"""

import asyncio
import logging
from collections.abc import Callable

from pipeline.errors import StoreUnavailable

LOG = logging.getLogger("ray.serve.chattts")


async def follow(what: str, refresh: Callable[[], object], each_s: float, problems: dict[str, str] | None = None) -> None:
    """Refresh again and again. A store that is away is said once.

    Args:
        what: the name of the records, for the log.
        problems: why which records cannot be refreshed now, for clients; kept up to date here.
    """
    problems = {} if problems is None else problems
    away = False
    while True:
        try:
            await asyncio.to_thread(refresh)
            if away:
                LOG.info("%s: the store is back", what)
            away = False
            problems.pop(what, None)
        except StoreUnavailable as error:
            if not away:
                LOG.warning("%s: %s; the %s known so far go on working", what, error, what)
            away = True
            problems[what] = error.message
        except Exception:
            LOG.exception("%s: could not be refreshed", what)
        await asyncio.sleep(each_s)
