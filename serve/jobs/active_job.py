"""Active job: a job that this replica speaks, with what is missing of it.

In:    a record, a script, the finished parts
Out:   the next part; how far it is
Owns:  which parts wait, which are in progress, and when a failed one is tried again
Never: the store, tasks of other jobs
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from pipeline.books.job_files import JobFiles
from pipeline.books.script import Script
from serve.jobs.record import JobRecord

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 30.0


class ActiveJob:
    """One job of a runner."""

    def __init__(self, job_id: str, record: JobRecord, files: JobFiles, script: Script, lengths: Mapping[str, int]) -> None:
        """
        Args:
            lengths: of the parts that are finished, by their keys.
        """
        self.id = job_id
        self.record = record
        self.files = files
        self.script = script
        self.waiting = deque(key for key in dict.fromkeys(script.keys) if key not in lengths)
        """keys of the parts that nobody speaks yet, in the order of the text"""
        self.speaking: set[str] = set()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.retry_at = 0.0
        """before that nothing of it begins, by the loop's clock"""
        self.began_at = 0.0
        self.beat_at = 0.0
        """when the store is told next that this replica speaks it"""
        self.attempts = 0
        """failures so far"""
        self.is_finishing = False
        self.waiting_for = ""
        """what it lacks to go on, as in the record"""
        self._numbers = {key: number for number, key in reversed(list(enumerate(script.keys)))}
        self._made_s = 0.0
        self._retry_s = FIRST_RETRY_S

    @property
    def missing(self) -> int:
        """How many different parts are to be spoken."""
        return len(self.waiting) + len(self.speaking)

    @property
    def done(self) -> int:
        """How many parts are finished."""
        missing = {*self.waiting, *self.speaking}
        return sum(key not in missing for key in self.script.keys) if missing else len(self.script.keys)

    def number_of(self, key: str) -> int:
        """Returns the first part with a key."""
        return self._numbers[key]

    def take(self) -> str:
        """Returns the key of the next part, which is in progress from now on."""
        key = self.waiting.popleft()
        self.speaking.add(key)
        return key

    def keep(self, key: str, audio_s: float) -> None:
        """A part is finished."""
        self.speaking.discard(key)
        self._made_s += audio_s
        self._retry_s = FIRST_RETRY_S
        self._waits_for("")

    def give_back(self, key: str) -> None:
        """A part that is not finished is nobody's any more."""
        if key in self.speaking:
            self.speaking.discard(key)
            self.waiting.appendleft(key)

    def look_again(self, lengths: Mapping[str, int]) -> None:
        """Parts whose samples are gone are to be spoken again.

        Args:
            lengths: of the parts whose samples are there, by their keys.
        """
        known = {*self.waiting, *self.speaking, *lengths}
        self.waiting.extend(key for key in dict.fromkeys(self.script.keys) if key not in known)

    def failed(self, now: float, after_s: float = 0.0, *, waiting_for: str = "") -> None:
        """Something of it is tried again, not before `after_s`, and each time later."""
        self.attempts += 1
        self.retry_at = now + max(after_s, self._retry_s)
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        self._waits_for(waiting_for)

    def _waits_for(self, cause: str) -> None:
        if cause != self.waiting_for:
            self.waiting_for, self.beat_at = cause, 0.0  # the store is told at the next look

    def rate(self, now: float) -> float | None:
        """Returns the seconds of audio per second so far; None: nothing is finished yet."""
        return self._made_s / (now - self.began_at) if self._made_s and now > self.began_at else None
