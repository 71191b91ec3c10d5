"""Settings: what the process that waits for a service knows of its configuration.

In:    JSON of serve/commands/launch/check.py
Out:   Settings
Never: Ray: a process that only waits would hold 70 MB for the checks of one file
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Settings:
    """A checked configuration, as far as a start needs it."""

    path: Path
    host: str
    """the one Serve listens on"""
    port: int
    """of Serve"""
    checkpoint: str
    start_timeout_s: float
    """limits.start_timeout_s [s]"""
    longest_stream_s: float
    """how long an ingress replica may take to finish its streams [s]"""
    is_one_process: bool
    """True: without Ray"""

    def as_json(self) -> str:
        """Returns one line."""
        return json.dumps(asdict(self) | {"path": str(self.path)})

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Reads that line.

        Raises:
            ValueError, TypeError: it is none of `as_json`.
        """
        fields = json.loads(line)
        return cls(**fields | {"path": Path(fields["path"])})
