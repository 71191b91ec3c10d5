"""Process exit: a replica whose engine or vocoder has died ends its process.

In:    the error of the engine or vocoder that has died
Out:   never returns
Never: draining: nothing in this process can still be synthesised

Serve's router drops a dead process at once. A live one that answers every call with an error looks idle to it and attracts all
calls, the second tries of its own failed requests first, until three health checks have failed.
"""

import logging
import os
import sys
from typing import NoReturn

from pipeline.errors import EngineDead

LOG = logging.getLogger("ray.serve.chattts")

EXIT_CODE = 70


def end_process(death: EngineDead) -> NoReturn:
    """Logs the reason and ends the process; callers that still wait get the error of a dead replica."""
    LOG.error("this replica ends: %s", death.message)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(EXIT_CODE)
