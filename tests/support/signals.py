"""Signals: a child's, as a terminal gives them to it, whatever the tests have inherited; and a process that is stopped."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def as_in_a_terminal() -> None:
    """Gives the signals that end a command their default dispositions: `nohup make test &` has two of them ignored.

    For `preexec_fn`.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing any more, whoever asks it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
