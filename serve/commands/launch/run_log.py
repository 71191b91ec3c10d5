"""Run log: what the processes of a service print, in a file of bounded size, without colours.

In:    lines of those processes
Out:   $CHATTTS_HOME/logs/PORT.log, another file, or this process's stdout; the last lines that may say why a service ended
Owns:  the file and OLDER former ones
Never: a terminal's colours in a file
"""

import logging
import os
import re
import sys
import threading
from collections import deque
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

from pipeline.paths import cache_home

LOG_VARIABLE = "CHATTTS_LOG"
LOG_HELP = f"a file for what the service prints, or - for stdout (default: ${LOG_VARIABLE}, or logs/PORT.log in $CHATTTS_HOME)"
STDOUT = "-"
MOST_BYTES, OLDER = 16 << 20, 3
LATEST = 12  # lines
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ROUTINE = re.compile(r"(?:^|\s)INFO\s|^\s*$|\((?:ServeController|HAProxyManager) pid=\d+\)   ")
END_S = 2.0


def log_place(chosen: str | None, port: int) -> str:
    """Returns where the log of a service is: the option's word, the variable's, or a file named after the port."""
    return chosen or os.environ.get(LOG_VARIABLE) or str(cache_home().absolute() / f"logs/{port}.log")


class RunLog:
    """The log of one run.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, place: str) -> None:
        self.place, self.is_file = place, place != STDOUT
        self._colours = not self.is_file and sys.stdout.isatty()
        self._latest = deque[str](maxlen=LATEST)
        self._copying: list[threading.Thread] = []
        self.handler: logging.Handler = logging.StreamHandler(sys.stdout)
        if self.is_file:
            Path(place).parent.mkdir(parents=True, exist_ok=True)
            self.handler = rotating = RotatingFileHandler(place, maxBytes=MOST_BYTES, backupCount=OLDER, encoding="utf-8")
            if Path(place).stat().st_size:
                rotating.doRollover()
        self.handler.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk ends no service

    def write(self, line: str) -> None:
        """Writes a line."""
        line = line if self._colours else COLOUR.sub("", line)
        self.handler.handle(logging.makeLogRecord({"msg": line}))
        if not ROUTINE.search(line):
            self._latest.append(line)

    def follow(self, output: IO[bytes]) -> None:
        """Copies the output of a process until all that hold it have ended."""
        copying = threading.Thread(target=self._copy, args=(output,), daemon=True)
        copying.start()
        self._copying.append(copying)

    def latest(self) -> list[str]:
        """Returns the last lines that are not routine; none where all lines have been on stdout anyway."""
        for copying in self._copying:
            copying.join(END_S)
        return list(self._latest) if self.is_file else []

    def _copy(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self.write(line.decode(errors="replace").rstrip("\n"))
