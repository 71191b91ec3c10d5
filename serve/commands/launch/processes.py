"""Processes: finds the processes of a session and the ports that are open, and ends a session.

In:    a session id (`setsid`: every descendant keeps it, whatever its parent is), or a variable of an environment
Out:   processes, sessions, listening sockets
Never: ending anything outside the session it was given
"""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil

from serve.config.hosts import is_loopback

POLL_S = 0.1
KILL_ROUNDS = 50  # a process may start another one while it is being killed
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass(frozen=True, slots=True)
class Process:
    """A process that runs; zombies do not."""

    pid: int
    name: str
    """the program's"""
    parent: int
    session: int

    @property
    def is_own(self) -> bool:
        """True if it runs as the user of this process."""
        with suppress(psutil.Error):
            return psutil.Process(self.pid).uids().effective == os.geteuid()
        return False

    def command(self) -> str:
        """Returns its arguments, or the title it has set; empty once it has ended."""
        with suppress(psutil.Error):
            return " ".join(psutil.Process(self.pid).cmdline()).strip()
        return ""


@dataclass(frozen=True, slots=True)
class Listener:
    """An open TCP port."""

    address: str
    port: int
    pid: int | None
    """None: of another user's process"""

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach it."""
        return is_loopback(self.address)


def processes() -> Iterator[Process]:
    """Yields every process of this machine."""
    for pid in psutil.pids():
        if (entry := process(pid)) is not None:
            yield entry


def process(pid: int) -> Process | None:
    """Returns a process; None if it does not run."""
    with suppress(psutil.Error, ProcessLookupError):
        handle = psutil.Process(pid)
        with handle.oneshot():
            if handle.status() not in ENDED:
                return Process(pid, handle.name(), handle.ppid(), os.getsid(pid))
    return None


def members(session: int) -> list[Process]:
    """Returns the processes of a session."""
    return [member for member in processes() if member.session == session]


def sessions_with(variable: str) -> set[int]:
    """Returns the sessions in which a process was started with `NAME=value`; other users' cannot be read."""
    name, _, value = variable.partition("=")
    sessions = set()
    for candidate in processes():
        with suppress(psutil.Error):
            if psutil.Process(candidate.pid).environ().get(name) == value:
                sessions.add(candidate.session)
    return sessions


def end_session(session: int, patience_s: float) -> list[str]:
    """Sends SIGTERM to every process of a session, then SIGKILL to those that are left.

    Args:
        session: any session but this process's own.
        patience_s: time between the two signals [s]; 0: SIGKILL at once.

    Returns:
        The names of the programs that were ended.
    """
    if session == os.getsid(0):
        raise ValueError("a process does not end its own session")
    ended = members(session)
    deadline = time.monotonic() + patience_s
    if patience_s > 0:
        _signal(ended, signal.SIGTERM)
        while members(session) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    for _ in range(KILL_ROUNDS):
        if not (remaining := members(session)):
            break
        _signal(remaining, signal.SIGKILL)
        time.sleep(POLL_S)
    return sorted({member.name for member in ended})


def _signal(targets: list[Process], number: signal.Signals) -> None:
    for target in targets:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(target.pid, number)


def listeners() -> list[Listener]:
    """Returns every open TCP port of this machine."""
    return [
        Listener(connection.laddr.ip, connection.laddr.port, connection.pid)
        for connection in psutil.net_connections("tcp")
        if connection.laddr and connection.status == psutil.CONN_LISTEN
    ]


def is_free(host: str, port: int) -> bool:
    """True if a process could listen there now."""
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        return True
    return False
