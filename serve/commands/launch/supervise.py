"""Supervise: runs one command in a session of its own, watches the Ray cluster it starts, and ends all of it.

In:    a command, its environment, signals of this process
Out:   an exception when the cluster died or a signal requests a stop; no process of the session is left after `end`
Owns:  the session, the handling of SIGINT, SIGTERM and SIGHUP
Never: taking a slow answer for a dead service
"""

import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from serve.commands.launch.processes import Process, end_session, listeners, members, process
from serve.commands.launch.run_log import RunLog

POLL_S = 0.5
# Ray restarts every other process; if one of these ends, Serve cannot recover.
VITAL = frozenset({"gcs_server", "raylet"})
PORT_POLL_S = 5.0  # the kernel walks through a large table for the list of ports
CLOSED_PORT_LIMIT_S = 90.0  # Serve replaces a dead proxy within 45 s on a busy machine
LAST_STEPS_S = 10.0  # when a cluster shuts down, its vital processes end before the command does
TERM_PATIENCE_S = 5.0
REPEAT_S = 1.0  # below it two signals are one: `make` passes on what the whole group has received


class StopRequested(Exception):
    """This process received a signal to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class ServiceDied(Exception):
    """The service cannot recover; the message names the reason."""


class Restarts:
    """How often a service that died is started again: one that dies of what is wrong with it would die for ever."""

    MOST = 6
    WINDOW_S = 600.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latest = deque[float](maxlen=self.MOST)

    def may(self) -> bool:
        """Returns whether it may be started again now, and counts it."""
        now = self._clock()
        if len(self._latest) == self.MOST and now - self._latest[0] < self.WINDOW_S:
            return False
        self._latest.append(now)
        return True


class Signals:
    """The stop signals this process has received, read by the loops below.

    Handlers also give the command its default dispositions, whatever this process has inherited: a shell starts background
    commands with SIGINT ignored.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.is_urgent = False
        self._since = 0.0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` means it
            signal.signal(signal.SIGHUP, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.first is None:
            self.first, self._since = number, time.monotonic()
        elif time.monotonic() - self._since > REPEAT_S:
            self.is_urgent = True


def logged(command: Sequence[str], environment: Mapping[str, str], log: RunLog) -> "subprocess.Popen[bytes]":
    """Starts a command in a session of its own that prints into the log."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert process.stdout is not None
    log.follow(process.stdout)
    return process


class Service:
    """The command and all processes that descend from it; what they print goes into the log."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], signals: Signals, log: RunLog) -> None:
        self._signals = signals
        self._command = logged(command, environment, log)
        self._vital: dict[str, Process] = {}
        self._closed_since: float | None = None
        self._next_look = 0.0

    @property
    def session(self) -> int:
        """Returns the id of the session; the command is its leader."""
        return self._command.pid

    def processes(self) -> list[Process]:
        """Returns the running processes of the session."""
        return members(self.session)

    def watch(self, done: Callable[[], bool], *, limit_s: float = float("inf"), port: int | None = None) -> bool:
        """Waits until a condition holds.

        Args:
            done: the condition; called every half second.
            limit_s: longest time to wait [s].
            port: a port that must not stay closed.

        Returns:
            False if it did not hold in time.

        Raises:
            StopRequested: this process received a signal.
            ServiceDied: a vital process ended, or the port stayed closed.
        """
        deadline = time.monotonic() + limit_s
        while not done():
            if self._signals.first is not None:
                raise StopRequested(self._signals.first)
            if why := self._why_dead() or (port is not None and self._why_closed(port)):
                raise ServiceDied(why)
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def interrupt(self, limit_s: float) -> bool:
        """Sends SIGINT to the command; returns whether it ended in time. SIGTERM would leave Serve's application behind."""
        self._command.send_signal(signal.SIGINT)
        return self.wait_for(self._command, limit_s)

    def wait_for(self, command: "subprocess.Popen[bytes]", limit_s: float) -> bool:
        """Waits for a command; False if the limit, the end of the cluster or a second signal comes first."""
        deadline, dead_since = time.monotonic() + limit_s, None
        while command.poll() is None:
            now = time.monotonic()
            if self._why_dead() is not None:
                dead_since = dead_since or now
            if self._signals.is_urgent or now > deadline or (dead_since and now - dead_since > LAST_STEPS_S):
                return False
            time.sleep(POLL_S)
        return True

    def end(self) -> list[str]:
        """Ends the remaining processes and returns the names of their programs; kills them at once after a second signal."""
        patience_s = 0.0 if self._signals.is_urgent else TERM_PATIENCE_S
        ended = end_session(self.session, patience_s)
        self._command.wait()
        return ended

    def _why_dead(self) -> str | None:
        if self._command.poll() is not None:
            return f"`serve run` ended with exit code {self._command.returncode}"
        if len(self._vital) < len(VITAL):  # still starting
            for member in self.processes():
                if member.name in VITAL and member.parent == self.session:  # not one of its children, which has no name yet
                    self._vital.setdefault(member.name, member)
        gone = [name for name, known in self._vital.items() if process(known.pid) != known]
        return f"Ray's {' and '.join(gone)} ended" if gone else None

    def _why_closed(self, port: int) -> str | None:
        """Returns a reason if no process has listened for too long. Sends no request: a slow answer is no failure."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + PORT_POLL_S
        if any(listener.port == port for listener in listeners()):
            self._closed_since = None
            return None
        self._closed_since = self._closed_since or now
        is_too_long = now - self._closed_since > CLOSED_PORT_LIMIT_S
        return f"nothing listened on port {port} for {CLOSED_PORT_LIMIT_S:g} s" if is_too_long else None
