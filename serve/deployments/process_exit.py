"""Ending: a replica whose engine or vocoder has died ends its process.

In:    the death
Out:   no return
Owns:  nothing
Never: a drain: nothing in this process can still be spoken

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
    """Say why, and leave; whoever still waits for an answer sees the process die."""
    LOG.error("this replica ends: %s", death.message)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(EXIT_CODE)
