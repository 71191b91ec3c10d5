"""Supervise: runs one command in a session of its own, watches the Ray cluster it starts, and ends all of it.

In:    a command, its environment, signals of this process
Out:   an exception when the cluster died or somebody asked to stop; no process of the session is left after `end`
Owns:  the session, the handling of SIGINT, SIGTERM and SIGHUP
Never: a judgement by how fast something answers: a busy service is a living one
"""

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from scripts.launch.processes import Process, end_session, listeners, members, process

POLL_S = 0.5
# Without either of them nothing of Serve comes back: Ray restarts every other process.
VITAL = frozenset({"gcs_server", "raylet"})
DOOR_LIMIT_S = 90.0  # Serve replaces a dead proxy within 45 s on a busy machine
LAST_STEPS_S = 10.0  # a cluster that is being shut down ends its vital processes before the command ends
TERM_PATIENCE_S = 5.0
REPEAT_S = 1.0  # below it two signals are one: `make` passes on what the whole group has received


class Stopped(Exception):
    """Somebody asked this process to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Died(Exception):
    """The service cannot go on by itself; says why."""


class Signals:
    """What this process was asked to do, read by the loops below.

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


class Service:
    """The command and everything that descends from it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], signals: Signals) -> None:
        self._signals = signals
        self._command = subprocess.Popen(command, env=environment, start_new_session=True)
        self._vital: dict[str, Process] = {}
        self._closed_since: float | None = None

    @property
    def session(self) -> int:
        """Its id; the command leads it."""
        return self._command.pid

    def processes(self) -> list[Process]:
        """Everything that runs."""
        return members(self.session)

    def watch(self, done: Callable[[], bool], *, limit_s: float = float("inf"), port: int | None = None) -> bool:
        """Wait until something holds.

        Args:
            done: asked every half second.
            limit_s: longest to wait [s].
            port: one that must not stay closed.

        Returns:
            False when it did not hold in time.

        Raises:
            Stopped: somebody asked for it.
            Died: the cluster, or the door.
        """
        deadline = time.monotonic() + limit_s
        while not done():
            if self._signals.first is not None:
                raise Stopped(self._signals.first)
            if why := self._why_dead() or (port is not None and self._why_closed(port)):
                raise Died(why)
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def interrupt(self, limit_s: float) -> bool:
        """Ask the command to end as Ctrl-C does; returns whether it did. SIGTERM would leave Serve's application behind."""
        self._command.send_signal(signal.SIGINT)
        return self.wait_for(self._command, limit_s)

    def wait_for(self, command: "subprocess.Popen[bytes]", limit_s: float) -> bool:
        """Wait for a command while stopping: no longer than the limit, than the cluster lives, or than a second signal."""
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
        """End what is left; returns the names of the programs. After a second signal, or of a dead cluster, at once."""
        patience_s = 0.0 if self._signals.is_urgent else TERM_PATIENCE_S
        ended = end_session(self.session, patience_s)
        self._command.wait()
        return ended

    def _why_dead(self) -> str | None:
        if self._command.poll() is not None:
            return f"`serve run` ended with exit code {self._command.returncode}"
        if len(self._vital) < len(VITAL):  # it is being started
            for found in self.processes():
                if found.name in VITAL and found.parent == self.session:  # not one of its children, which has no name yet
                    self._vital.setdefault(found.name, found)
        gone = [name for name, known in self._vital.items() if process(known.pid) != known]
        return f"Ray's {' and '.join(gone)} ended" if gone else None

    def _why_closed(self, port: int) -> str | None:
        """Whether nobody has listened for too long. Nothing is asked: who listens may take his time to answer."""
        if any(listener.port == port for listener in listeners()):
            self._closed_since = None
            return None
        now = time.monotonic()
        self._closed_since = self._closed_since or now
        return f"nothing listened on port {port} for {DOOR_LIMIT_S:g} s" if now - self._closed_since > DOOR_LIMIT_S else None
