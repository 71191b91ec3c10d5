"""Poll: refreshes a copy of stored records again and again, so that it follows other replicas.

In:    a refresh function that may raise StoreUnavailable
Out:   calls of it, until cancelled
Owns:  nothing
Never: an end of its own, whatever the refresh raises
"""

import asyncio
import logging
from collections.abc import Callable

from pipeline.errors import StoreUnavailable

LOG = logging.getLogger("ray.serve.chattts")


async def follow(what: str, refresh: Callable[[], object], each_s: float, problems: dict[str, str] | None = None) -> None:
    """Calls `refresh` again and again. An unavailable store is logged once.

    Args:
        what: the name of the records, for the log.
        problems: by the name of the records, why they cannot be refreshed now, for clients; kept up to date here.
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
