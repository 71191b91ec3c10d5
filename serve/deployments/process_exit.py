"""Process exit: a replica whose engine or vocoder has died ends its process.

In:    the death
Out:   no return
Owns:  nothing
Never: a drain: nothing in this process can still be synthesised

Serve's router forgets a dead process at once. A live one that answers every call with an error looks idle to it and draws all
calls, the second tries of its own victims first, until three health checks have failed.
"""

import logging
import os
import sys
from typing import NoReturn

from pipeline.errors import EngineDead

LOG = logging.getLogger("ray.serve.chattts")

EXIT_CODE = 70


def end_process(death: EngineDead) -> NoReturn:
    """Log the reason and end the process; callers that still wait see the process die."""
    LOG.error("this replica ends: %s", death.message)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(EXIT_CODE)
