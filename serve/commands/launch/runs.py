"""Runs: a private folder per running service: its token, how to reach its cluster, a lock that shows it is running.

In:    the cache folder ($CHATTTS_HOME), and what an earlier run left there
Out:   a Run while the service runs; what other scripts need to connect to it
Owns:  $CHATTTS_HOME/runs and the folders in it, mode 700
Never: the token in an argument or in the environment: other users can read both in the list of processes

The lock ends with the process that holds it, however that ends. If the lock is free, the supervisor is gone; processes that it
left behind carry the run's id in their environment.
"""

import fcntl
import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pipeline.durable_file import write_durably
from serve.commands.launch.processes import end_session, sessions_with

ID_VARIABLE = "CHATTTS_RUN"
URL, PID = "CHATTTS_URL", "CHATTTS_PID"
SOCKETS = "sockets"  # a link to a folder elsewhere
TOKEN_BYTES = 32
PATIENCE_S = 5.0
NONE = "no service that `chattts-serve start` has made ready runs here"


@dataclass(frozen=True, slots=True)
class Run:
    """The folder of one running service."""

    folder: Path
    _lock: int
    """a file descriptor; no child inherits it"""

    @classmethod
    def begin(cls, home: Path) -> Self:
        """Makes a new folder with a new token and locks it.

        Raises:
            OSError: the folder cannot be created.
        """
        with _alone(home) as place:
            folder = Path(tempfile.mkdtemp(dir=place))  # mode 700
            write_durably(folder / "token", secrets.token_hex(TOKEN_BYTES).encode(), mode=0o600)
            (folder / SOCKETS).symlink_to(tempfile.mkdtemp(prefix="chattts-", dir="/tmp"))
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            return cls(folder, lock)

    @property
    def variable(self) -> str:
        """Returns the `NAME=value` that every process of the run has in its environment."""
        return variable(self.folder)

    @property
    def token(self) -> Path:
        """Returns the file with the token."""
        return self.folder / "token"

    @property
    def sockets(self) -> Path:
        """Returns a folder of mode 700 for sockets; its path is short, because theirs may have 107 characters."""
        return (self.folder / SOCKETS).readlink()

    @property
    def access(self) -> Path:
        """Returns the file that a shell reads to get the environment in which Ray's commands reach this cluster."""
        return self.folder / "env"

    def note(self, url: str, environment: Mapping[str, str]) -> None:
        """Writes where the service is, and the variables with which Ray's commands reach its cluster."""
        environment = {**environment, URL: url, PID: str(os.getpid())}
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()]
        write_durably(self.access, "".join(lines).encode(), mode=0o600)

    def end(self) -> None:
        """Removes the folder; the token is no longer valid."""
        _remove(self.folder)
        os.close(self._lock)


def end_leftovers(home: Path) -> list[str]:
    """Ends the processes of runs whose supervisor is gone; returns the names of their programs.

    Raises:
        OSError: the folder of runs cannot be created.
    """
    ended: set[str] = set()
    with _alone(home) as place:
        for folder in _folders(place):
            if not is_running(folder):
                for session in sessions_with(variable(folder)) - {os.getsid(0)}:
                    ended.update(end_session(session, PATIENCE_S))
                _remove(folder)
    return sorted(ended)


@dataclass(frozen=True, slots=True)
class RunningService:
    """A service that is ready."""

    folder: Path
    """of its run"""
    url: str
    pid: int
    """of the process that has started it, which ends it when it is signalled"""

    @property
    def port(self) -> int | None:
        """Where it listens for HTTP."""
        return urlsplit(self.url).port


def services(home: Path) -> list[RunningService]:
    """Returns the services that were started here and are ready."""
    notes = [(folder, _variables((folder / "env").read_text(encoding="utf-8"))) for folder in _ready(home)]
    return [RunningService(folder, note[URL], int(note[PID])) for folder, note in notes if note.keys() >= {URL, PID}]


def running(home: Path) -> list[dict[str, str]]:
    """Returns, per running cluster, the variables with which Ray's commands reach it."""
    notes = (_variables((folder / "env").read_text(encoding="utf-8")) for folder in _ready(home))
    return [{name: value for name, value in note.items() if name not in (URL, PID)} for note in notes]


def _ready(home: Path) -> list[Path]:
    """Returns the folders of runs that are ready."""
    return [folder for folder in _folders(runs_folder(home)) if is_running(folder) and (folder / "env").exists()]


def is_running(folder: Path) -> bool:
    """True if a process holds the lock."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def variable(folder: Path) -> str:
    """What every process of a run has in its environment."""
    return f"{ID_VARIABLE}={folder}"


def runs_folder(home: Path) -> Path:
    """Returns the folder that holds the folders of runs."""
    return home.absolute() / "runs"


@contextmanager
def _alone(home: Path) -> Iterator[Path]:
    """Locks the folder of runs: a new folder without its lock would look like that of a dead run."""
    place = runs_folder(home)
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o700)
    lock = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield place
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    with suppress(OSError):  # the start was killed before it created one
        shutil.rmtree((folder / SOCKETS).readlink(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _folders(place: Path) -> list[Path]:
    return [folder for folder in sorted(place.iterdir()) if folder.is_dir()] if place.is_dir() else []


def _variables(text: str) -> dict[str, str]:
    """Returns the variables of lines `export NAME=value`, quoted for a shell."""
    words = [shlex.split(line)[1] for line in text.splitlines()]
    return {name: value for name, _, value in (word.partition("=") for word in words)}
