"""Poll: refreshes a copy of stored records again and again, so that it follows other replicas.

In:    a refresh function that may raise StoreUnavailable
Out:   calls of it, until cancelled
Never: an end of its own, whatever the refresh raises
"""

import asyncio
import logging
from collections.abc import Callable

from pipeline.errors import StoreUnavailable
from pipeline.store.threads import ask_store

LOG = logging.getLogger("ray.serve.chattts")


async def follow(subject: str, refresh: Callable[[], object], each_s: float, problems: dict[str, str] | None = None) -> None:
    """Calls `refresh` again and again. An unavailable store is logged once, and so is a defect.

    Args:
        subject: the name of the records, for the log.
        problems: by the name of the records, why they cannot be refreshed now, for clients; kept up to date here.
    """
    problems = {} if problems is None else problems
    reason = ""
    while True:
        try:
            await ask_store(refresh)
            if reason:
                LOG.info("%s: the store is back", subject)
            reason = ""
            problems.pop(subject, None)
        except StoreUnavailable as error:
            if not reason:
                LOG.warning("%s: %s; what is known so far goes on working", subject, error)
            reason = problems[subject] = error.message
        except Exception as defect:
            if reason != (reason := f"a defect ({type(defect).__name__}); the log has it"):
                LOG.exception("%s: could not be refreshed", subject)
            problems[subject] = reason
        await asyncio.sleep(each_s)
