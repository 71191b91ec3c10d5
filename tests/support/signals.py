"""Signals of a child: as a terminal gives them to it, whatever the tests have inherited."""

import signal


def as_in_a_terminal() -> None:
    """Gives the signals that end a command their default dispositions: `nohup make test &` has two of them ignored.

    For `preexec_fn`.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
